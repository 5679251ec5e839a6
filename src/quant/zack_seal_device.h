// Sealing narrow pages (format `zack` without codes, spec/slab_zack.md) in kernels: a block of
// threads copies the first columns of K or V of one page from rows into words. The bytes are those
// of ZackFormat::seal().
//
// A thread takes 8 channels of four tokens at a time: of K four consecutive tokens, whose words are
// a 4 x 4 transposition in registers; of V two pairs, whose halves byte_perm() joins. A value costs
// 2 bytes of reading, kept or not, as values that are no numbers are refused everywhere, and 2 of
// writing if it is kept.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "format/shape.h"
#include "gpu/device_code.h"
#include "quant/zack_seal_batch.h"

namespace kvlane {

namespace zack_seal {

using namespace gpu;

// Eight BF16 values.
KVLANE_DEVICE bool is_finite(const Words4& values) {
  bool finite = true;
  KVLANE_UNROLL
  for (int i = 0; i < 4; ++i) {
    constexpr std::uint32_t kLow = 0x7F80, kHigh = kLow << 16;
    finite = finite && (values.w[i] & kLow) != kLow && (values.w[i] & kHigh) != kHigh;
  }
  return finite;
}

// The tokens of a thread's four rows; `quad` is from 0 to 15.
template <bool kKeys>
KVLANE_DEVICE int token_of(int quad, int i) {
  return kKeys ? 4 * quad + i : 2 * quad + i % 2 + i / 2 * 32;
}

// Words of these rows' channels 8 part ... + 7.
template <bool kKeys>
KVLANE_DEVICE void store_words(const NarrowHead& head, std::byte* page, int quad, int part,
                               const Words4 (&rows)[4]) {
  KVLANE_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (kKeys) {
      store_once(page + 4 * ((4 * part + i) * kBlockTokens + 4 * quad),
                 {{rows[0].w[i], rows[1].w[i], rows[2].w[i], rows[3].w[i]}});
      continue;
    }
    const Words4 &a = rows[i / 2 * 2], &b = rows[i / 2 * 2 + 1];
    const int first = i % 2 * 2;
    constexpr std::uint32_t kLow = 0x5410, kHigh = 0x7632;
    const int pair = quad + i / 2 * 16;
    store_once(page + 2 * kBlockTokens * head.k + 4 * (pair * head.v + 8 * part + 2 * first),
               {{byte_perm(a.w[first], b.w[first], kLow), byte_perm(a.w[first], b.w[first], kHigh),
                 byte_perm(a.w[first + 1], b.w[first + 1], kLow),
                 byte_perm(a.w[first + 1], b.w[first + 1], kHigh)}});
  }
}

}  // namespace zack_seal

// By all threads of a block: K or V of the page of a KV head of place `place`, whose `rows` is not
// negative. `wrong` is shared.
template <bool kKeys, class Thread>
KVLANE_DEVICE void seal_narrow_part(Thread& t, const ZackSealBatch& batch, int place, int kv_head,
                                    std::uint32_t& wrong) {
  using namespace zack_seal;
  if (t.index() == 0) wrong = 0;
  t.sync_block();
  const HackSealPlace at = batch.places[place];
  const NarrowHead head = batch.heads[kv_head];
  const int row_bytes = 2 * batch.head_dim, parts = batch.head_dim / 8;
  const std::size_t plane = 2 * std::size_t(kv_head) + (kKeys ? 0 : 1);
  const std::byte* const rows =
      batch.rows + at.rows * batch.rows_block_bytes + plane * kBlockTokens * row_bytes;
  std::byte* const page = batch.slabs + at.sealed * batch.block_bytes + head.page;
  const int width = kKeys ? head.k : head.v;
  bool right = true;
  for (int i = t.index(); i < kBlockTokens / 4 * parts; i += t.threads()) {
    // Neighbours have four quads, then parts: 64 consecutive bytes of a pair of channels.
    const int part = i / 4 % parts, quad = i % 4 + i / 4 / parts * 4;
    Words4 of[4];
    KVLANE_UNROLL
    for (int j = 0; j < 4; ++j) {
      of[j] = load_once(rows + token_of<kKeys>(quad, j) * row_bytes + 16 * part);
    }
    KVLANE_UNROLL
    for (int j = 0; j < 4; ++j) right = right && is_finite(of[j]);
    if (8 * part < width) store_words<kKeys>(head, page, quad, part, of);
  }
  const bool is_wrong = any_wrong(t, wrong, right);
  if (t.index() == 0) {
    batch.beyond[2 * (std::size_t(place) * batch.kv_heads + kv_head) + (kKeys ? 0 : 1)] =
        is_wrong ? 1 : 0;
  }
}

}  // namespace kvlane
