// Which tier scores tokens.
// SPDX-License-Identifier: Apache-2.0
#include "attention/token_scores.h"

namespace kvlane {

const ScoreKernels& score_kernels(Isa isa) {
  if constexpr (kX86) {
    if (isa >= Isa::kAvx512) return kScoreKernelsAvx512;
    if (isa >= Isa::kAvx2) return kScoreKernelsAvx2;
  }
  return kScoreKernelsScalar;
}

}  // namespace kvlane
