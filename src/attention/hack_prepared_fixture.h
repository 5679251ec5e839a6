// Queries of a scene as device code prepares them, on emulated threads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_attention_fixture.h"
#include "attention/hack_prepare_device.h"
#include "gpu/emulated_block.h"

namespace kvlane::hack_fixture {

inline constexpr float kPoisoned = std::numeric_limits<float>::quiet_NaN();

// Poisoned memory for `bytes` bytes.
inline Lines poisoned(std::size_t bytes) {
  Lines lines((bytes + sizeof(Line) - 1) / sizeof(Line));
  std::fill_n(reinterpret_cast<std::byte*>(lines.data()), lines.size() * sizeof(Line),
              std::byte{0xFF});
  return lines;
}

// Queries of a scene as device code prepares them.
struct Prepared {
  explicit Prepared(const Scene& scene, std::uint64_t seed = 1)
      : codes(poisoned(scene.rows() * scene.shape().head_dim)),
        rests(poisoned(2 * scene.rows() * scene.shape().head_dim)),
        scales(scene.rows(), kPoisoned),
        terms(scene.rows() * kHackTerms, HackTerm{kPoisoned, kPoisoned}) {
    HackPrepare prepare = scene.prepare();
    prepare.to = pointers();
    for (int row = 0; row < prepare.rows; row += hack_prepare_rows(prepare.head_dim)) {
      gpu::run_block(gpu::kWarpThreads, seed++,
                     [&](gpu::EmulatedThread& thread) { prepare_queries(thread, prepare, row); });
    }
  }
  HackPrepared pointers() {
    return {reinterpret_cast<std::byte*>(codes.data()), reinterpret_cast<std::byte*>(rests.data()),
            scales.data(), terms.data()};
  }
  Lines codes, rests;
  std::vector<float> scales;
  std::vector<HackTerm> terms;
};

}  // namespace kvlane::hack_fixture
