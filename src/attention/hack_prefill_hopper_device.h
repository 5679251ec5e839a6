// Prefill attention on codes (spec/hack.md) for kernels on sm_90a, by both axes: as
// attention/hack_prefill_device.h has it, but for warpgroups, whose products go on beside all else,
// and with weights in 16 bits. A block of threads is two warpgroups of 64 pairs each. Formulas:
// attention/hack_page.h.
//
// Scores are products of codes in 8 bits. V is opened when it is unpacked, to m + s (c - h) in
// binary16, once for all pairs of the block, and meets weights in binary16. Weights in 8 bits would
// want half of the matrix unit's time for it, but two instructions an output and page, to take its
// sums out of a page's units, and three a weight, to put V's scales in and to find the page's
// largest: more than all else. Here outputs stay where the matrix unit adds to them. The sum of
// weights is that of one more channel of V, of ones.
//
// While page i is scored and V of the page before is added, the threads unpack K of page i + 1 and
// V of page i; then they make weights of the scores while V is still being added. So K and V have
// two places each, one barrier is enough for a page, and pages come by asynchronous copies three
// ahead, to four places.
//
// Tokens are in one order in rows of K and along rows of V: the one in which a word's codes of V
// become pieces of 16 bytes in the thread that has the word, and neighbouring tokens of K rows that
// 8 threads write to all banks. Weights lie in the scores as operands of the next product.
//
// Weights are 2^11 times what they are, so that binary16 has all its digits down to 2^-25 of the
// largest one. A pair's sums run over its pages in order, one page a step, as there.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_prefill_device.h"

namespace kvlane {

inline constexpr int kHackHopperWarpgroups = 2;
inline constexpr int kHackHopperThreads = kHackHopperWarpgroups * gpu::kWarpgroupThreads;

// kDim is head_dim rounded up to 64 or 128.
template <int kDim, int kBits>
struct HackHopperShared {
  static constexpr int kPieces = 8;  // of rows, all of 128 bytes
  static constexpr int kPairs = kHackHopperWarpgroups * 64;
  static constexpr int kRows = kDim + 8;   // of V: one of ones behind the channels, and zeros
  static constexpr int kPlaces = 4;        // of pages
  static constexpr int kParts = kDim / 8;  // pieces of numbers of all channels, in binary16
  static constexpr hack::Plane kPlane{kBits, hack::Axis::kBoth, 0, hack::Meta::kFp16};
  static constexpr int kPageWords =
      static_cast<int>(hack::page_layout(kPlane, kPlane, {kDim, kDim}).bytes / sizeof(gpu::Words4));

