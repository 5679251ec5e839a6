// Prefill attention on codes by warpgroups (attention/hack_prefill_hopper_device.h): what a block
// of threads has in shared memory, and the warpgroup that brings pages there.
//
// Pages come by copies of a whole page, which one thread begins, to four places; means of channels
// by copies of their own, eight pages before their page: those of eight pages are multiplied at
// once. A thread reads its part of a page, writes K for scores as soon as the stage is free, then
// opens V, which is needed half a page later. What it writes products find behind a fence of its
// own and an arrival of its warp.
//
// Tokens are in one order in rows of K and along rows of V: the one in which a word's codes of V
// become pieces of 16 bytes in the thread that has the word, and neighbouring tokens of K rows that
// 8 threads write to all banks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_prefill_device.h"

namespace kvlane {

// Of a block: two that score, and one that brings pages.
inline constexpr int kHackHopperScoring = 2;
inline constexpr int kHackHopperThreads = (kHackHopperScoring + 1) * gpu::kWarpgroupThreads;
// Registers that threads begin with, where they are the only block of a multiprocessor, and have
// then: what scoring threads take the others must have left, or they wait for ever.
inline constexpr int kHackHopperRegisters = 65536 / kHackHopperThreads / 8 * 8;
inline constexpr int kHackHopperScoringRegisters = 216, kHackHopperBringingRegisters = 72;
static_assert(kHackHopperScoring * kHackHopperScoringRegisters + kHackHopperBringingRegisters <=
              (kHackHopperScoring + 1) * kHackHopperRegisters);

// kDim is head_dim rounded up to 64 or 128.
template <int kDim, int kBits>
struct HackHopperShared {
  static constexpr int kPieces = 8;  // of rows, all of 128 bytes
  static constexpr int kPairs = kHackHopperScoring * 64;
  static constexpr int kWarps = kPairs / kPrefillRows;  // that score
  static constexpr int kRows = kDim + 8;   // of V: one of ones behind the channels, and zeros
  static constexpr int kStages = 3;        // of K, and of V
  static constexpr int kPlaces = 4;        // of pages
  static constexpr int kParts = kDim / 8;  // pieces of numbers of all channels, in binary16
  static constexpr hack::Plane kPlane{kBits, hack::Axis::kBoth, 0, hack::Meta::kFp16};
  static constexpr int kPageWords =
      static_cast<int>(hack::page_layout(kPlane, kPlane, {kDim, kDim}).bytes / sizeof(gpu::Words4));

  alignas(1024) gpu::Words4 queries[kPairs][kPieces];
  alignas(1024) gpu::Words4 keys[kStages][kBlockTokens][kPieces];
  alignas(1024) gpu::Words4 values[kStages][kRows][kPieces];
  alignas(128) gpu::Words4 pages[kPlaces][kPageWords];
  // Queries of a warp as they meet means of channels: u, and y - u
  // (attention/hack_prepare_device.h), as operands for 8 channels of the pairs row and row + 8, of
  // which the first one is in place row % 2.
  gpu::Words4 parts[kWarps][2][8][kParts][2];
  // These means, of two times eight pages; four pieces more are for the banks' sake.
  gpu::Words4 means[2 * hack_prefill::kPagesTogether][kParts + 4];
  // Of K's tokens, for the columns of scores that a lane has; four more are for the banks' sake.
  alignas(16) float key_scales[kStages][4][20];
  std::int32_t rows[kPairs];
  // What all scores of a pair have in common, but for its scale, of two times eight pages.
  float common[2][kPairs][hack_prefill::kPagesTogether];
  // Queries are there, as they meet means.
  gpu::Arrivals queries_there;
  // A page is there, as it comes from memory.
  gpu::Arrivals first_means_there, pages_there[kPlaces];
  // A stage's K (with its scales), or V, is there; or is no longer needed.
  gpu::Arrivals keys_there[kStages], values_there[kStages];
  gpu::Arrivals keys_done[kStages], values_done[kStages];
};

namespace hack_hopper {

using namespace hack_prefill;

// The stage of a page, and the parity of the stage's phase in which it is there.
template <int kStages>
struct Stage {
  int index = 0;
  unsigned parity = 0;
  KVLANE_DEVICE void advance() {
    const bool last = index == kStages - 1;
    index = last ? 0 : index + 1;
    parity ^= last ? 1 : 0;
  }
  KVLANE_DEVICE Stage before() const {
    const bool first = index == 0;
    return {first ? kStages - 1 : index - 1, parity ^ (first ? 1U : 0U)};
  }
};

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
  unsigned key, key_to;      // one token's; further pieces are 2 behind it
  unsigned scale, scale_to;  // of K
  unsigned value, value_to;  // one class of tokens; further channels are 32 behind it
  unsigned mean;             // of this channel
  unsigned scales;           // of its tokens
  std::uint32_t ten;         // 2^10 in binary16, twice
  std::uint32_t all;         // kSignedCodes
};

// The warpgroup that brings pages: everything below is by all of its threads. K of a page is there
// for scores before V is.
template <int kDim, int kBits, class Thread>
struct Bringer {
  using Shared = HackHopperShared<kDim, kBits>;
  static constexpr int kThreads = gpu::kWarpgroupThreads;
  // All eight pages' means are there before the first of these pages is.
  static constexpr int kMeansAhead = kPagesTogether;
  // Those of 16 pages before, in their place, have been multiplied when they are copied: a page
  // that all have read is behind that page.
  static_assert(kMeansAhead + Shared::kPlaces - 1 < 2 * kPagesTogether);

