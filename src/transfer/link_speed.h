// How fast a link is, learnt from what it carried while more was always waiting.
//
// Only such time tells anything: when nothing waits, the bytes that leave say how fast they came,
// not how fast the link is. A link that was never the bottleneck therefore has no speed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace kvlane {

struct LinkSpeed {
  double bytes_per_second = 0;
  // Most of the time it was the peer that did not read, not the network that did not carry.
  bool receiver_bound = false;
};

// What a connection has got done up to one moment. Both only grow.
struct LinkProgress {
  std::uint64_t bytes = 0;      // that the peer's system has acknowledged, so no buffer counts
  Seconds receiver_limited{0};  // time in which the peer's receive window was full
};

// A window of measurement is closed when it is so long and so much was carried.
inline constexpr Seconds kSpeedWindowMin{0.02};
inline constexpr std::uint64_t kSpeedWindowBytesMin = std::uint64_t{1} << 18;
// What the latest window weighs: links change, after some ten windows the past is forgotten.
inline constexpr double kSpeedWindowWeight = 0.25;

// Not thread-safe.
class LinkSpeedMeter {
 public:
  // More is waiting from here on, and was since the last call unless idle() came between.
  void waiting(TimePoint now, const LinkProgress& progress);
  // Up to now more was waiting, from here on nothing is.
  void idle(TimePoint now, const LinkProgress& progress);
  // Whether a window is open.
  bool measuring() const { return start_.has_value(); }

  std::optional<LinkSpeed> speed() const;

 private:
  struct Mark {
    TimePoint time;
    LinkProgress progress;
  };
  bool close_window(const Mark& end);

  std::optional<Mark> start_;
  double bytes_per_second_ = 0;  // 0: no window yet
  double receiver_share_ = 0;    // of the time in which something waited
};

}  // namespace kvlane