  alignas(1024) gpu::Words4 queries[kPairs][kPieces];
  alignas(1024) gpu::Words4 keys[2][kBlockTokens][kPieces];
  union {
    alignas(1024) gpu::Words4 values[2][kRows][kPieces];
    float out[kHackHopperThreads / gpu::kWarpThreads][8][kDim];  // in the end
  };
  gpu::Words4 pages[kPlaces][kPageWords];
  // Queries as they meet means of channels: u, and y - u (attention/hack_prepare_device.h), as
  // operands for 8 channels of the pairs row and row + 8 of a tile, of which the first one is in
  // place row % 2. And these means, of two times eight pages: piece p in place p ^ 4 (page % 2).
  gpu::Words4 parts[2][kPairs / kPrefillRows][8][kParts][2];
  gpu::Words4 means[2][hack_prefill::kPagesTogether][kParts];
  // Of K's tokens, for the columns of scores that a lane has; four more are for the banks' sake.
  alignas(16) float key_scales[2][4][20];
  std::int32_t rows[kPairs];
  float common[kPairs][hack_prefill::kPagesTogether];
};

namespace hack_hopper {

using namespace hack_prefill;

// Weights are 2^11 times what they are beside a maximum that moves only when it is 2^4 too low: so
// they stay below the largest of binary16.
inline constexpr float kWeightBits = 11, kMargin = 4;
// Of no weight, in units of log2.
inline constexpr float kUnseen = -0x1p100F;

// Where a token is in rows of K and along those of V, and back.
KVLANE_DEVICE unsigned place_of_token(unsigned token) {
  return token / 8 % 4 * 16 + token / 32 * 8 + token % 2 * 4 + token / 2 % 2 * 2 + token / 4 % 2;
}
KVLANE_DEVICE unsigned token_at(unsigned place) {
  return place / 8 % 2 * 32 + place / 16 * 8 + place % 2 * 4 + place / 2 % 2 * 2 + place / 4 % 2;
}

// A number twice, in binary16, which has it and no smaller than 2^-14.
constexpr std::uint32_t twice(float number) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  const std::uint32_t magnitude = (bits >> 13 & 0x3FFFFU) - (112U << 10);
  const std::uint32_t half = (bits >> 16 & 0x8000U) | magnitude;
  return half << 16 | half;
}

// The same, from an exchange: so it stays in a register, where the compiler would work it out anew
// for every page. And what all lanes have.
template <class Thread>
KVLANE_DEVICE std::uint32_t kept(Thread& t, std::uint32_t x) {
  return t.shuffle(x, t.lane());
}
template <class Thread>
KVLANE_DEVICE std::uint32_t kept_by_all(Thread& t, std::uint32_t x) {
  return t.shuffle(t.lane() == 0 ? x : 0, 0);
}

KVLANE_DEVICE std::uint32_t word_at(const Words4* words, unsigned offset) {
  return reinterpret_cast<const std::uint32_t*>(words)[offset / sizeof(std::uint32_t)];
}

// 16 codes of a token as c', in an order that suits their bits; and codes of queries in that order.
// `all` are the four of 2 bits.
inline constexpr std::uint32_t kSignedCodes = 0x0301FFFD;
template <int kBits>
KVLANE_DEVICE Words4 signed_piece(const std::uint32_t (&words)[kBits / 2], std::uint32_t all) {
  if constexpr (kBits == 2) {
    // A digit is one code, and chooses one byte.
    constexpr std::uint32_t kCodes = 0x33333333;
    const std::uint32_t even = words[0] & kCodes, odd = words[0] >> 2 & kCodes;
    return {{byte_perm(all, all, even), byte_perm(all, all, even >> 16), byte_perm(all, all, odd),
             byte_perm(all, all, odd >> 16)}};
  } else {
    return {{signed_codes<4, 0>(words[0]), signed_codes<4, 4>(words[0]),
             signed_codes<4, 0>(words[1]), signed_codes<4, 4>(words[1])}};
  }
}
template <int kBits>
KVLANE_DEVICE Words4 query_piece(const Words4& q) {
  if constexpr (kBits == 2) {
    return {{byte_perm(q.w[0], q.w[2], 0x5140), byte_perm(q.w[0], q.w[2], 0x7362),
             byte_perm(q.w[1], q.w[3], 0x5140), byte_perm(q.w[1], q.w[3], 0x7362)}};
  } else {
    return q;
  }
}

// Codes of V become c - h in binary16: pair j of the piece for register 2 r ..., of a channel's
// words of one class. Bits of a code, in their place in a mantissa of 2^10, are so much of 2^10,
// whose bits `ten` has twice.
template <int kBits>
KVLANE_DEVICE std::uint32_t centred_pair(const std::uint32_t (&words)[kBits / 2], std::uint32_t ten,
                                         int r, int j) {
  constexpr int kShift = kBits == 2 ? 2 : 1;  // so that h has a digit in the mantissa
  const int in_word = kBits == 2 ? 2 * r + j % 2 : j % 2;
  const int at = kBits * in_word + kShift;
  const std::uint32_t word = words[kBits == 2 ? 0 : r];
  const std::uint32_t placed = j / 2 == 0 ? word << kShift : word >> (8 - kShift);
  const std::uint32_t bits = (placed & ((1U << kBits) - 1) * 0x00010001U << at) | ten;
  const float unit = 1.0F / static_cast<float>(1 << at);
  constexpr float kMiddle = static_cast<float>((1 << kBits) - 1) / 2;
  return fused_fp16(bits, twice(unit), twice(-(1024 * unit + kMiddle)));
}

// What a thread unpacks of every page: offsets in bytes in a page, and where it goes.
struct Unpacking {
  unsigned key, key_to;      // one token's; further pieces are 4 behind it
  unsigned scale, scale_to;  // of K
  unsigned value, value_to;  // one class of tokens; further channels are 64 behind it
  unsigned mean;             // of this channel
  std::uint32_t which_mean;  // of its word, twice
  unsigned scales;           // of its tokens
  std::uint32_t ten;         // 2^10 in binary16, twice
  std::uint32_t all;         // kSignedCodes
};

template <class Thread>
KVLANE_DEVICE Unpacking unpacking_of(Thread& t, const HackPrefillBatch& batch) {
  const unsigned index = t.index(), d = batch.head_dim;
  const unsigned token = index % kBlockTokens, piece = index / kBlockTokens;
  const unsigned row = place_of_token(token), of = token_at(token);
  const unsigned channel = index % 64, of_class = index / 64;
  const auto after_means = static_cast<unsigned>(hack::scales_offset(batch.head_dim));
  const auto k = static_cast<unsigned>(batch.layout.k_metadata);
  const auto v = static_cast<unsigned>(batch.layout.v_metadata);
  return {.key = kept(t, 4 * (kBlockTokens * piece * (batch.key_bits / 2) + token)),
          .key_to = kept(t, 128 * row + 16 * (piece ^ row % 8)),
          .scale = kept(t, k + after_means + 2 * of),
          .scale_to = kept(t, 20 * (token % 8 / 2) + token / 8 * 2 + token % 2),
          .value = kept(t, unsigned(batch.layout.v_codes) + 4 * (of_class * d + channel)),
          .value_to = kept(t, 128 * channel + 16 * (2 * of_class ^ channel % 8)),
          .mean = kept(t, v + 2 * (channel - channel % 2)),
          .which_mean = kept(t, channel % 2 == 0 ? 0x1010 : 0x3232),
          .scales = kept(t, v + after_means + 16 * of_class),
          .ten = kept_by_all(t, 0x64006400),
          .all = kept_by_all(t, kSignedCodes)};
}

// By all threads. What is behind head_dim meets codes of 0 in the queries.
template <int kDim, int kBits, class Thread>
KVLANE_DEVICE void unpack_keys(Thread& t, const Unpacking& own, int page,
                               HackHopperShared<kDim, kBits>& shared) {
  const Words4* const words = shared.pages[page % shared.kPlaces];
  Words4* const to = shared.keys[page % 2][0];
  KVLANE_UNROLL
  for (unsigned i = 0; i < kDim / 64; ++i) {
    std::uint32_t codes[kBits / 2];
    KVLANE_UNROLL
    for (unsigned j = 0; j < kBits / 2; ++j) {
      codes[j] = word_at(words, own.key + 4 * kBlockTokens * (4 * i * (kBits / 2) + j));
    }
    to[own.key_to / sizeof(Words4) ^ 4 * i] = signed_piece<kBits>(codes, own.all);
  }
  if (t.index() < kBlockTokens) {
    const unsigned scale = load_aligned_half(reinterpret_cast<const std::byte*>(words) + own.scale);
    float* const scales = shared.key_scales[page % 2][0];
    scales[own.scale_to] = low_fp16(scale);
  }
}

// By all threads.
template <int kDim, int kBits>
KVLANE_DEVICE void unpack_values(const Unpacking& own, int page, unsigned head_dim,
                                 HackHopperShared<kDim, kBits>& shared) {
  const Words4* const words = shared.pages[page % shared.kPlaces];
  Words4* const to = shared.values[page % 2][0];
  const Words4* const of_tokens = words + own.scales / sizeof(Words4);
  const Words4 scales[2] = {of_tokens[0], of_tokens[4]};
  KVLANE_UNROLL
  for (unsigned i = 0; i < kDim / 64; ++i) {
    std::uint32_t codes[kBits / 2];
    KVLANE_UNROLL
    for (unsigned r = 0; r < kBits / 2; ++r) {
      codes[r] = word_at(words, own.value + 4 * (64 * i + hack::kValueClasses * r * head_dim));
    }
    const std::uint32_t mean = byte_perm(word_at(words, own.mean + 128 * i), 0, own.which_mean);
    KVLANE_UNROLL
    for (int r = 0; r < 2; ++r) {
      Words4 piece;
      KVLANE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const std::uint32_t(&s)[4] = scales[r].w;
        const std::uint32_t scale = byte_perm(s[j % 2], s[2 + j % 2], j / 2 == 0 ? 0x5410 : 0x7632);
        piece.w[j] = fused_fp16(centred_pair<kBits>(codes, own.ten, r, j), scale, mean);
      }
      // cppcheck-suppress uninitvar ; the loop fills it
      to[(own.value_to / sizeof(Words4) ^ unsigned(r)) + 64 * shared.kPieces * i] = piece;
    }
  }
}

