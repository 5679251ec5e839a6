// Mixing the channels of a row in kernels (quant/hadamard.h), by a warp, or of several rows by as
// many parts of it: some neighbours by shuffles, the others within a lane. The same bits as on a
// CPU.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/device_float.h"
#include "quant/channel_mix.h"

namespace kvlane {

namespace gpu {

// By all lanes of a warp: x[i] is channel 32 i + lane() of the row. Channels behind its end may be
// anything and stay so: no run reaches over it.
template <int kParts, class Thread>
KVLANE_DEVICE void mix_row(Thread& t, const ChannelMix& mix, float (&x)[kParts]) {
  if (mix.run == 1) return;
  KVLANE_UNROLL
  for (int step = 1; step < kWarpThreads; step *= 2) {
    if (step >= mix.run) continue;
    const float sign = (t.lane() & step) != 0 ? -1 : 1;
    KVLANE_UNROLL
    for (int i = 0; i < kParts; ++i) {
      const float other = float_of(t.shuffle(bits_of(x[i]), t.lane() ^ step));
      x[i] = fused(sign, x[i], other);  // the sum, or other - x
    }
  }
  KVLANE_UNROLL
  for (int apart = 1; apart < kParts; apart *= 2) {
    if (apart * kWarpThreads >= mix.run) continue;
    KVLANE_UNROLL
    for (int i = 0; i < kParts; ++i) {
      if ((i & apart) != 0 || i + apart >= kParts) continue;
      const float a = x[i], b = x[i + apart];
      x[i] = a + b;
      x[i + apart] = a - b;
    }
  }
  KVLANE_UNROLL
  for (int i = 0; i < kParts; ++i) x[i] = times(x[i], mix.scale);
}

// Rows of 8 kLanes channels at most, one for each kLanes lanes: x[i] is channel 8 (lane() % kLanes)
// + i. Otherwise the same.
template <int kLanes, class Thread>
KVLANE_DEVICE void mix_rows(Thread& t, const ChannelMix& mix, float (&x)[8]) {
  if (mix.run == 1) return;
  KVLANE_UNROLL
  for (int apart = 1; apart < 8; apart *= 2) {
    if (apart >= mix.run) continue;
    KVLANE_UNROLL
    for (int i = 0; i < 8; ++i) {
      if ((i & apart) != 0) continue;
      const float a = x[i], b = x[i + apart];
      x[i] = a + b;
      x[i + apart] = a - b;
    }
  }
  KVLANE_UNROLL
  for (int step = 1; step < kLanes; step *= 2) {
    if (8 * step >= mix.run) continue;
    const float sign = (t.lane() & step) != 0 ? -1 : 1;
    KVLANE_UNROLL
    for (int i = 0; i < 8; ++i) {
      const float other = float_of(t.shuffle(bits_of(x[i]), t.lane() ^ step));
      x[i] = fused(sign, x[i], other);
    }
  }
  KVLANE_UNROLL
  for (int i = 0; i < 8; ++i) x[i] = times(x[i], mix.scale);
}

}  // namespace gpu
}  // namespace kvlane
