// How long prompts and answers are: distributions, and those of published workloads by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/random_stream.h"
#include "kvlane/status.h"

namespace kvlane {

// Token counts, at least 1.
struct LengthDistribution {
  enum class Shape {
    kUniform,    // on min ... max
    kBeta,       // on min ... max with this mean: see draw_length
    kGeometric,  // from 1, with this mean (above 1), no upper end; min and max mean nothing
  };
  Shape shape = Shape::kUniform;
  double mean = 0;
  double min = 1;
  double max = 1;
};

// A scaled Beta has a + b = 4: papers publish average, least and most only, and this concentration
// gives one broad hump between them.
int draw_length(const LengthDistribution& distribution, RandomStream& random);

// `length` times 1 - range_ratio ... 1 + range_ratio, as in vLLM's random dataset; 0: always
// `length`. The ratio is from 0 to below 1.
LengthDistribution around(int length, double range_ratio);

// A workload that a paper describes by its lengths.
struct PaperWorkload {
  std::string_view name;
  std::string_view source;
  LengthDistribution input;  // of new tokens in a round
  LengthDistribution output;
  int context = 0;  // tokens of a document in front of every first prompt
  int rounds = 1;
  double think_time = 0;  // seconds between an answer and the next round
};

// kNotFound lists the names.
Result<PaperWorkload> find_paper_workload(std::string_view name);
std::vector<std::string> paper_workload_names();

}  // namespace kvlane
