// How much of a test with many combinations runs: all of them where bits are judged, fewer with a
// sanitizer, which looks at memory or threads and makes them ten times slower.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace kvlane {

#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitized = true;
#else
inline constexpr bool kThreadSanitized = false;
#endif
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = kThreadSanitized;
#endif

// All, or the last one and every other one before it.
template <typename T>
std::vector<T> every_other_if(bool fewer, std::vector<T> all) {
  if (!fewer) return all;
  std::vector<T> some;
  for (std::size_t i = 1 - all.size() % 2; i < all.size(); i += 2) {
    some.push_back(std::move(all[i]));
  }
  return some;
}

}  // namespace kvlane
