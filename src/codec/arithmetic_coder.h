// An arithmetic coder over a fixed model: one stream of symbols to bytes and back.
//
// The classical one: 32 bits of low and high, counts out of 2^16, carries kept as pending bits
// (spec/slab_cachegen.md, section 5). A stream takes at most 2 bytes more than the entropy of its
// symbols under the model, but for rounding well below 1 %. Sealed slabs are coded by
// codec/lane_coder.h instead: this one works bit by bit, and stands for what CacheGen's public code
// transmits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "base/bytes.h"

namespace kvlane {

// What all counts of a model add up to.
inline constexpr std::uint32_t kModelTotal = 1U << 16;

// firsts: [symbols + 1] for at most 256 symbols, from 0 to kModelTotal; symbol s owns
// [firsts[s], firsts[s + 1]), which is not empty for symbols that occur.

// The most bytes that so many symbols can take.
constexpr std::size_t arithmetic_bound(std::size_t symbols) {
  return 2 * symbols + symbols / 1000 + 2;
}

// Returns how many bytes of `destination`, which has arithmetic_bound() of them, were written.
// Trailing zero bytes are left out.
std::size_t arithmetic_encode(std::span<const std::uint8_t> symbols,
                              std::span<const std::uint32_t> firsts,
                              std::span<std::byte> destination);

// Fills `symbols` from any bytes: what the encoder did not write gives some symbols of the model.
void arithmetic_decode(ByteView coded, std::span<const std::uint32_t> firsts,
                       std::span<std::uint8_t> symbols);

}  // namespace kvlane
