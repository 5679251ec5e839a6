// Scores of tokens with the vectors of AVX2.
// SPDX-License-Identifier: Apache-2.0
#include "attention/token_scores_lanes.h"

namespace kvlane {

const ScoreKernels kScoreKernelsAvx2 = token_scores_lanes::kKernels;

}  // namespace kvlane
