// Scores of tokens with the vectors of AVX-512.
// SPDX-License-Identifier: Apache-2.0
#include "attention/token_scores_lanes.h"

namespace kvlane {

const ScoreKernels kScoreKernelsAvx512 = token_scores_lanes::kKernels;

}  // namespace kvlane
