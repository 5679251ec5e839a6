// Loops over the cores: OpenMP underneath, because oneDNN brings its threads along.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <omp.h>

#include <cstdint>
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace kvlane {

// ThreadSanitizer does not see the barriers of libgomp, so it is told of them: what threads did
// before they came to arrive() has happened for those that are behind go_on(). Elsewhere: nothing.
class Barrier {
 public:
#ifdef __SANITIZE_THREAD__
  void arrive() { __tsan_release(this); }
  void go_on() { __tsan_acquire(this); }
#else
  void arrive() {}
  void go_on() {}
#endif
};
inline Barrier loop_begins, loop_ends;

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
// ThreadSanitizer looks at bodies, and not at how OpenMP hands the loop itself to its threads.
template <class Body>
__attribute__((no_sanitize("thread"))) void parallel_for(std::int64_t count, const Body& body) {
  if (count <= 1 || parallel_threads() == 1) {
    for (std::int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  loop_begins.arrive();
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t i = 0; i < count; ++i) {
    loop_begins.go_on();
    body(i);
    loop_ends.arrive();
  }
  loop_ends.go_on();
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
