// Counter-based random numbers (Philox4x32-10, Salmon et al., SC'11): a pure function of key and
// counter, so that results do not depend on batch, thread count or the order of calls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace kvlane {

using PhiloxCounter = std::array<std::uint32_t, 4>;

// Four independent 32-bit words for this (key, counter).
constexpr PhiloxCounter philox4x32(std::uint64_t key, PhiloxCounter counter) {
  std::uint32_t key_low = static_cast<std::uint32_t>(key);
  std::uint32_t key_high = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key_low,
               static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key_high,
               static_cast<std::uint32_t>(p0)};
    key_low += 0x9E3779B9U;
    key_high += 0xBB67AE85U;
  }
  return counter;
}

// Uniform in [0, 1) with 53 random bits.
constexpr double uniform_unit(std::uint32_t a, std::uint32_t b) {
  return static_cast<double>((std::uint64_t{a} << 32 | b) >> 11) * 0x1p-53;
}

}  // namespace kvlane
