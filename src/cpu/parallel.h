// Loops over the cores. OpenMP underneath, because oneDNN brings its threads along: one pool, not
// two. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <omp.h>

#include <cstdint>

namespace kvlane {

// How many threads parallel loops started by the calling thread use from now on, oneDNN's included.
inline void set_parallel_threads(int threads) { omp_set_num_threads(threads); }
inline int parallel_threads() { return omp_get_max_threads(); }
inline int parallel_thread_index() { return omp_get_thread_num(); }

// Until the end of its scope the calling thread's parallel loops use `threads` threads.
class ParallelScope {
 public:
  explicit ParallelScope(int threads) : before_(parallel_threads()) {
    set_parallel_threads(threads);
  }
  ParallelScope(const ParallelScope&) = delete;
  ParallelScope& operator=(const ParallelScope&) = delete;
  ~ParallelScope() { set_parallel_threads(before_); }

 private:
  const int before_;
};

// Calls body(i) for every i in [0, count), in any order, on several threads; returns when all are
// done. `body` must not throw. Each i should be worth a few microseconds.
template <class Body>
void parallel_for(std::int64_t count, const Body& body) {
  if (count <= 1 || parallel_threads() == 1) {
    for (std::int64_t i = 0; i < count; ++i) body(i);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t i = 0; i < count; ++i) body(i);
}

// The same over ranges: body(first, last) for consecutive parts of [0, count) of at most `grain`
// items.
template <class Body>
void parallel_ranges(std::int64_t count, std::int64_t grain, const Body& body) {
  parallel_for((count + grain - 1) / grain, [&](std::int64_t part) {
    const std::int64_t first = part * grain;
    body(first, first + grain < count ? first + grain : count);
  });
}

}  // namespace kvlane
