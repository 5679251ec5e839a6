// What code that runs in kernels is written with: words, bytes in words, and memory.
//
// Such code is a template over the thread it runs in: CudaThread (gpu/cuda_thread.h), or
// EmulatedThread (gpu/emulated_block.h), with which ordinary tests run it on a CPU. A thread has
//   index(), threads()                its number in the block, and how many there are
//   lane(), warp(), warps()           the same by warps of 32
//   sync_block(), sync_warp()         barriers that order memory
//   shuffle(x, lane), shuffle_up(x, by, width), ballot(condition), sum(x)    within the warp
//   add(word, x)                      an atomic addition in shared memory
//   copy_async(to, from, wanted)      begins to copy 16 bytes to shared memory, or 16 zeros where
//                                     they are not wanted: then `from` is not read
//   fetch_ahead(at)                   asks memory for the 128 bytes around a byte: they are read
//                                     soon
//   wait_copies()                     until all that this thread has begun to copy is there
//   close_copies()                    what it has begun since the last call, if any, is a group
//   wait_copies_but<kLeft>()          until all closed groups are there but the last kLeft
//   let_next_begin()                  the stream's next launch may begin, if it does so early
//                                     (gpu/early_launch.h), when all blocks have said so
//   wait_previous()                   until what the launch in front of this one writes is there
// What is copied to may be written from the begin of a copy on, and what comes is seen by its own
// thread after the wait, by others after a barrier behind it. Addresses are multiples of 16.
// All threads of a warp (of a block) must come to the same call together, but for the last eight.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define KVLANE_DEVICE __device__ __forceinline__
// Before a loop whose indices must be constants, or its arrays go to memory.
#define KVLANE_UNROLL _Pragma("unroll")
// Before a loop that would take too many registers.
#define KVLANE_NO_UNROLL _Pragma("unroll 1")
#else
#define KVLANE_DEVICE inline
#define KVLANE_UNROLL
#define KVLANE_NO_UNROLL
#endif

namespace kvlane::gpu {

inline constexpr int kWarpThreads = 32;
inline constexpr int kWarpgroupThreads = 4 * kWarpThreads;

// 16 bytes, as one access moves them.
struct alignas(16) Words4 {
  std::uint32_t w[4];
};

// In shared memory, what threads wait at for others that go on (gpu/hopper_thread.h).
struct Arrivals {
  std::uint64_t state;
};

// Byte i of the result is byte (selector >> 4 i & 7) of the eight bytes of `low`, then `high`; with
// bit 3 of the selector's digit set, that byte's top bit eight times.
KVLANE_DEVICE std::uint32_t byte_perm(std::uint32_t low, std::uint32_t high,
                                      std::uint32_t selector) {
#ifdef __CUDA_ARCH__
  // The instruction itself: __byte_perm() leaves out bit 3 of the digits.
  std::uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
  return result;
#else
  const std::uint64_t bytes = std::uint64_t{high} << 32 | low;
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned digit = selector >> 4 * i & 0xF;
    std::uint32_t byte = static_cast<std::uint32_t>(bytes >> 8 * (digit & 7) & 0xFF);
    if ((digit & 8) != 0) byte = (byte & 0x80) != 0 ? 0xFF : 0;
    result |= byte << 8 * i;
  }
  return result;
#endif
}

// Byte by byte, unsigned.
KVLANE_DEVICE std::uint32_t max_bytes(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  return __vmaxu4(a, b);
#else
  std::uint32_t result = 0;
  for (int shift = 0; shift < 32; shift += 8) {
    const std::uint32_t x = a >> shift & 0xFF, y = b >> shift & 0xFF;
    result |= (x > y ? x : y) << shift;
  }
  return result;
#endif
}
KVLANE_DEVICE std::uint32_t min_bytes(std::uint32_t a, std::uint32_t b) {
  return ~max_bytes(~a, ~b);
}
// a - b, byte by byte, without borrows.
KVLANE_DEVICE std::uint32_t subtract_bytes(std::uint32_t a, std::uint32_t b) {
  return ((a | 0x80808080) - (b & 0x7F7F7F7F)) ^ ((a ^ ~b) & 0x80808080);
}
// The top bits of four bytes, in order.
KVLANE_DEVICE std::uint32_t top_bits(std::uint32_t bytes) {
  return ((bytes >> 7 & 0x01010101) * 0x01020408U) >> 24 & 0xF;
}

KVLANE_DEVICE int count_ones(std::uint32_t x) {
#ifdef __CUDA_ARCH__
  return __popc(x);
#else
  return __builtin_popcount(x);
#endif
}

// Of a word that is not 0.
KVLANE_DEVICE int lowest_one(std::uint32_t x) {
#ifdef __CUDA_ARCH__
  return __ffs(static_cast<int>(x)) - 1;
#else
  return __builtin_ctz(x);
#endif
}

// Memory that is read or written once: it should not push out what caches are for. The address is a
// multiple of 16.
KVLANE_DEVICE Words4 load_once(const std::byte* at) {
#ifdef __CUDA_ARCH__
  const uint4 x = __ldcs(reinterpret_cast<const uint4*>(at));
  return {{x.x, x.y, x.z, x.w}};
#else
  Words4 words;
  std::memcpy(&words, at, sizeof(words));
  return words;
#endif
}
KVLANE_DEVICE void store_once(std::byte* at, const Words4& words) {
#ifdef __CUDA_ARCH__
  __stcs(reinterpret_cast<uint4*>(at), make_uint4(words.w[0], words.w[1], words.w[2], words.w[3]));
#else
  std::memcpy(at, &words, sizeof(words));
#endif
}

