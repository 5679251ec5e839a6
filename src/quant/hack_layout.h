// Slabs that attention computes on as they are (spec/hack.md, which is normative): a value is
// linear in its code, codes lie in the order in which integer dot products take them.
//
//   0              8bd          8(b+c)d
//   +--------------+--------------+------------+------------+
//   | codes of K   | codes of V   | metadata K | metadata V |    b, c bits a code of K, V; d =
//   head_dim
//   +--------------+--------------+------------+------------+
// Attention in the paper's complete form wants sums of the codes of partitions, too: behind all
// else, those of K, then those of V, in the order of entries. They follow from the codes and never
// travel.
//
// A word has 32 bits: of K 32 / b consecutive channels of one token, of V 32 / c tokens of one
// channel. Words of neighbouring tokens (K) or channels (V) are neighbours, so a vector of words is
// as many tokens or channels at once, and sums of products need no step across lanes. Byte k of a
// word holds code k of each of its registers: (word >> b * r) & mask is four codes as bytes, the
// operand of a product of 8-bit integers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/head_widths.h"
#include "format/shape.h"

namespace kvlane::hack {

inline constexpr int kHeadDimMax = 256;
// head_dim is a multiple of it: a word of 2-bit codes of K.
inline constexpr int kHeadDimStep = 16;

// Whose numbers a value is made of. By token or by channel it is m + s * code, with m and s of a
// partition of its token's channels (the paper's K) or of its channel's tokens (the paper's V). By
// both it is m + s * (code - middle), with m of its channel and s of its token.
enum class Axis : std::uint8_t { kToken, kChannel, kBoth };

// The 16-bit type of m and s.
enum class Meta : std::uint8_t { kFp16, kBf16 };

// How K or V of a page is coded.
struct Plane {
  int bits;  // 2, 4 or 8
  Axis axis;
  int partition;  // values that share m and s: channels of a token, or tokens of a channel
  Meta meta;
};

// Of all codes.
constexpr float middle_code(const Plane& plane) {
  return static_cast<float>((1 << plane.bits) - 1) / 2;
}

// By token or by channel: m, then s.
inline constexpr std::size_t kEntryBytes = 4;

constexpr std::size_t codes_bytes(const Plane& plane, int head_dim) {
  return std::size_t{8} * plane.bits * head_dim;
}

// Partitions of a token or of a channel; the last one of a token may be short. Not for kBoth.
constexpr int partitions(const Plane& plane, int head_dim) {
  return plane.axis == Axis::kToken ? (head_dim + plane.partition - 1) / plane.partition
                                    : (kBlockTokens + plane.partition - 1) / plane.partition;
}

// [partitions][64] entries of tokens, [partitions][head_dim] of channels. Not for kBoth.
constexpr int entries(const Plane& plane, int head_dim) {
  return partitions(plane, head_dim) * (plane.axis == Axis::kToken ? kBlockTokens : head_dim);
}

constexpr int entry_of(const Plane& plane, int head_dim, int token, int channel) {
  return plane.axis == Axis::kToken ? channel / plane.partition * kBlockTokens + token
                                    : token / plane.partition * head_dim + channel;
}

// kBoth: m of [head_dim] channels, then s of [64] tokens.
constexpr std::size_t scales_offset(int head_dim) { return std::size_t{2} * head_dim; }

constexpr std::size_t metadata_bytes(const Plane& plane, int head_dim) {
  if (plane.axis == Axis::kBoth) return scales_offset(head_dim) + std::size_t{2} * kBlockTokens;
  return kEntryBytes * entries(plane, head_dim);
}

// Of a sum of the codes of a partition. Not for kBoth.
constexpr std::size_t sum_bytes(const Plane& plane, int head_dim) {
  const int of_all = plane.axis == Axis::kToken ? head_dim : kBlockTokens;
  const int values = plane.partition < of_all ? plane.partition : of_all;
  return values * ((1 << plane.bits) - 1) < 256 ? 1 : 2;
}

constexpr std::size_t sums_bytes(const Plane& plane, int head_dim) {
  return sum_bytes(plane, head_dim) * entries(plane, head_dim);
}

// Where a code is: the word in its section, and the lowest bit there.
struct CodePlace {
  int word;
  int bit;
};

// Of K: word [channel / (32 / b)][token].
constexpr CodePlace key_place(int bits, int token, int channel) {
  const int codes = 32 / bits;
  const int in_word = channel % codes;
  return {channel / codes * kBlockTokens + token, 8 * (in_word % 4) + bits * (in_word / 4)};
}

// The four tokens of register r, class c of V, at bytes 0 ... 3: the order in which scores of a
// tensor core's tile become its next operand (GPU), which vectors on a CPU can permute to.
inline constexpr int kValueClasses = 4;
inline constexpr int kValueRegisters = 4;
constexpr int value_token(int r, int c, int byte) {
  return 32 * (r / 2) + 8 * c + 4 * (byte / 2) + 2 * (r % 2) + byte % 2;
}

// Of V: word [register / (8 / b)][class][channel].
constexpr CodePlace value_place(int bits, int head_dim, int token, int channel) {
  const int r = token / 32 * 2 + token / 2 % 2;
  const int c = token / 8 % 4;
  const int byte = token / 4 % 2 * 2 + token % 2;
  const int registers = 8 / bits;  // of a word
  return {(r / registers * kValueClasses + c) * head_dim + channel,
          8 * byte + bits * (r % registers)};
}

// Offsets from the start of a page; all are multiples of 64.
struct PageLayout {
  std::size_t v_codes, k_metadata, v_metadata;
  std::size_t k_sums, v_sums;  // 0 without sums
  std::size_t bytes;
  std::size_t used;  // what travels: without sums, and without zeros up to the next multiple of 64
};

// `sums` are for partitions only, not for kBoth.
constexpr PageLayout page_layout(const Plane& k, const Plane& v, HeadWidths dims,
                                 bool sums = false) {
  PageLayout layout{};
  layout.v_codes = codes_bytes(k, dims.k);
  layout.k_metadata = layout.v_codes + codes_bytes(v, dims.v);
  const std::size_t k_bytes = metadata_bytes(k, dims.k);
  const std::size_t v_bytes = metadata_bytes(v, dims.v);
  layout.v_metadata = layout.k_metadata + (k_bytes + 63) / 64 * 64;
  layout.bytes = layout.v_metadata + (v_bytes + 63) / 64 * 64;
  if (sums) {
    layout.k_sums = layout.bytes;
    layout.v_sums = layout.k_sums + (sums_bytes(k, dims.k) + 63) / 64 * 64;
    layout.bytes = layout.v_sums + (sums_bytes(v, dims.v) + 63) / 64 * 64;
  }
  layout.used = layout.k_metadata + k_bytes + v_bytes;
  return layout;
}

}  // namespace kvlane::hack
