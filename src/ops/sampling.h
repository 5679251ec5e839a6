// Choosing the next token. A pure function of logits, parameters, seed and position: no state to
// move when a sequence moves to another worker. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace kvlane {

// How the next token is drawn. Greedy when temperature is 0.
struct SamplerParams {
  float temperature = 1;
  int top_k = 0;    // the k most likely tokens; 0: all
  float top_p = 1;  // of these, the fewest whose probabilities reach top_p
  std::uint64_t seed = 0;
};

// The token at `position` of its sequence. Equal logits rank by lower id; NaN ranks last.
std::int32_t sample_token(std::span<const float> logits, const SamplerParams& params, int position);

}  // namespace kvlane
