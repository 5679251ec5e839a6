// Scores of tokens with the vectors that every processor of a kind has.
// SPDX-License-Identifier: Apache-2.0
#include "attention/token_scores_lanes.h"

namespace kvlane {

const ScoreKernels kScoreKernelsScalar = token_scores_lanes::kKernels;

}  // namespace kvlane
