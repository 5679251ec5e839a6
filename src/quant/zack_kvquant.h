// KV format `zack:keep=SHARE+kvquant`: the first dimensions of K and V in ZACK's basis, coded by
// KVQuant (spec/slab_zack.md, section 7).
//
//   zack:keep=0.5+kvquant:bits=2|3|4   4 if not said, as in format `kvquant`
//     outliers=0|1, room=slab|token    likewise; names say them where they are not 1 and slab
//
// Limits and outliers of a token are over the channels of all heads, so a slab is one of all heads,
// with widths of their own, and not a page of codes for each. K is coded behind RoPE, where ZACK's
// rotations act: what KVQuant gains by K before RoPE is lost here, and axes of falling strength,
// each with limits of its own, are gained.
//
// Which channels a token's V has decides what its limits are, and so the signposts: tables are of
// one share each, under names that begin with that of the format, "zack:keep=0.5+kvquant".
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "quant/heads_together.h"
#include "quant/kvquant_coder.h"
#include "quant/zack.h"

namespace kvlane {

// What stands behind "+".
inline constexpr std::string_view kZackKvquantCodes = "kvquant";

// A name of `zack` without codes, and what it makes of a model.
struct ZackKept {
  std::string name;  // "zack:keep=0.5,sink=1"
  KvWindow window;
  std::vector<HeadWidths> widths;  // [layers][kv_heads]
};

// What names of tables begin with for this name of `zack`: "zack:keep=0.5+kvquant".
std::string zack_kvquant_tables(std::string_view zack_name);

class ZackKvquant final : public KvFormat, public HeadsTogether {
 public:
  ZackKvquant(std::string name, const KvFormatContext& context, ZackKept kept,
              ZackFormat::Rotations rotations, kvquant::Coder coder);

  const float* key_rotation(int layer, int kv_head) const override;
  const float* query_rotation(int layer, int kv_head) const override;
  // Codes: by far the most of what is read.
  PagePlace page_place(int layer, int kv_head) const override;

  Status seal(SlabPlace place, const std::uint16_t* rows, std::byte* slab) const override;
  // In the rotated basis, with zeros for dimensions that were dropped.
  void open_page(SlabPlace place, const std::byte* slab, int kv_head,
                 std::uint16_t* page) const override;
  // Without them: K[64][k], then V[64][v].
  void open_kept(SlabPlace place, const std::byte* slab, int kv_head, std::uint16_t* page) const;
  std::size_t used_bytes(SlabPlace place, const std::byte* slab) const override;
  void pack(SlabPlace place, const std::byte* slab, std::byte* packed) const override;
  Status unpack(SlabPlace place, ByteView packed, std::byte* slab) const override;

  HeadWidths widths(int layer, int kv_head) const { return kept_.widths[head(layer, kv_head)]; }

 private:
  std::size_t head(int layer, int kv_head) const {
    return std::size_t(layer) * shape().kv_heads + kv_head;
  }

  ZackKept kept_;
  ZackFormat::Rotations rotations_;
  kvquant::Coder coder_;
};

// codes: the text behind "+". context: tables of `zack`, too.
Result<std::shared_ptr<const KvFormat>> make_zack_kvquant(ZackKept kept,
                                                          ZackFormat::Rotations rotations,
                                                          std::string_view codes,
                                                          const KvFormatContext& context);

}  // namespace kvlane
