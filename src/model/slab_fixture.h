// Slabs to encode.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>

#include "base/bf16.h"
#include "base/bytes.h"
#include "base/random.h"
#include "format/shape.h"

namespace kvlane::slab_fixture {

// Around 1 with a few outliers, so that codecs have escapes.
inline Bytes slab_of(const KvShape& shape, std::uint32_t seed) {
  Bytes slab(shape.slab_bytes());
  for (std::size_t i = 0; i < slab.size() / 2; ++i) {
    const auto dice = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0});
    const float scale = dice[1] % 50 == 0 ? 1e9F : 1.0F;
    const bf16 value = to_bf16(scale * (static_cast<float>(dice[0]) * 0x1p-31F - 1));
    std::memcpy(slab.data() + 2 * i, &value, 2);
  }
  return slab;
}

}  // namespace kvlane::slab_fixture
