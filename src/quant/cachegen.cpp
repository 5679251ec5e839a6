// Sealing and opening `cachegen` slabs.
// SPDX-License-Identifier: Apache-2.0
#include "quant/cachegen.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/bf16.h"
#include "quant/cachegen_models.h"
#include "quant/cachegen_slab.h"
#include "quant/heads_together.h"
#include "quant/slab_rows.h"
#include "quant/table_lookup.h"

namespace kvlane {
namespace cachegen {
namespace {

constexpr std::string_view kName = "cachegen";
// What the symbols of an open page take is on the stack.
constexpr int kHeadDimMax = 512;
using Symbols = std::array<std::uint8_t, std::size_t{kBlockTokens} * kHeadDimMax>;

// K or V of one layer: what its values become, and how that is coded.
struct Tensor {
  PlaneModels models;
  int middle = 0;                    // form=code
  std::vector<float> steps;          // [kv_heads * head_dim], form=paper
  std::vector<float> steps_inverse;  // the same

  std::size_t raw_bytes(int head_dim) const {
    return raw_plane_bytes(models.form, models.symbols.symbols(), head_dim);
  }
  PlaneRule rule(int head, int head_dim) const {
    if (models.form == Form::kCode) return {models.form, middle, {}, {}};
    const std::size_t first = std::size_t(head) * head_dim;
    return {models.form, middle, std::span(steps).subspan(first, head_dim),
            std::span(steps_inverse).subspan(first, head_dim)};
  }
};

Result<ChannelModels> read_models(const KvFormatContext& context, const std::string& name,
                                  int symbols) {
  const KvShape& shape = context.shape;
  const std::size_t channels = std::size_t(shape.kv_heads) * shape.head_dim;
  KVLANE_ASSIGN(const auto counts, find_table(context.tables, kName, name, channels * symbols));
  auto models = ChannelModels::from_counts(counts, symbols, shape.kv_heads, shape.head_dim);
  if (!models.ok()) {
    return models.status().with_context("KV format 'cachegen': table '" + name + "'");
  }
  return models;
}

Result<Tensor> read_tensor(const KvFormatContext& context, Form form, int level, int layer,
                           bool is_key) {
  const KvShape& shape = context.shape;
  const std::string prefix = table_prefix(kName, layer, is_key);
  Tensor tensor;
  tensor.models.form = form;
  if (form == Form::kCode) {
    const int bins = bins_of(level, is_key, layer, shape.layers);
    tensor.middle = middle_of(bins);
    KVLANE_ASSIGN(tensor.models.symbols,
                  read_models(context, prefix + "bins" + std::to_string(bins), symbols_of(bins)));
    return tensor;
  }
  KVLANE_ASSIGN(const auto deviations, find_table(context.tables, kName, prefix + "deviation",
                                                  std::size_t(shape.kv_heads) * shape.head_dim));
  for (const float deviation : deviations) {
    if (deviation < 0) {
      return invalid_argument("KV format 'cachegen': table '" + prefix +
                              "deviation' has a negative value");
    }
    tensor.steps.push_back(deviation * bin_width(layer, shape.layers));
    tensor.steps_inverse.push_back(step_inverse(tensor.steps.back()));
  }
  KVLANE_ASSIGN(tensor.models.symbols, read_models(context, prefix + "delta", kDeltaSymbols));
  KVLANE_ASSIGN(tensor.models.anchors, read_models(context, prefix + "anchor", kAnchorSymbols));
  return tensor;
}

class CachegenFormat final : public KvFormat, public HeadsTogether {
 public:
  // tensors: K then V for each layer.
  CachegenFormat(std::string name, const KvFormatContext& context, const KvWindow& window,
                 std::vector<Tensor> tensors)
      : KvFormat(std::move(name), context.shape, window, bytes_max(context.shape, tensors),
                 tables_id(*context.tables, kName)),
        tensors_(std::move(tensors)),
        form_(tensors_.front().models.form),
        stride_(std::size_t{kCoderLanes} * groups_of(context.shape.head_dim)),
        decode_page_(decode_page_kernel(context.isa)),
        open_plane_(open_plane_kernel(context.isa)) {}

  std::size_t used_bytes(SlabPlace /*place*/, const std::byte* slab) const override {
    return std::clamp<std::size_t>(page_end(slab, shape().kv_heads - 1), header(), slab_bytes());
  }

