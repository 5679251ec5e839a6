// Prefill attention on codes in kernels: what a block of threads has in shared memory, pages that
// are unpacked there, and what all scores of a page have in common. Formulas:
// attention/hack_page.h; what lies where and why: attention/hack_prefill_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_prefill_batch.h"
#include "attention/hack_scores_device.h"
#include "attention/prefill_device.h"

namespace kvlane {

// kDim and kTiles are those of PrefillShared. Behind it there is room for two pages
// (hack_prefill_pages_bytes()).
template <int kDim, int kTiles>
struct HackPrefillShared {
  // Of a row of codes in 8 bits; places need eight at least.
  static constexpr int kPieces = kDim < 128 ? 8 : kDim / 16;
  static constexpr int kPairs = kPrefillWarps * kTiles * kPrefillRows;
  static constexpr int kRegisters = hack::kValueRegisters;
  struct Codes {
    gpu::Words4 keys[kBlockTokens][kPieces];
    gpu::Words4 values[kDim][kRegisters];
  };
  alignas(128) gpu::Words4 queries[kPairs][kPieces];
  union {
    Codes codes;
    float out[kPrefillWarps][8][kDim];  // in the end
  };
  // Here, not in registers: the sequence's table, the KV head's page of block 0, and where pages
  // end.
  const std::int32_t* ids;
  const std::byte* slabs;
  std::int32_t pages_end;
  std::int32_t rows[kPairs];       // of queries and states, or negative
  float scales[kPairs];            // half of a query's
  float max[kPairs], sum[kPairs];  // of the pages so far
  std::int32_t end[kPairs];        // of the pages that a pair sees
  // By both: of eight pages, what all scores of a pair have in common. By token: sums of the query
  // over each partition.
  float common[kPairs][kHackTerms];
};

namespace hack_prefill {

using namespace gpu;

inline constexpr int kPagesTogether = 8;  // whose means are multiplied at once

// A page in shared memory, as it came.
struct Page {
  const Words4* words;
  std::int32_t head_dim;
  unsigned k_metadata, v_metadata;  // offsets in bytes, multiples of 64

