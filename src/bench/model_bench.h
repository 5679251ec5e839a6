// `kvlane bench model`: speed of prefill and decode of one model on this machine, and how near its
// products come to oneDNN's own and to the memory's bandwidth.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

#include "bench/figures.h"
#include "cpu/isa.h"
#include "kvlane/status.h"

namespace kvlane {

struct ModelBenchOptions {
  std::filesystem::path directory;
  Isa isa = Isa::kScalar;
  int threads = 0;  // 0: as many as OpenMP would take
  int prompt_tokens = 512;
  int decode_tokens = 16;
  int batch = 16;  // sequences decoded at once, beside one alone; 1: none
  int repeats = 5;
  std::function<void(std::string_view)> progress;  // told what is being done
};

Result<Report> bench_model(const ModelBenchOptions& options);

}  // namespace kvlane