// The lane's pairs: rows lane / 4 and lane / 4 + 8 of those of the warp.
struct Pairs {
  float max[2];    // what weights are beside, in units of log2
  float most[2];   // the largest of the pages so far
  float scale[2];  // half of a query's
  std::int32_t end[2];
};

// Scores of a page become weights, in units of 2^-11, and `keep` what is left of those so far.
// Whether any lane of the warp has less than all.
template <class Thread>
KVLANE_DEVICE bool weigh(Thread& t, const std::int32_t (&dot)[32], const float* key_scales,
                         const float (&common)[2], int page, Pairs& pairs, float (&keep)[2],
                         float (&weights)[32]) {
  KVLANE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const Floats4 s = load_floats(key_scales + 4 * i);
    KVLANE_UNROLL
    for (int j = 8 * i; j < 8 * i + 8; ++j) {
      weights[j] = static_cast<float>(dot[j]) * s.x[j / 4 % 2 * 2 + j % 2];
    }
  }
  bool moved = false;
  KVLANE_UNROLL
  for (int half = 0; half < 2; ++half) {
    float seen = weights[2 * half];
    KVLANE_UNROLL
    for (int i = 1; i < 16; ++i) seen = larger(seen, weights[i / 2 * 4 + 2 * half + i % 2]);
    seen = fused(prefill::max_of_columns(t, seen), pairs.scale[half], common[half]);
    const bool visible = page < pairs.end[half];
    const float old = pairs.max[half];
    const float max = visible && seen > old + kMargin ? seen : old;
    pairs.max[half] = max;
    pairs.most[half] = visible ? larger(pairs.most[half], seen) : pairs.most[half];
    moved = moved || max != old;
    keep[half] = power_of_two(old - max);
    const float base = visible ? common[half] - max + kWeightBits : kUnseen;
    KVLANE_UNROLL
    for (int i = 0; i < 16; ++i) {
      float& x = weights[i / 2 * 4 + 2 * half + i % 2];
      x = power_of_two(fused(x, pairs.scale[half], base));
    }
  }
  return t.ballot(moved) != 0;
}

