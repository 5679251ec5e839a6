// Times things on a GPU's stream in turn, by events: what disturbs the device falls on all of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/figures.h"
#include "gpu/device.h"

namespace kvlane {

// Something that is timed on the device.
struct GpuTimed {
  std::string name;
  double bytes;  // moved, or raw bytes of a codec
  std::function<Status()> run;
  gpu::Event begin, end;
  std::vector<double> seconds = {};  // one entry a round

  double gigabytes_per_second() const { return bytes / median(seconds) * 1e-9; }
};

class GpuTimer {
 public:
  // The stream must outlive the timer.
  explicit GpuTimer(const gpu::Stream& stream) : stream_(stream) {}

  Status add(std::string name, double bytes, std::function<Status()> run) {
    KVLANE_ASSIGN(gpu::Event begin, gpu::Event::create(stream_.device()));
    KVLANE_ASSIGN(gpu::Event end, gpu::Event::create(stream_.device()));
    all_.push_back({std::move(name), bytes, std::move(run), std::move(begin), std::move(end)});
    return {};
  }
  // Everything once a round, after some rounds that do not count.
  Status time(int rounds) {
    for (int round = 0; round < kWarmUps + rounds; ++round) {
      for (GpuTimed& one : all_) {
        KVLANE_TRY(one.begin.record(stream_));
        KVLANE_TRY(one.run());
        KVLANE_TRY(one.end.record(stream_));
      }
      KVLANE_TRY(stream_.synchronize());
      if (round < kWarmUps) continue;
      for (GpuTimed& one : all_) {
        KVLANE_ASSIGN(const double seconds, one.end.seconds_since(one.begin));
        one.seconds.push_back(seconds);
      }
    }
    return {};
  }
  const std::vector<GpuTimed>& all() const { return all_; }
  double speed_of(std::string_view name) const {
    for (const GpuTimed& one : all_) {
      if (one.name == name) return one.gigabytes_per_second();
    }
    return 0;
  }

 private:
  static constexpr int kWarmUps = 3;

  const gpu::Stream& stream_;
  std::vector<GpuTimed> all_;
};

}  // namespace kvlane
