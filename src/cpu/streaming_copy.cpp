// 16-byte stores, which every x86-64 has: four in a row fill a line, which then leaves as one.
// For others: memcpy.
// SPDX-License-Identifier: Apache-2.0
#include "cpu/streaming_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__

#include <emmintrin.h>

namespace kvlane {
namespace {

constexpr std::size_t kLine = 64;

}  // namespace

void streaming_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t misplaced = reinterpret_cast<std::uintptr_t>(to) % kLine;
  const std::size_t head = std::min(misplaced == 0 ? 0 : kLine - misplaced, bytes);
  if (head > 0) std::memcpy(to, from, head);
  const std::size_t lines = (bytes - head) / kLine;
  const auto* source = reinterpret_cast<const __m128i*>(from + head);
  auto* target = reinterpret_cast<__m128i*>(to + head);
  for (std::size_t line = 0; line < lines; ++line, source += 4, target += 4) {
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  const std::size_t done = head + lines * kLine;
  if (done < bytes) std::memcpy(to + done, from + done, bytes - done);
  // These stores are not ordered with what a lock writes.
  _mm_sfence();
}

}  // namespace kvlane

#else

// Other processors see long runs of stores themselves.
void kvlane::streaming_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

#endif
