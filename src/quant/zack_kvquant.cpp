// Narrow rows to slabs of all heads, and pages back.
// SPDX-License-Identifier: Apache-2.0
#include "quant/zack_kvquant.h"

#include <algorithm>
#include <utility>

#include "quant/table_lookup.h"

namespace kvlane {
namespace {

std::uint64_t tables_of(const KvFormatContext& context, const ZackKept& kept) {
  return tables_id(*context.tables, {"zack", zack_kvquant_tables(kept.name)});
}

// rows[64][from], with zeros behind each, to rows[64][to].
void widen(const std::uint16_t* rows, int from, std::uint16_t* out, int to) {
  for (int token = 0; token < kBlockTokens; ++token, rows += from, out += to) {
    std::copy_n(rows, from, out);
    std::fill(out + from, out + to, std::uint16_t{0});
  }
}

std::string codes_name(const kvquant::Options& options) {
  std::string name = "+" + std::string(kZackKvquantCodes) + ":bits=" + std::to_string(options.bits);
  if (options.outliers == 0) name += ",outliers=0";
  if (options.room_by_token) name += ",room=token";
  return name;
}

}  // namespace

std::string zack_kvquant_tables(std::string_view zack_name) {
  return slab_format(zack_name) + "+" + std::string(kZackKvquantCodes);
}

ZackKvquant::ZackKvquant(std::string name, const KvFormatContext& context, ZackKept kept,
                         ZackFormat::Rotations rotations, kvquant::Coder coder)
    : KvFormat(std::move(name), context.shape, kept.window, coder.slab_sizes(),
               tables_of(context, kept)),
      kept_(std::move(kept)),
      rotations_(std::move(rotations)),
      coder_(std::move(coder)) {}

const float* ZackKvquant::key_rotation(int layer, int kv_head) const {
  return rotations_.of_key(head(layer, kv_head), shape().head_dim);
}

const float* ZackKvquant::query_rotation(int layer, int kv_head) const {
  return rotations_.of_query(head(layer, kv_head), shape().head_dim);
}

PagePlace ZackKvquant::page_place(int layer, int kv_head) const {
  return coder_.codes_place(layer, kv_head);
}

Status ZackKvquant::seal(SlabPlace place, const std::uint16_t* rows, std::byte* slab) const {
  return coder_.seal(place, rows, slab);
}

void ZackKvquant::open_kept(SlabPlace place, const std::byte* slab, int kv_head,
                            std::uint16_t* page) const {
  const int k = widths(place.layer, kv_head).k;
  coder_.open_page(place, slab, kv_head, page, page + std::size_t{kBlockTokens} * k);
}

void ZackKvquant::open_page(SlabPlace place, const std::byte* slab, int kv_head,
                            std::uint16_t* page) const {
  const HeadWidths kept = widths(place.layer, kv_head);
  const int d = shape().head_dim;
  alignas(64) std::uint16_t opened[2 * kBlockTokens * zack::kHeadDimMax];
  open_kept(place, slab, kv_head, opened);
  widen(opened, kept.k, page, d);
  widen(opened + kBlockTokens * kept.k, kept.v, page + shape().page_plane_elements(), d);
}

std::size_t ZackKvquant::used_bytes(SlabPlace place, const std::byte* slab) const {
  return coder_.used_bytes(place.layer, slab);
}

void ZackKvquant::pack(SlabPlace place, const std::byte* slab, std::byte* packed) const {
  pack_front(place, slab, packed);
}

Status ZackKvquant::unpack(SlabPlace place, ByteView packed, std::byte* slab) const {
  KVLANE_TRY(unpack_front(place, packed, slab));
  const std::string wrong = coder_.wrong_ends(place.layer, slab);
  return wrong.empty() ? Status() : refuse_packed(place, wrong);
}

Result<std::shared_ptr<const KvFormat>> make_zack_kvquant(ZackKept kept,
                                                          ZackFormat::Rotations rotations,
                                                          std::string_view codes,
                                                          const KvFormatContext& context) {
  KVLANE_ASSIGN(FormatText text, FormatText::parse(codes));
  KVLANE_ASSIGN(const kvquant::Options options, kvquant::Options::parse(text));
  if (text.has("sink") || text.has("recent")) {
    return invalid_argument(
        "sink and recent stand before the '+', as in zack:keep=0.5,sink=1+kvquant");
  }
  KVLANE_TRY(text.finish());
  KVLANE_ASSIGN(kvquant::Coder coder, kvquant::Coder::make({options, kept.widths, nullptr,
                                                            zack_kvquant_tables(kept.name), true},
                                                           context));
  std::string name = kept.name + codes_name(options);
  return std::shared_ptr<const KvFormat>(std::make_shared<const ZackKvquant>(
      std::move(name), context, std::move(kept), std::move(rotations), std::move(coder)));
}

}  // namespace kvlane
