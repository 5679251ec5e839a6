// What launches of greedy choice are told (ops/greedy_gpu.h), without device code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

namespace kvlane {

// Tokens of a part.
inline constexpr int kGreedyTokens = 8192;

constexpr int greedy_parts(int vocab) { return (vocab - 1) / kGreedyTokens + 1; }

// What the first launch leaves of a run of tokens.
struct GreedyPart {
  float best;          // -infinity if there is nothing but NaN
  std::int32_t token;  // that has it, or kNone
  float sum;           // of exp(logit - best); 0 where `best` is infinite or nobody asked

  static constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();
};

// Of both launches.
struct GreedyRows {
  const float* logits;  // [rows][vocab]
  std::int32_t rows, vocab;
  GreedyPart* parts;     // [rows][greedy_parts(vocab)]: between the launches
  std::int32_t* tokens;  // [rows]
  float* logprobs;       // [rows], natural logarithms; null where they are not wanted
};

}  // namespace kvlane