// Weights as operands, 16 tokens each.
KVLANE_DEVICE void pack(const float (&weights)[32], std::uint32_t (&operands)[4][4]) {
  KVLANE_UNROLL
  for (int i = 0; i < 16; ++i) {
    operands[i / 4][i % 4] = pack_fp16(weights[2 * i], weights[2 * i + 1]);
  }
}

// Of eight codes, as pairs of binary16.
KVLANE_DEVICE Words4 codes_in_fp16(std::uint32_t low, std::uint32_t high) {
  // With 128 more they are unsigned, and the low bits of 2^10 + 128.
  constexpr std::uint32_t kMore = 0x80808080, kTen = 0x64646464;
  constexpr std::uint32_t kLess = twice(-1152);
  const auto pair = [&](std::uint32_t codes, std::uint32_t which) {
    return fused_fp16(byte_perm(codes ^ kMore, kTen, which), twice(1), kLess);
  };
  return {{pair(low, 0x4140), pair(low, 0x4342), pair(high, 0x4140), pair(high, 0x4342)}};
}

// A block's work: everything below is by all of its threads.
template <int kDim, int kBits, class Thread>
struct Tile {
  using Shared = HackHopperShared<kDim, kBits>;
  static constexpr int kOutputs = kDim / 2 + 4;  // of a lane; the last four are of ones

