// When requests of an open loop arrive: points in time that do not depend on the server.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace kvlane {

// `count` ascending points, in seconds after the start, at `rate` requests per second. Gaps are
// gamma distributed with shape `burstiness`: 1 is a Poisson process, less is burstier, more is
// smoother, infinity is a fixed gap. They are scaled so that the last request arrives at
// count / rate, as `vllm bench serve` does: so two seeds offer the same load. An infinite rate: all
// at 0. Both parameters are positive.
std::vector<double> open_loop_arrivals(std::size_t count, double rate, double burstiness,
                                       std::uint64_t seed);

}  // namespace kvlane
