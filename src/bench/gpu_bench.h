// Codecs, attention and row operations on a GPU, timed beside the copies that bound them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/figures.h"
#include "kvlane/status.h"

namespace kvlane {

// What can be measured apart from the rest.
inline constexpr std::string_view kGpuBenchGroups[] = {
    "splitzip", "channel", "fp8", "attention", "prefill", "hack", "zack", "rows", "step"};

struct GpuBenchOptions {
  int device = 0;
  int planes = 4096;  // of kGpuBenchShape (bench/gpu_planes.h); all of them, several times L2
  // Planes a launch, ascending; each divides `planes`. However many, a run takes all planes.
  std::vector<int> launches = {256, 1024, 4096};
  int rounds = 20;
  std::string file;               // of bfloat16 values; empty: made from a fixed seed
  std::vector<std::string> only;  // of kGpuBenchGroups; empty: all
};

// Figures of docs/bench.md, without machine, commit and command. Times are medians over the rounds
// of what events on the device tell; in a round everything runs once, in turn. Fails, too, when a
// plane does not come back bit for bit. `on_progress` hears what is measured next.
Result<std::vector<Figure>> bench_gpu(const GpuBenchOptions& options,
                                      const std::function<void(const std::string&)>& on_progress);

// The device in words. kNotFound when there are not so many.
Result<std::string> describe_gpu(int device);

}  // namespace kvlane