  Thread& t;
  const HackPrefillBatch& batch;
  Shared& shared;
  const std::int32_t* ids;  // of the pages
  const std::byte* slabs;   // the KV head's page of block 0
  int count;                // of pages
  Unpacking unpacking;
  std::int32_t next = 0;        // the id of the page that is copied next
  std::int32_t next_means = 0;  // of the one whose means are
  Pairs pairs{};
  std::int32_t dot[32];
  float weights[32];
  std::uint32_t operands[4][4];
  float out[kOutputs];

  KVLANE_DEVICE int pair_of_half(int half) const { return pair_of<1>(t, 0, half); }

  // Begins to copy a page if there is one, and asks for the next one's id.
  KVLANE_DEVICE void copy_page(int page) {
    if (page < count) {
      const std::byte* const from = slabs + next * batch.block_bytes;
      Words4* const to = shared.pages[page % Shared::kPlaces];
      const auto bytes = static_cast<unsigned>(batch.layout.bytes);
      KVLANE_UNROLL
      for (unsigned i = 0; i < Shared::kPageWords; i += kHackHopperThreads) {
        const unsigned word = t.index() + i;
        if (16 * word < bytes) t.copy_async(to[word], from + 16 * word, true);
      }
      if (page + 1 < count) next = ids[page + 1];
    }
    t.close_copies();
  }

