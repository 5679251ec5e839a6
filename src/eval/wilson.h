// The confidence interval of a share: how often something happened in so many trials.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "eval/bootstrap.h"

namespace kvlane {

// Wilson's score interval, 95 %: honest for few trials, and for shares of 0 and 1, where a
// bootstrap sees no spread. trials >= 1.
Interval wilson_interval(int successes, int trials);

}  // namespace kvlane