// 8 bytes at a multiple of 8.
KVLANE_DEVICE void store_pair(std::byte* at, std::uint32_t low, std::uint32_t high) {
#ifdef __CUDA_ARCH__
  __stcs(reinterpret_cast<uint2*>(at), make_uint2(low, high));
#else
  const std::uint32_t words[] = {low, high};
  std::memcpy(at, words, sizeof(words));
#endif
}
struct Words2 {
  std::uint32_t w[2];
};
KVLANE_DEVICE Words2 load_pair(const std::byte* at) {
#ifdef __CUDA_ARCH__
  const uint2 x = __ldcs(reinterpret_cast<const uint2*>(at));
  return {{x.x, x.y}};
#else
  Words2 words;
  std::memcpy(&words, at, sizeof(words));
  return words;
#endif
}

// The first or the second 8 bytes.
KVLANE_DEVICE Words2 half_of(const Words4& words, int half) {
#ifdef __CUDA_ARCH__
  const uint2 x = reinterpret_cast<const uint2*>(&words)[half];
  return {{x.x, x.y}};
#else
  return {{words.w[2 * half], words.w[2 * half + 1]}};
#endif
}

// 2 bytes at a multiple of 2.
KVLANE_DEVICE unsigned load_aligned_half(const std::byte* at) {
#ifdef __CUDA_ARCH__
  return *reinterpret_cast<const std::uint16_t*>(at);
#else
  std::uint16_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
#endif
}
KVLANE_DEVICE void store_aligned_half(std::byte* at, unsigned value) {
  const auto half = static_cast<std::uint16_t>(value);
#ifdef __CUDA_ARCH__
  *reinterpret_cast<std::uint16_t*>(at) = half;
#else
  std::memcpy(at, &half, sizeof(half));
#endif
}

// 4 bytes at a multiple of 4.
KVLANE_DEVICE std::uint32_t load_aligned_word(const std::byte* at) {
#ifdef __CUDA_ARCH__
  return *reinterpret_cast<const std::uint32_t*>(at);
#else
  std::uint32_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
#endif
}
KVLANE_DEVICE void store_aligned_word(std::byte* at, std::uint32_t value) {
#ifdef __CUDA_ARCH__
  *reinterpret_cast<std::uint32_t*>(at) = value;
#else
  std::memcpy(at, &value, sizeof(value));
#endif
}

// No alignment needed.
KVLANE_DEVICE unsigned load_byte(const std::byte* at) { return static_cast<unsigned>(*at); }
KVLANE_DEVICE void store_byte(std::byte* at, unsigned value) {
  *at = static_cast<std::byte>(value & 0xFFU);
}
KVLANE_DEVICE unsigned load_half(const std::byte* at) {
  return load_byte(at) | load_byte(at + 1) << 8;
}
KVLANE_DEVICE void store_half(std::byte* at, unsigned value) {
  store_byte(at, value);
  store_byte(at + 1, value >> 8);
}

// By all threads of the block.
template <class Thread>
KVLANE_DEVICE void copy_bytes(Thread& t, std::byte* to, const std::byte* from, std::size_t bytes) {
  std::size_t done = 0;
  if ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % 16 == 0) {
    for (std::size_t i = t.index(); i < bytes / 16; i += t.threads()) {
      store_once(to + 16 * i, load_once(from + 16 * i));
    }
    done = bytes / 16 * 16;
  }
  for (std::size_t i = done + t.index(); i < bytes; i += t.threads()) to[i] = from[i];
}
// Asks memory, by a warp, for bytes that it reads soon.
template <class Thread>
KVLANE_DEVICE void fetch_bytes_ahead(Thread& t, const std::byte* at, std::uint32_t bytes) {
  constexpr std::uint32_t kLine = 128;
  KVLANE_NO_UNROLL
  for (std::uint32_t i = kLine * t.lane(); i < bytes; i += kLine * kWarpThreads) {
    t.fetch_ahead(at + i);
  }
}
template <class Thread>
KVLANE_DEVICE void store_zeros(Thread& t, std::byte* at, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin + t.index(); i < end; i += t.threads()) store_byte(at + i, 0);
}
// Whether this thread's share of the bytes is.
template <class Thread>
KVLANE_DEVICE bool all_zero(Thread& t, const std::byte* at, std::size_t begin, std::size_t end) {
  bool zero = true;
  for (std::size_t i = begin + t.index(); i < end; i += t.threads()) {
    zero = zero && at[i] == std::byte{0};
  }
  return zero;
}
// Whether anything is wrong in any thread's eyes. `wrong` is shared and 0; no thread may write it
// again before all have returned.
template <class Thread>
KVLANE_DEVICE bool any_wrong(Thread& t, std::uint32_t& wrong, bool right) {
  const std::uint32_t votes = t.ballot(!right);
  if (t.lane() == 0 && votes != 0) t.add(wrong, 1);
  t.sync_block();
  return wrong != 0;
}

}  // namespace kvlane::gpu