  KVLANE_DEVICE std::uint32_t word(unsigned offset) const {
    return words[offset / 16].w[offset / 4 % 4];
  }
};

// The two rows of a tile that a lane has: pairs of the block.
template <int kTiles, class Thread>
KVLANE_DEVICE int pair_of(Thread& t, int tile, int half) {
  return (t.warp() * kTiles + tile) * kPrefillRows + t.lane() / 4 + 8 * half;
}

// Where pieces are in shared memory. Those of one number of 8 tokens that are neighbours, as they
// are unpacked, have different places modulo 8, and so have those of the 8 tokens of a tile.
template <int kPieces>
KVLANE_DEVICE unsigned place_of_key(unsigned token, unsigned piece) {
  const unsigned key = (token / 8 % 4 ^ token / 2 % 4) * 2 + token % 2;
  return token * kPieces + (piece ^ key);
}
// The same of one register of 8 channels.
KVLANE_DEVICE unsigned place_of_value(unsigned channel, unsigned r) {
  return channel * hack::kValueRegisters + (r ^ channel / 2 % 4);
}

// Four codes of `kBits` bits from bit `kShift` of each byte on, as c'.
template <int kBits, int kShift>
KVLANE_DEVICE std::uint32_t signed_codes(std::uint32_t word) {
  constexpr std::uint32_t kTop = (1U << kBits) - 1;
  constexpr std::uint32_t kOnes = 0x01010101, kSign = 0x80808080;
  const std::uint32_t doubled = kShift == 0 ? word << 1 : word >> (kShift == 0 ? 0 : kShift - 1);
  return (((doubled & 2 * kTop * kOnes) | kSign) - kTop * kOnes) ^ kSign;
}
// The codes of a word, register by register.
template <int kBits>
KVLANE_DEVICE void unpack_word(std::uint32_t word, std::uint32_t (&to)[8 / kBits]) {
  if constexpr (kBits == 2) {
    to[0] = signed_codes<2, 0>(word);
    to[1] = signed_codes<2, 2>(word);
    to[2] = signed_codes<2, 4>(word);
    to[3] = signed_codes<2, 6>(word);
  } else {
    to[0] = signed_codes<4, 0>(word);
    to[1] = signed_codes<4, 4>(word);
  }
}

// By all threads of the block.
template <int kBits, class Thread, int kPieces>
KVLANE_DEVICE void unpack_keys(Thread& t, const Page& page, Words4 (&keys)[kBlockTokens][kPieces]) {
  KVLANE_NO_UNROLL
  for (int i = t.index(); i < page.head_dim / 16 * kBlockTokens; i += t.threads()) {
    const unsigned token = i % kBlockTokens, piece = i / kBlockTokens;
    Words4 codes;
    KVLANE_UNROLL
    for (int j = 0; j < kBits / 2; ++j) {
      std::uint32_t registers[8 / kBits];
      unpack_word<kBits>(page.word(4 * (kBlockTokens * (piece * (kBits / 2) + j) + token)),
                         registers);
      KVLANE_UNROLL
      for (int r = 0; r < 8 / kBits; ++r) codes.w[j * (8 / kBits) + r] = registers[r];
    }
    Words4* const to = keys[0];
    to[place_of_key<kPieces>(token, piece)] = codes;  // cppcheck-suppress uninitvar ; loops fill it
  }
}
template <int kBits, class Thread, int kDim>
KVLANE_DEVICE void unpack_values(Thread& t, const Page& page, unsigned codes,
                                 Words4 (&values)[kDim][hack::kValueRegisters]) {
  constexpr int kRegisters = 8 / kBits;  // of a word
  KVLANE_NO_UNROLL
  for (int i = t.index(); i < page.head_dim * (kBits / 2); i += t.threads()) {
    const unsigned channel = i % page.head_dim, first = i / page.head_dim * kRegisters;
    Words4 pieces[kRegisters];
    KVLANE_UNROLL
    for (int c = 0; c < hack::kValueClasses; ++c) {
      const unsigned word =
          (first / kRegisters * hack::kValueClasses + c) * page.head_dim + channel;
      std::uint32_t registers[kRegisters];
      unpack_word<kBits>(page.word(codes + 4 * word), registers);
      KVLANE_UNROLL
      for (int r = 0; r < kRegisters; ++r) pieces[r].w[c] = registers[r];
    }
    KVLANE_UNROLL
    for (int r = 0; r < kRegisters; ++r) {
      Words4* const to = values[0];
      to[place_of_value(channel, first + r)] = pieces[r];  // cppcheck-suppress uninitvar ; as above
    }
  }
}
template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void unpack(Thread& t, const HackPrefillBatch& batch, const Page& page,
                          HackPrefillShared<kDim, kTiles>& shared) {
  const auto v_codes = static_cast<unsigned>(batch.layout.v_codes);
  if (batch.key_bits == 2) {
    unpack_keys<2>(t, page, shared.codes.keys);
  } else {
    unpack_keys<4>(t, page, shared.codes.keys);
  }
  if (batch.value_bits == 2) {
    unpack_values<2>(t, page, v_codes, shared.codes.values);
  } else {
    unpack_values<4>(t, page, v_codes, shared.codes.values);
  }
}

// Begins to copy queries; codes and channels that are not there are 0.
template <class Thread, class Shared>
KVLANE_DEVICE void copy_queries(Thread& t, const HackPrefillBatch& batch, const PrefillUnit& unit,
                                int group, Shared& shared) {
  const int piece = t.index() % Shared::kPieces;
  const int rows = t.threads() / Shared::kPieces;  // at one time
  KVLANE_NO_UNROLL
  for (int row = t.index() / Shared::kPieces; row < Shared::kPairs; row += rows) {
    const bool wanted = row < unit.pairs && 16 * piece < batch.head_dim;
    const std::size_t from =
        wanted ? prefill::row_of(batch, unit, group, unit.first_pair + row) : 0;
    t.copy_async(shared.queries[row][piece ^ row % 8],
                 batch.queries.codes + from * batch.head_dim + (wanted ? 16 * piece : 0), wanted);
  }
}
// What else is known of pairs.
template <int kPartition, class Thread, int kDim, int kTiles>
KVLANE_DEVICE void share_pairs(Thread& t, const HackPrefillBatch& batch, const PrefillUnit& unit,
                               int group, HackPrefillShared<kDim, kTiles>& shared) {
  for (int pair = t.index(); pair < shared.kPairs; pair += t.threads()) {
    const bool there = pair < unit.pairs;
    const std::size_t row = there ? prefill::row_of(batch, unit, group, unit.first_pair + pair) : 0;
    shared.rows[pair] = there ? static_cast<std::int32_t>(row) : -1;
    // No tokens yet: so low that every page is above it.
    shared.max[pair] = prefill::lowest();
    shared.sum[pair] = 0;
    shared.scales[pair] = there ? batch.queries.scales[row] * 0.5F : 0;
    const int own = (unit.position + (unit.first_pair + pair) / group) / kBlockTokens;
    shared.end[pair] = own - batch.window.recent;
    for (int i = 0; i < kDim / 32 && kPartition != 0; ++i) {
      shared.common[pair][i] = there ? batch.queries.terms[row * kHackTerms + i].sum : 0;
    }
  }
}

// Begins to copy a page.
template <class Thread, int kDim, int kTiles>
KVLANE_DEVICE void copy_page(Thread& t, const HackPrefillBatch& batch,
                             const HackPrefillShared<kDim, kTiles>& shared, int index, Words4* to) {
  const std::byte* const from = shared.slabs + shared.ids[index] * batch.block_bytes;
  KVLANE_NO_UNROLL
  for (unsigned i = t.index(); sizeof(Words4) * i < batch.layout.bytes; i += t.threads()) {
    t.copy_async(to[i], from + sizeof(Words4) * i, true);
  }
}

// By both: what all scores of the warp's pairs have in common, of eight pages from `index` on, as
// far as there are. Means are columns, queries u and y - u (attention/hack_prepare_device.h).
template <int kTiles, class Thread, class Shared>
KVLANE_DEVICE void multiply_means(Thread& t, const HackPrefillBatch& batch, int index,
                                  Shared& shared) {
  const int column = t.lane() % 4, page = index + t.lane() / 4;
  const bool exists = page < shared.pages_end;
  const std::byte* const means =
      shared.slabs + batch.layout.k_metadata + (exists ? shared.ids[page] * batch.block_bytes : 0);
  KVLANE_NO_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    float d[4] = {};
    KVLANE_NO_UNROLL
    for (int first = 0; first < batch.head_dim; first += 32) {
      const int channel = first + 8 * column;
      const bool inside = channel < batch.head_dim;
      const Words4 m = decode::load_if(inside && exists, means, 2 * channel);
      Words2 u[2];
      Words4 rest[2];
      KVLANE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const std::int32_t query = shared.rows[pair_of<kTiles>(t, tile, half)];
        const bool wanted = inside && query >= 0;
        const std::size_t at = wanted ? std::size_t(query) * batch.head_dim + channel : 0;
        u[half] = Words2{};
        if (wanted) u[half] = load_pair(batch.queries.codes + at);
        rest[half] = decode::load_if(wanted, batch.queries.rests, 2 * at);
      }
      KVLANE_UNROLL
      for (int i = 0; i < 4; i += 2) {
        t.mma_fp16(d, {rest[0].w[i], rest[1].w[i], rest[0].w[i + 1], rest[1].w[i + 1]}, m.w[i],
                   m.w[i + 1]);
        t.mma_fp16(d,
                   {hack_decode::pair_of_codes(u[0].w[i / 2], 0),
                    hack_decode::pair_of_codes(u[1].w[i / 2], 0),
                    hack_decode::pair_of_codes(u[0].w[i / 2], 2),
                    hack_decode::pair_of_codes(u[1].w[i / 2], 2)},
                   m.w[i], m.w[i + 1]);
      }
    }
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int pair = pair_of<kTiles>(t, tile, i / 2);
      shared.common[pair][2 * column + i % 2] = 2 * shared.scales[pair] * d[i];
    }
  }
  t.sync_warp();
}

}  // namespace hack_prefill
}  // namespace kvlane