  Status seal(SlabPlace place, const std::uint16_t* rows, std::byte* slab) const override {
    KVLANE_TRY(check_rows_are_finite(shape(), place, rows));
    float largest[2][kBlockTokens];
    write_scales(rows, slab, largest);
    std::size_t at = header();
    for (int head = 0; head < shape().kv_heads; ++head) {
      Symbols symbols[2];
      for (int part = 0; part < 2; ++part) {
        quantise_plane(tensor(place, part).rule(head, shape().head_dim), largest[part],
                       slab_row(shape(), rows, head, part == 0, 0), shape().head_dim, stride_,
                       symbols[part].data());
      }
      at += write_page(plane(place, 0, head, symbols[0]), plane(place, 1, head, symbols[1]),
                       {slab + at, raw_bytes(place)});
      const auto end = static_cast<std::uint32_t>(at);
      std::memcpy(slab + sizeof(end) * head, &end, sizeof(end));
    }
    std::memset(slab + at, 0, slab_bytes() - at);
    return {};
  }

  void pack(SlabPlace place, const std::byte* slab, std::byte* packed) const override {
    pack_front(place, slab, packed);
  }
  // Besides: pages one behind another, each a run of lanes or plain symbols.
  Status unpack(SlabPlace place, ByteView packed, std::byte* slab) const override {
    KVLANE_TRY(unpack_front(place, packed, slab));
    std::size_t first = header();
    for (int head = 0; head < shape().kv_heads; ++head) {
      const std::size_t end = page_end(slab, head);
      if (end < first || end - first > raw_bytes(place)) {
        return refuse_packed(
            place, "has a page from byte " + std::to_string(first) + " to " + std::to_string(end));
      }
      first = end;
    }
    return {};
  }

  void open_page(SlabPlace place, const std::byte* slab, int kv_head,
                 std::uint16_t* page) const override {
    const ByteView body = page_body(slab, kv_head);
    Symbols symbols[2];
    const PlaneSymbols keys = plane(place, 0, kv_head, symbols[0]);
    const PlaneSymbols values = plane(place, 1, kv_head, symbols[1]);
    if (body.size() == raw_bytes(place)) {
      const std::size_t k_bytes = raw_plane_bytes(keys.form, keys.alphabet, keys.head_dim);
      read_raw(keys, body.first(k_bytes));
      read_raw(values, body.subspan(k_bytes));
    } else {
      decode_page_(keys, values, body.data(), body.size());
    }
    for (int part = 0; part < 2; ++part) {
      float largest[kBlockTokens];
      read_scales(slab, part, largest);
      const PlaneRule rule = tensor(place, part).rule(kv_head, shape().head_dim);
      open_plane_({form_, rule.middle, rule.steps.data(), symbols[part].data(), stride_, largest,
                   shape().head_dim, page + part * shape().page_plane_elements()});
    }
  }

 private:
  static std::size_t raw_bytes(const Tensor& k, const Tensor& v, int head_dim) {
    return k.raw_bytes(head_dim) + v.raw_bytes(head_dim);
  }
  static std::size_t bytes_max(const KvShape& shape, const std::vector<Tensor>& tensors) {
    std::size_t most = 0;
    for (int layer = 0; layer < shape.layers; ++layer) {
      most = std::max(most, raw_bytes(tensors[2 * layer], tensors[2 * layer + 1], shape.head_dim));
    }
    return header_bytes(tensors.front().models.form, shape.kv_heads) + most * shape.kv_heads;
  }

  std::size_t header() const { return header_bytes(form_, shape().kv_heads); }
  const Tensor& tensor(SlabPlace place, int part) const {
    return tensors_[2 * std::size_t(place.layer) + part];
  }
  std::size_t raw_bytes(SlabPlace place) const {
    return raw_bytes(tensor(place, 0), tensor(place, 1), shape().head_dim);
  }
  PlaneSymbols plane(SlabPlace place, int part, int head, Symbols& symbols) const {
    return {tensor(place, part).models, head, shape().head_dim, symbols.data()};
  }

