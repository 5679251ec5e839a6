// What tests of `splitzip:channel` share: planes like those of a model, coded by the scalar codec.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <random>

#include "base/bf16.h"
#include "codec/splitzip_fixture.h"

namespace kvlane::channel_fixture {

using splitzip_fixture::Random;

// Gaussian values, every channel of its own scale; a share of them replaced by any bits.
inline Bytes kv_plane(const PlaneShape& shape, double noise, unsigned seed) {
  Random random(seed);
  std::normal_distribution<float> gauss;
  std::bernoulli_distribution any(noise);
  std::vector<float> scales(std::size_t(shape.kv_heads) * shape.head_dim);
  for (float& scale : scales) scale = std::exp2(gauss(random.engine));
  Bytes plane(shape.bytes());
  for (std::size_t i = 0; i < shape.elements(); ++i) {
    const std::size_t head = i / (std::size_t(shape.rows) * shape.head_dim);
    const float scale = scales[head * shape.head_dim + i % shape.head_dim];
    const auto value = any(random.engine) ? static_cast<std::uint16_t>(random())
                                          : to_bf16(gauss(random.engine) * scale).bits;
    std::memcpy(plane.data() + 2 * i, &value, sizeof(value));
  }
  return plane;
}

inline const Codec& scalar() { return **find_codec("splitzip:channel", Isa::kScalar); }

inline Bytes encode_scalar(const PlaneShape& shape, const Bytes& plane) {
  Bytes body(scalar().bound(shape));
  body.resize(scalar().encode(shape, plane, nullptr, body));
  return body;
}

}  // namespace kvlane::channel_fixture
