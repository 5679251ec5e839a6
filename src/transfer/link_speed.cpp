// Windows of measurement and their moving average.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/link_speed.h"

#include <algorithm>

namespace kvlane {

void LinkSpeedMeter::waiting(TimePoint now, const LinkProgress& progress) {
  const Mark mark{now, progress};
  if (!start_ || close_window(mark)) start_ = mark;
}

void LinkSpeedMeter::idle(TimePoint now, const LinkProgress& progress) {
  if (start_) close_window({now, progress});
  start_.reset();
}

// False when the window is too small to tell anything yet.
bool LinkSpeedMeter::close_window(const Mark& end) {
  const Seconds length = end.time - start_->time;
  const std::uint64_t bytes = end.progress.bytes - start_->progress.bytes;
  if (length < kSpeedWindowMin || bytes < kSpeedWindowBytesMin) return false;
  const double speed = static_cast<double>(bytes) / length.count();
  const Seconds limited = end.progress.receiver_limited - start_->progress.receiver_limited;
  const double share = std::clamp(limited / length, 0.0, 1.0);
  const double weight = bytes_per_second_ == 0 ? 1 : kSpeedWindowWeight;
  bytes_per_second_ += weight * (speed - bytes_per_second_);
  receiver_share_ += weight * (share - receiver_share_);
  return true;
}

std::optional<LinkSpeed> LinkSpeedMeter::speed() const {
  if (bytes_per_second_ == 0) return std::nullopt;
  return LinkSpeed{bytes_per_second_, receiver_share_ > 0.5};
}

}  // namespace kvlane
