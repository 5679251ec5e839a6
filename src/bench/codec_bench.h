// `kvlane bench codec`: how small codecs make the KV and the hidden states of a model, and how
// fast, beside copying and beside general compressors.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/figures.h"
#include "cpu/isa.h"
#include "kvlane/status.h"

namespace kvlane {

struct CodecBenchOptions {
  std::filesystem::path directory;      // of the model
  std::filesystem::path text;           // what it reads
  std::filesystem::path codebook_text;  // what codebooks come from; empty: the rest of `text`
  std::vector<std::string> codecs = {"splitzip", "splitzip:channel"};
  std::size_t tokens = 8192;  // measured, and as many for codebooks
  std::size_t size_bytes = std::size_t{256} << 20;
  int head_dim = 0;  // of planes that are timed; 0: 128 where the model's divides it, else its own
  int repeats = 11;
  int threads = 2;  // of the figures with threads
  bool yardsticks = true;
  Isa isa = Isa::kScalar;
  std::function<void(std::string_view)> progress;
};

Result<Report> bench_codec(const CodecBenchOptions& options);

}  // namespace kvlane
