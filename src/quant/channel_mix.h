// Which channels of a row are mixed (quant/hadamard.h), as kernels are told.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

namespace kvlane {

// Which channels a row mixes. `run` consecutive ones, a power of two; 1 where nothing is mixed.
struct ChannelMix {
  std::int32_t run;
  float scale;  // 1 / sqrt(run), rounded as mix_channels_scalar() rounds it
};

// Of rows of head_dim channels.
inline ChannelMix channel_mix(int head_dim) {
  const int run = head_dim & -head_dim;
  return {run, 1.0F / std::sqrt(static_cast<float>(run))};
}
inline constexpr ChannelMix kNoMix{1, 1};

}  // namespace kvlane
