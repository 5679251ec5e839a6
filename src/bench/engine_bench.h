// `kvlane bench engine`: what the scheduler costs and what it is worth, in one process: its share
// of a step, the pace of running answers while a prompt arrives, and a prompt's prefix found in the
// cache.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

#include "bench/figures.h"
#include "cpu/isa.h"
#include "kvlane/status.h"

namespace kvlane {

struct EngineBenchOptions {
  std::filesystem::path directory;
  Isa isa = Isa::kScalar;
  int threads = 0;           // 0: as many as OpenMP would take
  int batch = 16;            // answers at once
  int prompt_tokens = 64;    // of each of them
  int answer_tokens = 64;    // of each of them
  int prefix_tokens = 4096;  // of the long prompts; less where the context is shorter
  int repeats = 5;
  std::function<void(std::string_view)> progress;  // told what is being done
};

Result<Report> bench_engine(const EngineBenchOptions& options);

}  // namespace kvlane
