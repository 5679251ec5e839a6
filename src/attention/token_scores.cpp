// Which tier scores tokens.
// SPDX-License-Identifier: Apache-2.0
#include "attention/token_scores.h"

namespace kvlane {

const ScoreKernels& score_kernels(Isa isa) {
  switch (isa) {
    case Isa::kAvx512: return kScoreKernelsAvx512;
    case Isa::kAvx2: return kScoreKernelsAvx2;
    case Isa::kScalar: break;
  }
  return kScoreKernelsScalar;
}

}  // namespace kvlane