  Thread& t;
  const HackPrefillBatch& batch;
  Shared& shared;
  const std::int32_t* ids;  // of the pages
  const std::byte* slabs;   // the KV head's page of block 0
  int count;                // of pages
  unsigned index;           // of the thread in its warpgroup
  Unpacking own{};
  std::int32_t next = 0;        // the id of the page that is copied next
  std::int32_t next_means = 0;  // of the one whose means are

  KVLANE_DEVICE void prepare() {
    const unsigned d = batch.head_dim;
    const unsigned token = index % kBlockTokens, piece = index / kBlockTokens;
    const unsigned row = place_of_token(token), of = token_at(token);
    const unsigned channel = index % kWarpThreads, of_class = index / kWarpThreads;
    const auto after_means = static_cast<unsigned>(hack::scales_offset(batch.head_dim));
    const auto k = static_cast<unsigned>(batch.layout.k_metadata);
    const auto v = static_cast<unsigned>(batch.layout.v_metadata);
    own = {.key = kept(t, 4 * (kBlockTokens * piece * (kBits / 2) + token)),
           .key_to = kept(t, 128 * row + 16 * (piece ^ row % 8)),
           .scale = kept(t, k + after_means + 2 * of),
           .scale_to = kept(t, 20 * (token % 8 / 2) + token / 8 * 2 + token % 2),
           .value = kept(t, unsigned(batch.layout.v_codes) + 4 * (of_class * d + channel)),
           .value_to = kept(t, 128 * channel + 16 * (2 * of_class ^ channel % 8)),
           .mean = kept(t, v + 2 * channel),
           .scales = kept(t, v + after_means + 16 * of_class),
           .ten = kept_by_all(t, 0x64006400),
           .all = kept_by_all(t, kSignedCodes)};
    for (unsigned i = index; i < Shared::kStages * 8 * Shared::kPieces; i += kThreads) {
      const unsigned in_stage = i / Shared::kPieces % 8;
      const std::uint32_t pair = in_stage == 0 ? twice(1) : 0;
      shared.values[i / (8 * Shared::kPieces)][kDim + in_stage][i % Shared::kPieces] = {
          {pair, pair, pair, pair}};
    }
    // Numbers of channels behind head_dim.
    for (unsigned i = index; i < 2 * kPagesTogether * Shared::kParts; i += kThreads) {
      const int of_mean = i % Shared::kParts;
      if (8 * of_mean >= batch.head_dim) shared.means[i / Shared::kParts][of_mean] = {};
    }
  }

