// Prefill attention on codes in builds without code for sm_90a.
// SPDX-License-Identifier: Apache-2.0
#include "attention/hack_prefill_hopper.h"

namespace kvlane {

Result<bool> takes_hack_hopper_kernel(const HackKind&, int, int) { return false; }

Status attend_hack_prefill_on_hopper(const HackKind&, const HackPrefillBatch&, const PrefillUnit*,
                                     std::size_t, const gpu::Stream&) {
  return unsupported("this program has no code for sm_90a");
}

}  // namespace kvlane
