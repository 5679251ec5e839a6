// Loops that compilers turn into vectors, for every processor of a kind and for AVX2: yardsticks
// shall not be slow for our sake.
// SPDX-License-Identifier: Apache-2.0
#include "bench/byte_split.h"

#include <cstring>

#include "cpu/isa.h"

namespace kvlane {
namespace {

__attribute__((always_inline)) inline void split_loop(const std::byte* values, std::size_t count,
                                                      std::byte* __restrict__ exponents,
                                                      std::byte* __restrict__ rests) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t value;
    std::memcpy(&value, values + 2 * i, sizeof value);
    const auto rotated = static_cast<std::uint16_t>(value << 1 | value >> 15);
    exponents[i] = static_cast<std::byte>(rotated >> 8);
    rests[i] = static_cast<std::byte>(rotated & 0xFF);
  }
}

__attribute__((always_inline)) inline void join_loop(const std::byte* exponents,
                                                     const std::byte* rests, std::size_t count,
                                                     std::byte* __restrict__ values) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto rotated = static_cast<std::uint16_t>(std::to_integer<unsigned>(exponents[i]) << 8 |
                                                    std::to_integer<unsigned>(rests[i]));
    const auto value = static_cast<std::uint16_t>(rotated >> 1 | rotated << 15);
    std::memcpy(values + 2 * i, &value, sizeof value);
  }
}

#ifdef __x86_64__
#define KVLANE_FOR_AVX2 __attribute__((target("avx2")))
#else
#define KVLANE_FOR_AVX2  // nobody calls them
#endif

KVLANE_FOR_AVX2 void split_avx2(const std::byte* values, std::size_t count, std::byte* exponents,
                                std::byte* rests) {
  split_loop(values, count, exponents, rests);
}
KVLANE_FOR_AVX2 void join_avx2(const std::byte* exponents, const std::byte* rests,
                               std::size_t count, std::byte* values) {
  join_loop(exponents, rests, count, values);
}

}  // namespace

void split_bytes(ByteView values, std::byte* exponents, std::byte* rests) {
  const std::size_t count = values.size() / 2;
  if (isa_supported(Isa::kAvx2)) return split_avx2(values.data(), count, exponents, rests);
  split_loop(values.data(), count, exponents, rests);
}

void join_bytes(const std::byte* exponents, const std::byte* rests, std::span<std::byte> values) {
  const std::size_t count = values.size() / 2;
  if (isa_supported(Isa::kAvx2)) return join_avx2(exponents, rests, count, values.data());
  join_loop(exponents, rests, count, values.data());
}

}  // namespace kvlane
