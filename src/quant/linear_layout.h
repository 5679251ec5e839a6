// Slabs with linear codes (spec/slab_linear.md, which is normative): a value is m + s * code. What
// the formats of this family choose, and where the parts of a page lie.
//
//   0            8bd          16bd        each section at a multiple of 64
//   +------------+------------+------------+------------+
//   | codes of K | codes of V | metadata K | metadata V |     b bits a code, d = head_dim
//   +------------+------------+------------+------------+
// Codes lie in words of 16 bits along the tokens: word (i, c) has the codes of tokens n i ... n i +
// n - 1 of channel c, n = 16 / b. Codes of 6 bits are a plane of 4 and a plane of 2.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/head_widths.h"
#include "format/shape.h"

namespace kvlane::linear {

inline constexpr int kHeadDimMax = 256;
inline constexpr std::size_t kSectionAlignment = 64;

// What codes stand for: c; c minus half of what the bits can say; small floating-point numbers.
enum class CodeKind : std::uint8_t {
  kUint2,
  kUint4,
  kUint8,
  kSint4,
  kSint8,
  kE4m3,
  kE5m2,
  kE2m3,
  kE3m2,
  kE2m1
};

// Which values share an entry of metadata: all of K (or V) in a page; some neighbouring channels of
// a token; some consecutive tokens of a channel.
enum class Groups : std::uint8_t { kPage, kRow, kColumn };

// s as a power of two; s; m and s, in fp16. The first is for floating-point codes, the second for
// kSint, the third for kUint.
enum class Entry : std::uint8_t { kE8m0, kScale, kMinScale };

// How K or V of a page is coded.
struct Plane {
  CodeKind code;
  Groups groups;
  int group;  // its channels or tokens; a row's last group may be shorter. kPage: any
  Entry entry;
  bool saturates;  // kE8m0: OCP MX's rule of the scale, else that of FP8
};

// Sign, exponent and mantissa from the top.
struct SmallFloat {
  int mantissa_bits;
  int bias;
  int emax;               // exponent of the largest value
  std::uint32_t largest;  // the code of it
};

constexpr SmallFloat small_float(CodeKind code) {
  switch (code) {
    case CodeKind::kE4m3: return {3, 7, 8, 0x7e};
    case CodeKind::kE5m2: return {2, 15, 15, 0x7b};
    case CodeKind::kE2m3: return {3, 1, 2, 0x1f};
    case CodeKind::kE3m2: return {2, 3, 4, 0x1f};
    default: return {1, 1, 2, 0x07};  // kE2m1
  }
}

constexpr bool is_float(CodeKind code) { return code >= CodeKind::kE4m3; }

constexpr int code_bits(CodeKind code) {
  switch (code) {
    case CodeKind::kUint2: return 2;
    case CodeKind::kUint4:
    case CodeKind::kSint4:
    case CodeKind::kE2m1: return 4;
    case CodeKind::kE2m3:
    case CodeKind::kE3m2: return 6;
    default: return 8;
  }
}

// What is subtracted from integer codes.
constexpr int code_offset(CodeKind code) {
  return code == CodeKind::kSint4 ? 8 : code == CodeKind::kSint8 ? 128 : 0;
}

constexpr std::size_t codes_bytes(const Plane& plane, int head_dim) {
  return std::size_t{8} * code_bits(plane.code) * head_dim;
}

constexpr int row_groups(const Plane& plane, int head_dim) {
  return (head_dim + plane.group - 1) / plane.group;
}

// kRow: [row_groups][64]; kColumn: [64 / group][head_dim].
constexpr int entries(const Plane& plane, int head_dim) {
  switch (plane.groups) {
    case Groups::kPage: return 1;
    case Groups::kRow: return row_groups(plane, head_dim) * kBlockTokens;
    default: return kBlockTokens / plane.group * head_dim;
  }
}

constexpr std::size_t entry_bytes(Entry entry) {
  return entry == Entry::kE8m0 ? 1 : entry == Entry::kScale ? 2 : 4;
}

constexpr std::size_t metadata_bytes(const Plane& plane, int head_dim) {
  return entry_bytes(plane.entry) * entries(plane, head_dim);
}

// Offsets from the start of a page.
struct PageLayout {
  std::size_t k_codes, v_codes, k_metadata, v_metadata;
  std::size_t bytes;  // a multiple of kSectionAlignment
  std::size_t used;   // without gaps
};

constexpr PageLayout page_layout(const Plane& k, const Plane& v, HeadWidths dims) {
  const auto padded = [](std::size_t x) {
    return (x + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
  };
  PageLayout layout{};
  layout.v_codes = padded(codes_bytes(k, dims.k));
  layout.k_metadata = layout.v_codes + padded(codes_bytes(v, dims.v));
  layout.v_metadata = layout.k_metadata + padded(metadata_bytes(k, dims.k));
  layout.bytes = layout.v_metadata + padded(metadata_bytes(v, dims.v));
  layout.used = codes_bytes(k, dims.k) + codes_bytes(v, dims.v) + metadata_bytes(k, dims.k) +
                metadata_bytes(v, dims.v);
  return layout;
}

}  // namespace kvlane::linear
