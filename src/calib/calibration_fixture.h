// What models are calibrated on in tests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "model/model.h"

namespace kvlane::calibration_fixture {

inline constexpr std::size_t kTokens = 200;  // three blocks, and 8 tokens that do not count
inline constexpr int kCounted = 192;

inline std::vector<std::int32_t> tokens_of(const Model& model, std::size_t count,
                                           std::size_t from = 3) {
  std::vector<std::int32_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<std::int32_t>((from + i * 7 + i * i % 13) % model.config().vocab);
  }
  return tokens;
}

}  // namespace kvlane::calibration_fixture