  // The same of the means of eight pages, of which a thread copies one piece; into the group of
  // copies that is closed next.
  KVLANE_DEVICE void ask_for_means(int together) {
    const int page = kPagesTogether * together + t.index() / Shared::kParts;
    if (t.index() < kDim && page < count) next_means = ids[page];
  }
  KVLANE_DEVICE void copy_means(int together) {
    const int row = t.index() / Shared::kParts, piece = t.index() % Shared::kParts;
    if (t.index() >= kDim) return;
    const bool wanted = kPagesTogether * together + row < count && 8 * piece < batch.head_dim;
    const std::byte* const from = slabs + next_means * batch.block_bytes + batch.layout.k_metadata;
    t.copy_async(shared.means[together % 2][row][piece ^ 4 * (row % 2)], from + 16 * piece, wanted);
  }
  // What all scores of the warp's pairs have in common, of eight pages.
  KVLANE_DEVICE void multiply_means(int together) {
    const int lane = t.lane(), column = lane % 4, row = lane / 4, odd = row % 2;
    float d[4] = {};
    KVLANE_UNROLL
    for (int piece = column; piece < Shared::kParts + column; piece += 4) {
      const Words4 m = shared.means[together % 2][row][piece ^ 4 * odd];
      KVLANE_UNROLL
      for (int part = 1; part >= 0; --part) {
        const Words4(&y)[2] = shared.parts[part][t.warp()][row][piece];
        t.mma_fp16(d, y[odd].w, m.w[0], m.w[1]);
        t.mma_fp16(d, y[1 - odd].w, m.w[2], m.w[3]);
      }
    }
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) {
      shared.common[pair_of_half(i / 2)][2 * column + i % 2] = 2 * pairs.scale[i / 2] * d[i];
    }
    t.sync_warp();
  }

  KVLANE_DEVICE void share_part(int part, int pair, int piece, const Words4& y) {
    Words4(&to)[2] = shared.parts[part][pair / kPrefillRows][pair % 8][piece];
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) to[i / 2 ^ pair % 2].w[i % 2 * 2 + pair / 8 % 2] = y.w[i];
  }

  KVLANE_DEVICE void begin(const PrefillUnit& unit, int group) {
    copy_queries(t, batch, unit, group, shared);
    KVLANE_NO_UNROLL
    for (int i = t.index(); i < Shared::kPairs * Shared::kParts; i += t.threads()) {
      const int pair = i / Shared::kParts, piece = i % Shared::kParts;
      const bool wanted = pair < unit.pairs && 8 * piece < batch.head_dim;
      const std::size_t row =
          wanted ? prefill::row_of(batch, unit, group, unit.first_pair + pair) : 0;
      const std::byte* const rests = batch.queries.rests + row * (2 * batch.head_dim);
      share_part(1, pair, piece, decode::load_if(wanted, rests, 16 * piece));
    }
    for (int pair = t.index(); pair < Shared::kPairs; pair += t.threads()) {
      const bool there = pair < unit.pairs;
      const std::size_t row =
          there ? prefill::row_of(batch, unit, group, unit.first_pair + pair) : 0;
      shared.rows[pair] = there ? static_cast<std::int32_t>(row) : -1;
    }
    for (int i = t.index(); i < 2 * 8 * Shared::kPieces; i += t.threads()) {
      const int row = i / Shared::kPieces % 8;
      const std::uint32_t pair = row == 0 ? twice(1) : 0;
      shared.values[i / (8 * Shared::kPieces)][kDim + row][i % Shared::kPieces] = {
          {pair, pair, pair, pair}};
    }
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int pair = pair_of_half(half);
      const int row = (unit.first_pair + pair) / group;
      pairs.end[half] =
          (unit.position + row) / kBlockTokens - batch.window.recent - batch.window.sink;
      pairs.max[half] = pairs.most[half] = prefill::lowest();
      pairs.scale[half] = 0;
      if (pair < unit.pairs) {
        const std::size_t at = prefill::row_of(batch, unit, group, unit.first_pair + pair);
        pairs.scale[half] = batch.queries.scales[at] * 0.5F;
      }
    }
    KVLANE_UNROLL
    for (int i = 0; i < kOutputs; ++i) out[i] = 0;
  }
  // Behind the copies of begin(): codes of queries, each piece by the thread that has copied it.
  KVLANE_DEVICE void order_queries() {
    const int piece = t.index() % Shared::kPieces;
    KVLANE_NO_UNROLL
    for (int row = t.index() / Shared::kPieces; row < Shared::kPairs;
         row += t.threads() / Shared::kPieces) {
      Words4& codes = shared.queries[row][piece ^ row % 8];
      const Words4 q = codes;
      codes = query_piece<kBits>(q);
      if (16 * piece >= kDim) continue;
      share_part(0, row, 2 * piece, codes_in_fp16(q.w[0], q.w[1]));
      share_part(0, row, 2 * piece + 1, codes_in_fp16(q.w[2], q.w[3]));
    }
  }

  KVLANE_DEVICE void score(int page) {
    const Words4& queries = shared.queries[t.warp() / 4 * 64][0];
    const Words4& keys = shared.keys[page % 2][0][0];
    t.template multiply_s8s8<false>(dot, queries, keys, 0);
    KVLANE_UNROLL
    for (int step = 1; step < kDim / 32; ++step) {
      t.template multiply_s8s8<true>(dot, queries, keys, step);
    }
    t.close_products();
  }
  KVLANE_DEVICE void add_values(int page) {
    KVLANE_UNROLL
    for (int step = 0; step < kBlockTokens / 16; ++step) {
      t.multiply_fp16(out, operands[step], shared.values[page % 2][0][0], step);
    }
    t.close_products();
  }

  // K of the page behind this one and V of this one, for products of the next page.
  KVLANE_DEVICE void unpack(int page) {
    unpack_keys(t, unpacking, page + 1, shared);
    unpack_values(unpacking, page, batch.head_dim, shared);
    t.publish();
  }

  KVLANE_DEVICE bool weigh_page(int page, float (&keep)[2]) {
    float common[2];
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      common[half] = shared.common[pair_of_half(half)][page % kPagesTogether];
    }
    return weigh(t, dot, shared.key_scales[page % 2][t.lane() % 4], common, page, pairs, keep,
                 weights);
  }

  // One more page has come.
  KVLANE_DEVICE void end_page() {
    t.template wait_copies_but<1>();
    t.sync_block();
  }

  KVLANE_DEVICE void first_page() {
    next = ids[0];
    ask_for_means(0);
    copy_means(0);
    ask_for_means(1);
    KVLANE_NO_UNROLL
    for (int page = 0; page < 3; ++page) copy_page(page);
    t.template wait_copies_but<1>();
    order_queries();
    t.sync_block();
    unpack_keys(t, unpacking, 0, shared);
    t.publish();
    end_page();
    copy_page(3);
    multiply_means(0);
    t.begin_products();
    score(0);
    unpack(0);
    t.template wait_products_but<0>(dot);
    float keep[2];
    weigh_page(0, keep);
    pack(weights, operands);
    end_page();
  }

  KVLANE_DEVICE void page(int page) {
    t.begin_products();
    score(page);
    add_values(page - 1);
    if (page % kPagesTogether == 0) {
      multiply_means(page / kPagesTogether);
      ask_for_means(page / kPagesTogether + 1);
    }
    if (page % kPagesTogether == 1) copy_means(page / kPagesTogether + 1);
    copy_page(page + 3);
    unpack(page);
    t.template wait_products_but<1>(dot);
    float keep[2];
    const bool moved = weigh_page(page, keep);
    t.settle(weights);
    // The wait is in both branches: before them the compiler would put it before the powers of two.
    // States move seldom, after the first pages.
    if (moved) {
      t.template wait_products_but<0>(out, operands[0], operands[1], operands[2], operands[3]);
      KVLANE_UNROLL
      for (int i = 0; i < kOutputs; ++i) out[i] *= keep[i % 4 / 2];
    } else {
      t.template wait_products_but<0>(out, operands[0], operands[1], operands[2], operands[3]);
    }
    pack(weights, operands);
    end_page();
  }

  KVLANE_DEVICE void last_values() {
    t.begin_products();
    add_values(count - 1);
    t.template wait_products_but<0>(out);
  }

  KVLANE_DEVICE void store() {
    const int own = t.lane() / 4, column = t.lane() % 4;
    float(&states)[8][kDim] = shared.out[t.warp()];
    KVLANE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float unit = power_of_two(pairs.max[half] - pairs.most[half] - kWeightBits);
      KVLANE_UNROLL
      for (int part = 0; part < kDim / 8; ++part) {
        float* const to = states[own] + ((8 * part + 2 * column) ^ own % 4 * 8);
        to[0] = out[4 * part + 2 * half] * unit;
        to[1] = out[4 * part + 2 * half + 1] * unit;
      }
      const int pair = pair_of_half(half);
      const std::int32_t row = shared.rows[pair];
      if (column == 0 && row >= 0) {
        const float sum = out[kDim / 2 + 2 * half] * unit;
        batch.max[row] = sum == 0 ? minus_infinity() : pairs.most[half];
        batch.sum[row] = sum;
      }
      t.sync_warp();
      store_rows(t, batch, shared.rows + (pair - own), states);
      t.sync_warp();
    }
  }
};

}  // namespace hack_hopper

// By all threads of a block of kHackHopperThreads, as attend_coded_tile() has it. batch.key_bits
// and batch.value_bits are kBits.
template <int kDim, int kBits, class Thread>
KVLANE_DEVICE void attend_coded_tile_on_hopper(Thread& t, const HackPrefillBatch& batch,
                                               const PrefillUnit& unit,
                                               HackHopperShared<kDim, kBits>& shared) {
  const int group = batch.heads / batch.kv_heads;
  const int own = (prefill_tokens(unit, group) - 1) / kBlockTokens;  // of the last pair
  const int first = batch.window.sink, count = own - batch.window.recent - first;
  hack_hopper::Tile<kDim, kBits, Thread> tile{
      t,
      batch,
      shared,
      batch.tables + std::size_t(unit.sequence) * batch.table_stride + first,
      batch.slabs + unit.kv_head * batch.layout.bytes,
      count,
      hack_hopper::unpacking_of(t, batch)};
  tile.begin(unit, group);
  t.sync_block();
  if (count > 0) {
    tile.first_page();
    KVLANE_NO_UNROLL
    for (int page = 1; page < count; ++page) tile.page(page);
    tile.last_values();
  }
  t.wait_copies();
  t.sync_block();
  tile.store();
}

}  // namespace kvlane