  // Begins to copy a page, and means of that kMeansAhead behind it, if they are there; and asks for
  // the next ones' ids. By one thread.
  KVLANE_DEVICE void copy_page(int page) {
    if (page >= count) return;
    const int with_means = page + kMeansAhead;
    const auto bytes = static_cast<unsigned>(batch.layout.bytes);
    gpu::Arrivals& there = shared.pages_there[page % Shared::kPlaces];
    t.expect_bytes(there, bytes + (with_means < count ? mean_bytes() : 0));
    t.copy_bulk(shared.pages[page % Shared::kPlaces][0], slabs + next * batch.block_bytes, bytes,
                there);
    if (with_means < count) copy_means(with_means, next_means, there);
    if (page + 1 < count) next = ids[page + 1];
    if (with_means + 1 < count) next_means = ids[with_means + 1];
  }
  KVLANE_DEVICE unsigned mean_bytes() const { return 2 * batch.head_dim; }
  KVLANE_DEVICE void copy_means(int page, std::int32_t id, gpu::Arrivals& there) {
    t.copy_bulk(shared.means[page % (2 * kPagesTogether)][0],
                slabs + id * batch.block_bytes + batch.layout.k_metadata, mean_bytes(), there);
  }
  // Those of the first pages, which the first page does not come without.
  KVLANE_DEVICE void copy_first_pages() {
    const int early = count < kMeansAhead ? count : kMeansAhead;
    gpu::Arrivals& there = shared.first_means_there;
    t.expect_bytes(there, early * mean_bytes());
    KVLANE_NO_UNROLL
    for (int page = 0; page < early; ++page) copy_means(page, ids[page], there);
    next = ids[0];
    if (kMeansAhead < count) next_means = ids[kMeansAhead];
    KVLANE_NO_UNROLL
    for (int page = 0; page < Shared::kPlaces; ++page) copy_page(page);
  }

  // A thread's part of a page, in registers: the compiler would not read anything behind what is
  // written, because it might be the same. Words of 4 bits leave no registers for V beside K.
  static constexpr bool kReadsAllFirst = kBits == 2;
  struct Part {
    std::uint32_t keys[kDim / 32][kBits / 2];
    std::uint32_t values[kDim / kWarpThreads][kBits / 2];
    unsigned means[kDim / kWarpThreads];
    Words4 scales[2];
    unsigned key_scale;
  };
  KVLANE_DEVICE static unsigned half_at(const Words4* words, unsigned offset) {
    return load_aligned_half(reinterpret_cast<const std::byte*>(words) + offset);
  }
  KVLANE_DEVICE void load_keys(const Words4* words, Part& part) const {
    KVLANE_UNROLL
    for (unsigned i = 0; i < kDim / 32; ++i) {
      KVLANE_UNROLL
      for (unsigned j = 0; j < kBits / 2; ++j) {
        part.keys[i][j] = word_at(words, own.key + 4 * kBlockTokens * (2 * i * (kBits / 2) + j));
      }
    }
    if (index < kBlockTokens) part.key_scale = half_at(words, own.scale);
  }
  KVLANE_DEVICE void load_values(const Words4* words, Part& part) const {
    KVLANE_UNROLL
    for (unsigned i = 0; i < kDim / kWarpThreads; ++i) {
      KVLANE_UNROLL
      for (unsigned r = 0; r < kBits / 2; ++r) {
        part.values[i][r] = word_at(
            words, own.value + 4 * (kWarpThreads * i + hack::kValueClasses * r * batch.head_dim));
      }
      part.means[i] = half_at(words, own.mean + 2 * kWarpThreads * i);
    }
    const Words4* const of_tokens = words + own.scales / sizeof(Words4);
    part.scales[0] = of_tokens[0];
    part.scales[1] = of_tokens[4];
  }

  // What is behind head_dim meets codes of 0 in the queries.
  KVLANE_DEVICE void store_keys(const Part& part, int stage) {
    Words4* const to = shared.keys[stage][0];
    KVLANE_UNROLL
    for (unsigned i = 0; i < kDim / 32; ++i) {
      to[own.key_to / sizeof(Words4) ^ 2 * i] = signed_piece<kBits>(part.keys[i], own.all);
    }
    if (index < kBlockTokens) {
      float* const scales = shared.key_scales[stage][0];
      scales[own.scale_to] = low_fp16(part.key_scale);
    }
  }

