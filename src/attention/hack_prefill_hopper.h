// Prefill attention on codes on GPUs of compute capability 9.0, in the place of the kernel that all
// have: for kinds and widths that it has (attention/hack_prefill_hopper_device.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_prefill_gpu.h"

namespace kvlane {

template <int kDimension, int kCodeBits>
struct HackHopperKernel {
  static constexpr int kDim = kDimension;
  static constexpr int kBits = kCodeBits;
};

// Calls body(HackHopperKernel<...>{}) for the kernel of this kind and width. Whether there is one.
template <class Body>
bool with_hack_hopper_kernel(const HackKind& kind, int head_dim, const Body& body) {
  if (head_dim > 128) return false;
  if (kind == HackKind{2, 2, 0}) {
    head_dim <= 64 ? body(HackHopperKernel<64, 2>{}) : body(HackHopperKernel<128, 2>{});
  } else if (kind == HackKind{4, 4, 0}) {
    head_dim <= 64 ? body(HackHopperKernel<64, 4>{}) : body(HackHopperKernel<128, 4>{});
  } else {
    return false;
  }
  return true;
}

// Whether attend_hack_prefill_on_gpu() takes it on this device.
Result<bool> takes_hack_hopper_kernel(const HackKind& kind, int head_dim, int device);

// As attend_hack_prefill_on_gpu(), which has looked at everything.
Status attend_hack_prefill_on_hopper(const HackKind& kind, const HackPrefillBatch& batch,
                                     const PrefillUnit* units, std::size_t count,
                                     const gpu::Stream& stream);

}  // namespace kvlane
