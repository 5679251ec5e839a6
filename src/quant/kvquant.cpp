// Format `kvquant`: slabs of whole heads, K before its rotation.
// SPDX-License-Identifier: Apache-2.0
#include "quant/kvquant.h"

#include <cstring>
#include <utility>
#include <vector>

#include "quant/heads_together.h"
#include "quant/kvquant_coder.h"
#include "quant/table_lookup.h"

namespace kvlane {
namespace kvquant {
namespace {

constexpr const char* kName = "kvquant";

class KvquantFormat final : public KvFormat, public HeadsTogether {
 public:
  KvquantFormat(std::string name, const KvFormatContext& context, const KvWindow& window,
                Coder coder)
      : KvFormat(std::move(name), context.shape, window, coder.slab_sizes(),
                 tables_id(*context.tables, kName)),
        coder_(std::move(coder)) {}

  bool rope_applied() const override { return false; }
  std::size_t used_bytes(SlabPlace place, const std::byte* slab) const override {
    return coder_.used_bytes(place.layer, slab);
  }
  void pack(SlabPlace place, const std::byte* slab, std::byte* packed) const override {
    pack_front(place, slab, packed);
  }
  // Besides: the outliers of each plane lie behind those of the one before.
  Status unpack(SlabPlace place, ByteView packed, std::byte* slab) const override {
    KVLANE_TRY(unpack_front(place, packed, slab));
    const std::string wrong = coder_.wrong_ends(place.layer, slab);
    return wrong.empty() ? Status() : refuse_packed(place, wrong);
  }
  Status seal(SlabPlace place, const std::uint16_t* rows, std::byte* slab) const override {
    return coder_.seal(place, rows, slab);
  }
  void open_page(SlabPlace place, const std::byte* slab, int kv_head,
                 std::uint16_t* page) const override {
    coder_.open_page(place, slab, kv_head, page, page + shape().page_plane_elements());
  }

 private:
  Coder coder_;
};

Status check_shape(const KvFormatContext& context) {
  const KvShape& shape = context.shape;
  KVLANE_TRY(check_all_heads(kName, context));
  if (context.rope == nullptr) {
    return invalid_argument("KV format 'kvquant' needs the model's rotary angles");
  }
  if (shape.head_dim > kHeadDimMax || shape.head_dim % 2 != 0) {
    return unsupported("KV format 'kvquant' knows heads of an even number of values up to " +
                       std::to_string(kHeadDimMax) + ", not of " + std::to_string(shape.head_dim));
  }
  return {};
}

}  // namespace
}  // namespace kvquant

Result<std::shared_ptr<const KvFormat>> make_kvquant(FormatText text,
                                                     const KvFormatContext& context) {
  using namespace kvquant;
  KVLANE_ASSIGN(const Options options, Options::parse(text));
  KVLANE_ASSIGN(const KvWindow window, text.window());
  KVLANE_TRY(text.finish());
  KVLANE_TRY(check_shape(context));
  const KvShape& shape = context.shape;
  const std::vector<HeadWidths> widths(std::size_t(shape.layers) * shape.kv_heads, shape.widths());
  KVLANE_ASSIGN(Coder coder, Coder::make({options, widths, context.rope, kName, false}, context));
  std::string name = std::string(kName) + ":bits=" + std::to_string(options.bits) +
                     ",outliers=" + std::to_string(options.outliers);
  if (options.outliers > 0) name += options.room_by_token ? ",room=token" : ",room=slab";
  return std::shared_ptr<const KvFormat>(std::make_shared<KvquantFormat>(
      name + window_text(window), context, window, std::move(coder)));
}

std::uint32_t kvquant_cut_values(const std::byte* slab) {
  std::uint32_t cut = 0;
  std::memcpy(&cut, slab, sizeof(cut));
  return cut;
}

}  // namespace kvlane
