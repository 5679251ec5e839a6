// Reads a buffer and adds it up, so that no load can be left out.
// SPDX-License-Identifier: Apache-2.0
#include "bench/read_bandwidth.h"

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "cpu/parallel.h"

namespace kvlane {

double read_bandwidth(const PageBuffer& buffer) {
  constexpr std::int64_t kGrain = 1 << 20;  // words: 8 MiB a piece
  const auto* words = buffer.as<std::uint64_t>();
  std::atomic<std::uint64_t> total = 0;
  const TimePoint start = SteadyClock::now();
  parallel_ranges(static_cast<std::int64_t>(buffer.bytes() / sizeof(std::uint64_t)), kGrain,
                  [&](std::int64_t first, std::int64_t last) {
                    std::uint64_t sum[8] = {};
                    std::int64_t i = first;
                    for (; i + 8 <= last; i += 8) {
                      for (int lane = 0; lane < 8; ++lane) sum[lane] += words[i + lane];
                    }
                    for (; i < last; ++i) sum[0] += words[i];
                    for (int lane = 1; lane < 8; ++lane) sum[0] += sum[lane];
                    total += sum[0];
                  });
  const double seconds = seconds_since(start);
  volatile std::uint64_t sink = total;  // somebody looks at the sum
  static_cast<void>(sink);
  return static_cast<double>(buffer.bytes()) / seconds;
}

}  // namespace kvlane
