// KV format `zack`: sealed slabs keep the first dimensions of K and V in a basis in which the last
// ones count least (ZACK; SPEC 2; spec/slab_zack.md).
//
//   zack:keep=0.5               the share of all dimensions that is kept, at most; 0.5 if not said
//     ranks=adaptive|uniform    each head its own number for K and for V, or one for all
//     weigh=values|energies     whether tails are sums of singular values or of their squares
//     sink=n, recent=n          blocks that attention reads in 16 bits, with all dimensions
//   zack:keep=0.5+hack:k=2,v=2  what is kept is coded in another format: `hack`, or one with linear
//                               codes (quant/linear_format.h); `kvquant` in slabs of its own
//                               (quant/zack_kvquant.h)
//   zack:bits=2.5+hack          each head's K and V has dimensions and bits of its own, so many
//                               bits a value in all (quant/zack_bits.h); takes sink and recent, too
//
// The model's directory is one that `kvlane calibrate zack` made: its V is in that basis anyway,
// its weights being folded. K and queries get there by key_rotation() and query_rotation(), behind
// RoPE. A product of a query and a key is the same in any basis, and what is dropped of both is the
// end of that sum.
// Nothing is decompressed: attention computes on the narrow rows (attention/sealed_kernel.h).
//
// Unlike the paper, a query reads its own block of 64 tokens with all dimensions, as with every
// other format here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "format/head_widths.h"
#include "quant/format_text.h"
#include "quant/kv_format.h"
#include "quant/zack_planes.h"
#include "quant/zack_ranks.h"

namespace kvlane {

// Names of tables: "zack.layers.3.k.rotation" [kv_heads][d][d], columns by descending singular
// value; "zack.layers.3.k.query_rotation", likewise, in all layers, or in none where queries have
// that of K; instead of both "zack.layers.3.k.folded_rotation", which formats do not read, where K
// and queries come rotated out of their weights; "zack.layers.3.k.singular_values" [kv_heads][d];
// rotation and singular values of v, of which formats do not read the rotation. For `bits`
// "zack.layers.3.k.errors" [kv_heads][zack::kCodeBits][d / 16], likewise v. spec/zack.md.
namespace zack {
inline constexpr const char* kFoldedRotation = "folded_rotation";
}  // namespace zack

class ZackFormat final : public KvFormat {
 public:
  // Formats of slabs of one head in all layers, with its widths; shared by all heads that have the
  // same. Null where rows stay as they are.
  using Codes = std::vector<std::shared_ptr<const KvFormat>>;  // [layers][kv_heads]

  // [layers][kv_heads][head_dim][head_dim] of K, and of queries unless they have those of K; both
  // empty where weights have them.
  struct Rotations {
    std::vector<float> keys;
    std::vector<float> queries;

    // Of head `head` of all: [head_dim][head_dim], or null.
    const float* of_key(std::size_t head, std::size_t d) const {
      return keys.empty() ? nullptr : keys.data() + head * d * d;
    }
    const float* of_query(std::size_t head, std::size_t d) const {
      return queries.empty() ? of_key(head, d) : queries.data() + head * d * d;
    }
  };

  // ranks.widths: [layers][kv_heads].
  ZackFormat(std::string name, const KvShape& shape, const KvWindow& window, zack::Ranks ranks,
             Codes codes, Rotations rotations, std::uint64_t tables);

  const float* key_rotation(int layer, int kv_head) const override;
  const float* query_rotation(int layer, int kv_head) const override;
  PagePlace page_place(int layer, int kv_head) const override;

  Status seal(SlabPlace place, const std::uint16_t* rows, std::byte* slab) const override;
  // In the rotated basis, with zeros for dimensions that were dropped.
  void open_page(SlabPlace place, const std::byte* slab, int kv_head,
                 std::uint16_t* page) const override;
  std::size_t used_bytes(SlabPlace place, const std::byte* slab) const override;
  void pack(SlabPlace place, const std::byte* slab, std::byte* packed) const override;
  bool packs_as_it_lies(int layer) const override;
  Status unpack(SlabPlace place, ByteView packed, std::byte* slab) const override;
  const SlabPlanes* planes() const override { return planes_ ? &*planes_ : nullptr; }

  HeadWidths widths(int layer, int kv_head) const { return ranks_.widths[head(layer, kv_head)]; }
  const zack::Ranks& ranks() const { return ranks_; }
  const KvFormat* codes(int layer, int kv_head) const { return codes_[head(layer, kv_head)].get(); }

 private:
  std::size_t used_in_page(SlabPlace place, int kv_head, const std::byte* slab) const;
  std::size_t head(int layer, int kv_head) const {
    return std::size_t(layer) * shape().kv_heads + kv_head;
  }

  zack::Ranks ranks_;
  Codes codes_;
  std::optional<ZackPlanes> planes_;  // without codes
  Rotations rotations_;
  std::vector<PagePlace> pages_;  // [layers][kv_heads]
};

// The step function of a model's shares, from its tables (context: shape and tables).
Result<zack::Rates> zack_rates(const KvFormatContext& context, zack::Weigh weigh);

// The format of this family that `text` says, what it keeps in that of text.take_codes() unless
// that is empty. Errors name what is wrong.
Result<std::shared_ptr<const KvFormat>> make_zack_format(FormatText text,
                                                         const KvFormatContext& context);

}  // namespace kvlane
