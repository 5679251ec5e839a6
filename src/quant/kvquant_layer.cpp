// Reads tables, and adds up what parts take.
// SPDX-License-Identifier: Apache-2.0
#include "quant/kvquant_layer.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "quant/table_lookup.h"

namespace kvlane::kvquant {
namespace {

// Limits and levels beyond these are no statistics of a model, and could overflow.
constexpr float kLimitMax = 0x1p120F;
constexpr float kLevelMax = 16;

// The tables of K or V of one layer, while they are read.
struct Source {
  const Kind& kind;
  const KvFormatContext& context;
  std::string prefix;  // "kvquant.layers.3.k."

  Result<std::span<const float>> find(const std::string& name, std::size_t size) const {
    return find_table(context.tables, kind.tables, prefix + name, size);
  }
  Status wrong(const std::string& name, const std::string& what) const {
    return invalid_argument("KV format '" + kind.tables + "': table '" + prefix + name + "' " +
                            what);
  }
  std::string of_outliers() const { return "o" + std::to_string(kind.options.outliers) + "."; }
};

Status read_levels(const Source& source, Tensor& tensor) {
  const int bits = source.kind.options.bits;
  const std::size_t levels = std::size_t{1} << bits;
  const std::string name = source.of_outliers() + "b" + std::to_string(bits);
  KVLANE_ASSIGN(const auto signposts, source.find(name + ".signposts", levels));
  KVLANE_ASSIGN(const auto values, source.find(name + ".values", levels));
  if (!std::ranges::is_sorted(signposts)) {
    return source.wrong(name + ".signposts", "is not ascending");
  }
  const auto large = [](float x) { return std::abs(x) > kLevelMax; };
  if (std::ranges::any_of(signposts, large)) {
    return source.wrong(name + ".signposts", "goes beyond 16");
  }
  if (std::ranges::any_of(values, large)) return source.wrong(name + ".values", "goes beyond 16");
  std::ranges::copy(values, tensor.values.begin());
  for (std::size_t i = 0; i + 1 < levels; ++i) {
    tensor.borders.push_back(signposts[i] * 0.5F + signposts[i + 1] * 0.5F);
  }
  return {};
}

Status read_limits(const Source& source, Tensor& tensor) {
  const std::size_t channels = tensor.channels.back();
  const std::string o = source.of_outliers();
  KVLANE_ASSIGN(const auto low, source.find(o + "low", channels));
  KVLANE_ASSIGN(const auto high, source.find(o + "high", channels));
  for (std::size_t c = 0; c < channels; ++c) {
    if (!(low[c] >= -kLimitMax && low[c] <= high[c] && high[c] <= kLimitMax)) {
      return source.wrong(o + "low", "is above '" + source.prefix + o +
                                         "high' or beyond 2^120 in channel " + std::to_string(c));
    }
    tensor.limits.push_back({low[c], high[c]});
  }
  for (std::size_t head = 0; head + 1 < tensor.channels.size(); ++head) {
    tensor.places.push_back(static_cast<int>(tensor.middle.size()));
    for (int c = tensor.channels[head]; c < tensor.channels[head + 1]; ++c) {
      tensor.middle.push_back(tensor.limits[c].middle());
      tensor.reach.push_back(tensor.limits[c].reach());
    }
    const int width = tensor.width(static_cast<int>(head));
    tensor.middle.resize(tensor.places.back() + std::size_t{kGroup} * groups_of(width));
    tensor.reach.resize(tensor.middle.size());
  }
  return {};
}

Status check_widths(const Source& source, const Tensor& tensor) {
  const std::size_t heads = tensor.channels.size() - 1;
  KVLANE_ASSIGN(const auto widths, source.find("widths", heads));
  for (std::size_t head = 0; head < heads; ++head) {
    const int width = tensor.width(static_cast<int>(head));
    if (widths[head] == static_cast<float>(width)) continue;
    return source.wrong("widths", "is of a KV head " + std::to_string(head) +
                                      " of other dimensions than the " + std::to_string(width) +
                                      " that this model keeps");
  }
  return {};
}

Status read_tensor(const Source& source, bool is_key, Tensor& tensor) {
  const int channels = tensor.channels.back();
  tensor.at_end = outliers_at_end(channels, source.kind.options.outliers);
  if (2 * tensor.at_end >= channels) {
    return unsupported("KV format 'kvquant' needs more than 2 channels, not " +
                       std::to_string(channels));
  }
  if (source.kind.tables_have_widths) KVLANE_TRY(check_widths(source, tensor));
  KVLANE_TRY(read_levels(source, tensor));
  if (is_key) KVLANE_TRY(read_limits(source, tensor));
  return {};
}

void place_parts(int kv_heads, int bits, Layer& layer) {
  std::size_t at = codes_at(kv_heads);
  for (int head = 0; head < kv_heads; ++head) {
    for (const bool is_key : {true, false}) {
      layer.planes.push_back(at);
      at += kBlockTokens * row_bytes(layer.tensor(is_key).width(head), bits);
    }
  }
  layer.planes.push_back(at);
  layer.capacity =
      2 * std::size_t{kBlockTokens} * (layer.keys.at_end + std::size_t(layer.values.at_end));
}

}  // namespace

Result<Options> Options::parse(FormatText& text) {
  constexpr std::array kBits = {2, 3, 4};
  constexpr std::array kOutliers = {0, 1};
  constexpr std::array<std::string_view, 2> kRooms = {"slab", "token"};
  Options options{};
  KVLANE_ASSIGN(options.bits, text.one_of("bits", kBits, 4));
  KVLANE_ASSIGN(options.outliers, text.one_of("outliers", kOutliers, 1));
  if (options.outliers > 0) {
    KVLANE_ASSIGN(const std::string room, text.word("room", kRooms, kRooms[0]));
    options.room_by_token = room == kRooms[1];
  }
  return options;
}

Result<std::vector<Layer>> make_layers(const Kind& kind, const KvFormatContext& context) {
  const KvShape& shape = context.shape;
  std::vector<Layer> layers(shape.layers);
  for (int i = 0; i < shape.layers; ++i) {
    Layer& layer = layers[i];
    layer.keys.channels.push_back(0);
    layer.values.channels.push_back(0);
    for (int head = 0; head < shape.kv_heads; ++head) {
      const HeadWidths widths = kind.widths[std::size_t(i) * shape.kv_heads + head];
      layer.keys.channels.push_back(layer.keys.channels.back() + widths.k);
      layer.values.channels.push_back(layer.values.channels.back() + widths.v);
    }
    for (const bool is_key : {true, false}) {
      const Source source{kind, context, table_prefix(kind.tables, i, is_key)};
      KVLANE_TRY(read_tensor(source, is_key, is_key ? layer.keys : layer.values));
    }
    place_parts(shape.kv_heads, kind.options.bits, layer);
  }
  return layers;
}

}  // namespace kvlane::kvquant