  // Of V's tokens at most. All values stay finite then, with means to 2^14, as sealing has them: an
  // infinity would be none with the weight 0 of a row that does not see the page.
  static constexpr float kMostScale = (65504 - 0x1p14F) / (((1 << kBits) - 1) / 2.0F);
  KVLANE_DEVICE void store_values(const Part& part, int stage) {
    Words4* const to = shared.values[stage][0];
    std::uint32_t scales[2][4];
    KVLANE_UNROLL
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t(&s)[4] = part.scales[i / 4].w;
      const std::uint32_t two = byte_perm(s[i % 2], s[2 + i % 2], i / 2 % 2 == 0 ? 0x5410 : 0x7632);
      scales[i / 4][i % 4] = smaller_fp16(two, twice(kMostScale));
    }
    KVLANE_UNROLL
    for (unsigned i = 0; i < kDim / kWarpThreads; ++i) {
      const std::uint32_t mean = byte_perm(part.means[i], part.means[i], 0x1010);
      KVLANE_UNROLL
      for (int r = 0; r < 2; ++r) {
        Words4 piece;
        KVLANE_UNROLL
        for (int j = 0; j < 4; ++j) {
          piece.w[j] =
              fused_fp16(centred_pair<kBits>(part.values[i], own.ten, r, j), scales[r][j], mean);
        }
        // cppcheck-suppress uninitvar ; the loop fills it
        to[(own.value_to / sizeof(Words4) ^ unsigned(r)) + kWarpThreads * Shared::kPieces * i] =
            piece;
      }
    }
  }

  // What all have written is there for products and for threads that wait.
  KVLANE_DEVICE void tell(gpu::Arrivals& there) {
    t.publish();
    t.arrive_as_warp(there);
  }

  // Means of eight pages meet queries of two scoring warps. Scores of pages nine before have been
  // weighed, so nobody reads what was there: K of pages behind them has come.
  static_assert(Shared::kStages < kPagesTogether);
  KVLANE_DEVICE void multiply_means(int together) {
    // From an exchange, so that no addresses are kept from one call to the next.
    const unsigned anew = t.shuffle(index, t.lane());
    const int lane = anew % kWarpThreads, column = lane % 4, row = lane / 4, odd = row % 2;
    KVLANE_NO_UNROLL
    for (int i = 0; i < kHackHopperScoring; ++i) {
      const int warp = kHackHopperScoring * int(anew / kWarpThreads) + i;
      float d[2][4] = {};  // with y - u, and u
      KVLANE_UNROLL
      for (int piece = column; piece < Shared::kParts + column; piece += 4) {
        const Words4 m = shared.means[kPagesTogether * (together % 2) + row][piece];
        KVLANE_UNROLL
        for (int part = 0; part < 2; ++part) {
          const Words4(&y)[2] = shared.parts[warp][1 - part][row][piece];
          t.mma_fp16(d[part], y[odd].w, m.w[0], m.w[1]);
          t.mma_fp16(d[part], y[1 - odd].w, m.w[2], m.w[3]);
        }
      }
      KVLANE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int pair = kPrefillRows * warp + row + j / 2 * 8;
        shared.common[together % 2][pair][2 * column + j % 2] = d[0][j] + d[1][j];
      }
    }
  }

  KVLANE_DEVICE void bring() {
    if (index == 0) copy_first_pages();
    t.wait_arrivals(shared.first_means_there, 0);
    t.wait_arrivals(shared.queries_there, 0);
    t.sync_warpgroup(kHackHopperScoring);  // numbers of 0 are there
    Stage<Shared::kStages> stage;
    KVLANE_NO_UNROLL
    for (int page = 0; page < count; ++page) {
      if (page % kPagesTogether == 0) multiply_means(page / kPagesTogether);
      Part part;
      t.wait_arrivals(shared.pages_there[page % Shared::kPlaces], page / Shared::kPlaces % 2);
      const Words4* const words = shared.pages[page % Shared::kPlaces];
      load_keys(words, part);
      if constexpr (kReadsAllFirst) load_values(words, part);
      t.wait_arrivals(shared.keys_done[stage.index], stage.parity ^ 1);
      store_keys(part, stage.index);
      tell(shared.keys_there[stage.index]);
      if constexpr (!kReadsAllFirst) load_values(words, part);
      t.wait_arrivals(shared.values_done[stage.index], stage.parity ^ 1);
      store_values(part, stage.index);
      tell(shared.values_there[stage.index]);
      if (index == 0 && page > 0) {
        // All have read the page before when its V is there.
        const Stage<Shared::kStages> before = stage.before();
        t.wait_arrivals(shared.values_there[before.index], before.parity);
        copy_page(page + Shared::kPlaces - 1);
      }
      stage.advance();
    }
  }
};

}  // namespace hack_hopper

}  // namespace kvlane
