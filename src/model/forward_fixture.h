// What tests of forward passes share: models, tokens and comparisons of logits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/test_results.h"
#include "model/expected_fixture.h"
#include "model/model.h"

namespace kvlane::forward_fixture {

// A checkpoint of tests/fixtures/models.
inline std::unique_ptr<Model> load(const std::string& name, Isa isa = best_isa()) {
  return take(Model::load(expected_fixture::kModels / name, {.isa = isa}));
}

inline std::vector<std::int32_t> random_tokens(int count, int vocab, std::uint32_t seed) {
  std::vector<std::int32_t> tokens(count);
  for (int i = 0; i < count; ++i) {
    tokens[i] = static_cast<std::int32_t>(
        philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0})[0] % vocab);
  }
  return tokens;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace kvlane::forward_fixture
