// A run's result for people and for programs, in the forms of `vllm bench serve` and in our own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "bench/figures.h"
#include "bench/serve_result.h"

namespace kvlane {

// What was asked for, as it is told beside a result.
struct ServeSetting {
  std::string base_url;
  std::string endpoint;  // "/v1/completions"
  std::string model;
  std::string dataset;
  double request_rate = 0;  // infinity: all at once; 0: not an open loop at a rate
  double burstiness = 1;
  std::size_t max_concurrency = 0;  // 0: none
  std::size_t num_prompts = 0;      // planned
  std::size_t shortened = 0;        // of them, to fit the context
  std::uint64_t seed = 0;
};

// The block of text, with vLLM's labels; what vLLM does not have follows behind.
std::string serve_text(const ServeSetting& setting, const ServeResult& result);

// One JSON object with vLLM's names (--save-result); with `details`, arrays of one value for each
// request in the order they were sent (--save-detailed). Beside vLLM's arrays there are those that
// tell rounds apart: `conversations` (counted from 0), `rounds` (from 1), `cached_lens` (tokens of
// the prompt that the server found in a cache).
std::string serve_result_json(const ServeSetting& setting, const ServeResult& result,
                              const LoadOutcome* details);

// The figures of docs/bench.md.
std::vector<Figure> serve_figures(const ServeResult& result);

}  // namespace kvlane