  static std::uint32_t page_end(const std::byte* slab, int head) {
    std::uint32_t end = 0;
    std::memcpy(&end, slab + sizeof(end) * head, sizeof(end));
    return end;
  }
  // Within the slab whatever it says.
  ByteView page_body(const std::byte* slab, int head) const {
    const std::size_t first = std::clamp<std::size_t>(
        head > 0 ? page_end(slab, head - 1) : header(), header(), slab_bytes());
    const std::size_t end = std::clamp<std::size_t>(page_end(slab, head), first, slab_bytes());
    return {slab + first, end - first};
  }

  std::size_t scales_at(int part) const {
    return sizeof(std::uint32_t) * shape().kv_heads +
           sizeof(std::uint16_t) * scales_of(form_) * part;
  }
  void write_scales(const std::uint16_t* rows, std::byte* slab,
                    float (&largest)[2][kBlockTokens]) const {
    for (int part = 0; part < 2; ++part) {
      for (int i = 0; i < scales_of(form_); ++i) {
        const int token = form_ == Form::kCode ? i : i * kAnchorEvery;
        largest[part][i] = largest_magnitude(shape(), rows, part == 0, token);
        const bf16 stored = to_bf16(largest[part][i]);
        std::memcpy(slab + scales_at(part) + sizeof(stored) * i, &stored, sizeof(stored));
      }
    }
  }
  void read_scales(const std::byte* slab, int part, float (&largest)[kBlockTokens]) const {
    const std::byte* const from = slab + scales_at(part);
    for (int i = 0; i < scales_of(form_); ++i) {
      bf16 stored{};
      std::memcpy(&stored, from + sizeof(stored) * i, sizeof(stored));
      const float value = to_float(stored);
      largest[i] = is_finite_bf16(stored.bits) && value >= kScaleLeast ? value : 0;
    }
  }

  // As a run of lanes if that is shorter than `room`, which is what the symbols take without.
  static std::size_t write_page(const PlaneSymbols& keys, const PlaneSymbols& values,
                                std::span<std::byte> room) {
    LaneEncoder encoder(room);
    encode_plane(values, encoder);
    encode_plane(keys, encoder);
    const std::size_t bytes = encoder.finish();
    if (bytes > 0 && bytes < room.size()) {
      std::memmove(room.data(), room.data() + room.size() - bytes, bytes);
      return bytes;
    }
    const std::size_t k_bytes = raw_plane_bytes(keys.form, keys.alphabet, keys.head_dim);
    write_raw(keys, room.first(k_bytes));
    write_raw(values, room.subspan(k_bytes));
    return room.size();
  }

  std::vector<Tensor> tensors_;
  Form form_;
  std::size_t stride_;
  DecodePage decode_page_;
  OpenPlane open_plane_;
};

}  // namespace
}  // namespace cachegen

Result<std::shared_ptr<const KvFormat>> make_cachegen(FormatText text,
                                                      const KvFormatContext& context) {
  using namespace cachegen;
  constexpr std::array<std::string_view, 2> kForms = {"code", "paper"};
  KVLANE_ASSIGN(const std::string form_name, text.word("form", kForms, "code"));
  const Form form = form_name == "code" ? Form::kCode : Form::kPaper;
  int level = 0;
  if (form == Form::kCode) {
    KVLANE_ASSIGN(level, text.within("level", 1, 3, 2));
  }
  KVLANE_ASSIGN(const KvWindow window, text.window());
  KVLANE_TRY(text.finish());
  KVLANE_TRY(check_all_heads("cachegen", context));
  if (context.shape.head_dim > kHeadDimMax) {
    return unsupported("KV format 'cachegen' knows heads of at most " +
                       std::to_string(kHeadDimMax) + " values, not of " +
                       std::to_string(context.shape.head_dim));
  }
  std::vector<Tensor> tensors;
  for (int layer = 0; layer < context.shape.layers; ++layer) {
    for (const bool is_key : {true, false}) {
      KVLANE_ASSIGN(Tensor tensor, read_tensor(context, form, level, layer, is_key));
      tensors.push_back(std::move(tensor));
    }
  }
  std::string name = "cachegen:form=" + form_name;
  if (form == Form::kCode) name += ",level=" + std::to_string(level);
  name += window_text(window);
  return std::shared_ptr<const KvFormat>(
      std::make_shared<CachegenFormat>(std::move(name), context, window, std::move(tensors)));
}

}  // namespace kvlane
