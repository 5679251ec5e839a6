// Sealing `kvquant` slabs, and the format itself.
// SPDX-License-Identifier: Apache-2.0
#include "quant/kvquant.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/bf16.h"
#include "quant/kvquant_rows.h"
#include "quant/kvquant_slab.h"
#include "quant/slab_rows.h"
#include "quant/table_lookup.h"

namespace kvlane {
namespace kvquant {
namespace {

constexpr std::string_view kName = "kvquant";
// Limits and levels beyond these are no statistics of a model, and could overflow.
constexpr float kLimitMax = 0x1p120F;
constexpr float kLevelMax = 16;

// K or V of one layer.
struct Tensor {
  std::array<float, kLevelsMax> values{};  // what codes stand for
  std::vector<float> borders;              // [2^bits - 1]: between two signposts
  std::vector<Limits> limits;              // [kv_heads * head_dim], K only
  std::vector<float> middle;               // [kv_heads][16 * groups], K only
  std::vector<float> reach;                // the same

  // How many borders lie below: the nearest signpost, the lower one of two.
  int code_of(float normalised) const {
    int code = 0;
    for (const float border : borders) code += normalised > border;
    return code;
  }
};

Status wrong_table(const std::string& name, const std::string& what) {
  return invalid_argument("KV format 'kvquant': table '" + name + "' " + what);
}

Status read_levels(const KvFormatContext& context, const std::string& prefix, int bits,
                   Tensor& tensor) {
  const std::size_t levels = std::size_t{1} << bits;
  const std::string name = prefix + "b" + std::to_string(bits);
  KVLANE_ASSIGN(const auto signposts,
                find_table(context.tables, kName, name + ".signposts", levels));
  KVLANE_ASSIGN(const auto values, find_table(context.tables, kName, name + ".values", levels));
  if (!std::ranges::is_sorted(signposts)) {
    return wrong_table(name + ".signposts", "is not ascending");
  }
  const auto large = [](float x) { return std::abs(x) > kLevelMax; };
  if (std::ranges::any_of(signposts, large))
    return wrong_table(name + ".signposts", "goes beyond 16");
  if (std::ranges::any_of(values, large)) return wrong_table(name + ".values", "goes beyond 16");
  std::ranges::copy(values, tensor.values.begin());
  for (std::size_t i = 0; i + 1 < levels; ++i) {
    tensor.borders.push_back(signposts[i] * 0.5F + signposts[i + 1] * 0.5F);
  }
  return {};
}

Status read_limits(const KvFormatContext& context, const std::string& prefix, Tensor& tensor) {
  const KvShape& shape = context.shape;
  const std::size_t channels = std::size_t(shape.kv_heads) * shape.head_dim;
  const std::size_t stride = std::size_t{kGroup} * groups_of(shape.head_dim);
  KVLANE_ASSIGN(const auto low, find_table(context.tables, kName, prefix + "low", channels));
  KVLANE_ASSIGN(const auto high, find_table(context.tables, kName, prefix + "high", channels));
  tensor.middle.resize(stride * shape.kv_heads);
  tensor.reach.resize(tensor.middle.size());
  for (std::size_t c = 0; c < channels; ++c) {
    const Limits limits{low[c], high[c]};
    if (!(low[c] >= -kLimitMax && low[c] <= high[c] && high[c] <= kLimitMax)) {
      return wrong_table(
          prefix + "low",
          "is above '" + prefix + "high' or beyond 2^120 in channel " + std::to_string(c));
    }
    tensor.limits.push_back(limits);
    const std::size_t at = c / shape.head_dim * stride + c % shape.head_dim;
    tensor.middle[at] = limits.middle();
    tensor.reach[at] = limits.reach();
  }
  return {};
}

// A value of K outside its channel's limits.
struct Outside {
  float distance;  // from the middle, in reaches
  std::uint32_t token;
  std::uint32_t channel;
  std::uint16_t value;  // BF16
};

// Codes and outliers of a slab while it is sealed.
struct Sealing {
  std::vector<float> row;            // [channels] of one token
  std::vector<std::uint32_t> order;  // the same, scratch
  std::vector<Outside> keys;
  std::vector<std::vector<std::uint32_t>> outliers;  // [kv_heads][K, V]: value << 16 | place
  std::uint32_t cut = 0;
};

// Leaves, of those from `first` on, the `room` farthest out, by token and channel.
void keep_farthest(std::size_t first, std::size_t room, Sealing& sealing) {
  const auto begin = sealing.keys.begin() + static_cast<std::ptrdiff_t>(first);
  const std::size_t found = sealing.keys.size() - first;
  if (found <= room) return;
  const auto place = [](const Outside& o) { return std::pair(o.token, o.channel); };
  const auto last = begin + static_cast<std::ptrdiff_t>(room);
  std::nth_element(begin, last, sealing.keys.end(), [&](const Outside& a, const Outside& b) {
    return a.distance != b.distance ? a.distance > b.distance : place(a) < place(b);
  });
  sealing.keys.erase(last, sealing.keys.end());
  std::sort(begin, sealing.keys.end(),
            [&](const Outside& a, const Outside& b) { return place(a) < place(b); });
  sealing.cut += static_cast<std::uint32_t>(found - room);
}

class KvquantFormat final : public KvFormat {
 public:
  KvquantFormat(std::string name, const KvFormatContext& context, const KvWindow& window, int bits,
                int outliers, bool room_by_token, std::vector<Tensor> tensors)
      : KvFormat(
            std::move(name), context.shape, window,
            outliers_at(context.shape, bits) + kOutlierBytes * capacity_of(context.shape, outliers),
            tables_id(*context.tables, kName)),
        rope_(*context.rope),
        bits_(bits),
        at_end_(outliers_at_end(channels_of(context.shape), outliers)),
        capacity_(capacity_of(context.shape, outliers)),
        room_by_token_(room_by_token),
        tensors_(std::move(tensors)),
        open_keys_(context.isa == Isa::kAvx512 ? open_keys_avx512 : open_keys_scalar),
        open_values_(context.isa == Isa::kAvx512 ? open_values_avx512 : open_values_scalar) {}

  std::size_t used_bytes(SlabPlace /*place*/, const std::byte* slab) const override {
    return outliers_at(shape(), bits_) +
           kOutlierBytes * std::min<std::size_t>(end_of(slab, 2 * shape().kv_heads - 1), capacity_);
  }

  bool rope_applied() const override { return false; }

  void pack(SlabPlace place, const std::byte* slab, std::byte* packed) const override {
    pack_front(place, slab, packed);
  }
  // Besides: the outliers of each plane lie behind those of the one before.
  Status unpack(SlabPlace place, ByteView packed, std::byte* slab) const override {
    KVLANE_TRY(unpack_front(place, packed, slab));
    std::uint32_t first = 0;
    for (int plane = 0; plane < 2 * shape().kv_heads; ++plane) {
      const std::uint32_t end = end_of(slab, plane);
      if (end < first || end > capacity_) {
        return refuse_packed(place, "has outliers from " + std::to_string(first) + " to " +
                                        std::to_string(end) + ", there is room for " +
                                        std::to_string(capacity_));
      }
      first = end;
    }
    return {};
  }

  Status seal(SlabPlace place, const std::uint16_t* rows, std::byte* slab) const override {
    KVLANE_TRY(check_rows_are_finite(shape(), place, rows));
    std::memset(slab, 0, slab_bytes());
    const auto channels = static_cast<std::size_t>(channels_of(shape()));
    Sealing sealing;
    sealing.row.resize(channels);
    sealing.order.resize(channels);
    sealing.outliers.resize(2 * std::size_t(shape().kv_heads));
    for (int token = 0; token < kBlockTokens; ++token) {
      seal_key(place, rows, token, sealing, slab);
      seal_value(place, rows, token, sealing, slab);
    }
    keep_farthest(0, kBlockTokens * 2 * std::size_t(at_end_), sealing);
    for (const Outside& key : sealing.keys) {
      keep(true, key.token, key.channel, key.value, sealing);
    }
    std::memcpy(slab, &sealing.cut, sizeof(sealing.cut));
    std::uint32_t end = 0;
    std::byte* to = slab + outliers_at(shape(), bits_);
    for (std::size_t plane = 0; plane < sealing.outliers.size(); ++plane) {
      const auto& outliers = sealing.outliers[plane];
      end += static_cast<std::uint32_t>(outliers.size());
      std::memcpy(slab + sizeof(end) * (1 + plane), &end, sizeof(end));
      if (!outliers.empty()) std::memcpy(to, outliers.data(), kOutlierBytes * outliers.size());
      to += kOutlierBytes * outliers.size();
    }
    return {};
  }

  void open_page(SlabPlace place, const std::byte* slab, int kv_head,
                 std::uint16_t* page) const override {
    const Tensor& keys = tensor(place, true);
    const std::size_t channel = std::size_t{kGroup} * groups_of(shape().head_dim) * kv_head;
    RopeAngles angles[kBlockTokens];
    for (int i = 0; i < kBlockTokens; ++i) angles[i] = rope_.angles(place.position + i);
    open_keys_(plane(slab, kv_head, true, keys, page), keys.middle.data() + channel,
               keys.reach.data() + channel, angles);

    float middle[kBlockTokens];
    float reach[kBlockTokens];
    for (int i = 0; i < kBlockTokens; ++i) {
      const Limits limits = value_limits(slab, i);
      middle[i] = limits.middle();
      reach[i] = limits.reach();
    }
    open_values_(
        plane(slab, kv_head, false, tensor(place, false), page + shape().page_plane_elements()),
        middle, reach);
  }

 private:
  static int channels_of(const KvShape& shape) { return shape.kv_heads * shape.head_dim; }
  // Outliers that a slab has room for, K and V together.
  static std::size_t capacity_of(const KvShape& shape, int outliers) {
    return 2 * std::size_t{kBlockTokens} * 2 * outliers_at_end(channels_of(shape), outliers);
  }
  static std::size_t plane_bytes(const KvShape& shape, int bits) {
    return kBlockTokens * row_bytes(shape.head_dim, bits);
  }
  static std::size_t outliers_at(const KvShape& shape, int bits) {
    return codes_at(shape.kv_heads) + 2 * shape.kv_heads * plane_bytes(shape, bits);
  }
  std::size_t plane_at(int head, bool is_key) const {
    return codes_at(shape().kv_heads) +
           (2 * std::size_t(head) + (is_key ? 0 : 1)) * plane_bytes(shape(), bits_);
  }
  const Tensor& tensor(SlabPlace place, bool is_key) const {
    return tensors_[2 * std::size_t(place.layer) + (is_key ? 0 : 1)];
  }
  static std::uint32_t end_of(const std::byte* slab, int plane) {
    std::uint32_t end = 0;
    std::memcpy(&end, slab + sizeof(end) * (1 + plane), sizeof(end));
    return end;
  }

  // A token's codes over all heads.
  template <class CodeOf>
  void write_codes(bool is_key, int token, const CodeOf& code_of, std::byte* slab) const {
    for (int head = 0; head < shape().kv_heads; ++head) {
      std::byte* to = slab + plane_at(head, is_key) + token * row_bytes(shape().head_dim, bits_);
      for (int first = 0; first < shape().head_dim; first += kGroup) {
        std::uint16_t words[4] = {};
        for (int i = first; i < std::min(first + kGroup, shape().head_dim); ++i) {
          const int code = code_of(head * shape().head_dim + i);
          for (int bit = 0; bit < bits_; ++bit) {
            words[bit] = static_cast<std::uint16_t>(words[bit] | (code >> bit & 1) << (i - first));
          }
        }
        std::memcpy(to, words, bits_ * sizeof(std::uint16_t));
        to += bits_ * sizeof(std::uint16_t);
      }
    }
  }

  // Keeps a value; called in the order of tokens, of channels within one.
  void keep(bool is_key, std::uint32_t token, std::uint32_t channel, std::uint16_t value,
            Sealing& sealing) const {
    const auto dim = static_cast<std::uint32_t>(shape().head_dim);
    const std::uint32_t place = token * dim + channel % dim;
    sealing.outliers[2 * std::size_t(channel / dim) + (is_key ? 0 : 1)].push_back(
        std::uint32_t{value} << 16 | place);
  }

  void seal_key(SlabPlace place, const std::uint16_t* rows, int token, Sealing& sealing,
                std::byte* slab) const {
    const Tensor& keys = tensor(place, true);
    std::vector<float>& row = sealing.row;
    read_token(shape(), rows, true, token, rope_.angles(place.position + token), row.data());
    const auto normalised = [&](std::uint32_t c) {
      return (row[c] - keys.limits[c].middle()) * keys.limits[c].per_value();
    };
    write_codes(
        true, token, [&](int c) { return keys.code_of(normalised(c)); }, slab);
    if (at_end_ == 0) return;

    const std::size_t first = sealing.keys.size();
    for (std::uint32_t c = 0; c < row.size(); ++c) {
      const Limits& limits = keys.limits[c];
      if (row[c] >= limits.low && row[c] <= limits.high) continue;
      // A channel that calibration saw constant comes first.
      const float scale = limits.per_value();
      const float distance = scale > 0 ? std::abs(row[c] - limits.middle()) * scale
                                       : std::numeric_limits<float>::infinity();
      sealing.keys.push_back(
          {distance, static_cast<std::uint32_t>(token), c, to_bf16(row[c]).bits});
    }
    if (room_by_token_) keep_farthest(first, 2 * std::size_t(at_end_), sealing);
  }

  void seal_value(SlabPlace place, const std::uint16_t* rows, int token, Sealing& sealing,
                  std::byte* slab) const {
    const Tensor& values = tensor(place, false);
    std::vector<float>& row = sealing.row;
    read_token(shape(), rows, false, token, {}, row.data());
    const Limits limits = token_limits(row, at_end_, sealing.order);
    const std::uint16_t stored[2] = {to_bf16(limits.low).bits, to_bf16(limits.high).bits};
    std::byte* const to = slab + limits_at(shape().kv_heads);
    std::memcpy(to + sizeof(stored[0]) * token, &stored[0], sizeof(stored[0]));
    std::memcpy(to + sizeof(stored[0]) * (kBlockTokens + token), &stored[1], sizeof(stored[1]));
    const float middle = limits.middle();
    const float per_value = limits.per_value();
    write_codes(
        false, token, [&](int c) { return values.code_of((row[c] - middle) * per_value); }, slab);
    const auto last = sealing.order.begin() + 2 * at_end_;
    std::sort(sealing.order.begin(), last);
    for (auto at = sealing.order.begin(); at != last; ++at) {
      keep(false, static_cast<std::uint32_t>(token), *at, to_bf16(row[*at]).bits, sealing);
    }
  }

  // Limits of a token's V; finite whatever the bytes are.
  Limits value_limits(const std::byte* slab, int token) const {
    const std::byte* const from = slab + limits_at(shape().kv_heads);
    std::uint16_t bits[2];
    std::memcpy(&bits[0], from + sizeof(bits[0]) * token, sizeof(bits[0]));
    std::memcpy(&bits[1], from + sizeof(bits[0]) * (kBlockTokens + token), sizeof(bits[1]));
    if (!is_finite_bf16(bits[0]) || !is_finite_bf16(bits[1])) return {};
    return {to_float(bf16{bits[0]}), to_float(bf16{bits[1]})};
  }

  Plane plane(const std::byte* slab, int head, bool is_key, const Tensor& tensor,
              std::uint16_t* rows) const {
    const int index = 2 * head + (is_key ? 0 : 1);
    const std::size_t first =
        index > 0 ? std::min<std::size_t>(end_of(slab, index - 1), capacity_) : 0;
    const std::size_t end = std::clamp<std::size_t>(end_of(slab, index), first, capacity_);
    return {shape().head_dim,
            bits_,
            slab + plane_at(head, is_key),
            tensor.values.data(),
            slab + outliers_at(shape(), bits_) + kOutlierBytes * first,
            end - first,
            rows};
  }

  const RopeTable& rope_;
  int bits_;
  int at_end_;            // outliers of a token at either end of its values
  std::size_t capacity_;  // outliers of a slab
  bool room_by_token_;
  std::vector<Tensor> tensors_;
  OpenKeys open_keys_;
  OpenValues open_values_;
};

Status check_shape(const KvFormatContext& context, int outliers) {
  const KvShape& shape = context.shape;
  if (context.rope == nullptr) {
    return invalid_argument("KV format 'kvquant' needs the model's rotary angles");
  }
  if (shape.head_dim > kHeadDimMax || shape.head_dim % 2 != 0) {
    return unsupported("KV format 'kvquant' knows heads of an even number of values up to " +
                       std::to_string(kHeadDimMax) + ", not of " + std::to_string(shape.head_dim));
  }
  const int channels = shape.kv_heads * shape.head_dim;
  if (2 * outliers_at_end(channels, outliers) >= channels) {
    return unsupported("KV format 'kvquant' needs more than 2 channels, not " +
                       std::to_string(channels));
  }
  return {};
}

}  // namespace
}  // namespace kvquant

Result<std::shared_ptr<const KvFormat>> make_kvquant(FormatText text,
                                                     const KvFormatContext& context) {
  using namespace kvquant;
  constexpr std::array kBits = {2, 3, 4};
  constexpr std::array kOutliers = {0, 1};
  KVLANE_ASSIGN(const int bits, text.one_of("bits", kBits, 4));
  KVLANE_ASSIGN(const int outliers, text.one_of("outliers", kOutliers, 1));
  std::string room;
  if (outliers > 0) {
    constexpr std::array<std::string_view, 2> kRooms = {"slab", "token"};
    KVLANE_ASSIGN(room, text.word("room", kRooms, "slab"));
  }
  KVLANE_ASSIGN(const KvWindow window, text.window());
  KVLANE_TRY(text.finish());
  KVLANE_TRY(check_shape(context, outliers));
  std::vector<Tensor> tensors;
  for (int layer = 0; layer < context.shape.layers; ++layer) {
    for (const bool is_key : {true, false}) {
      const std::string prefix =
          table_prefix(kName, layer, is_key) + "o" + std::to_string(outliers) + ".";
      Tensor tensor;
      KVLANE_TRY(read_levels(context, prefix, bits, tensor));
      if (is_key) KVLANE_TRY(read_limits(context, prefix, tensor));
      tensors.push_back(std::move(tensor));
    }
  }
  std::string name =
      "kvquant:bits=" + std::to_string(bits) + ",outliers=" + std::to_string(outliers);
  if (outliers > 0) name += ",room=" + room;
  name += window_text(window);
  return std::shared_ptr<const KvFormat>(std::make_shared<KvquantFormat>(
      std::move(name), context, window, bits, outliers, room == "token", std::move(tensors)));
}

std::uint32_t kvquant_cut_values(const std::byte* slab) {
  std::uint32_t cut = 0;
  std::memcpy(&cut, slab, sizeof(cut));
  return cut;
}

}  // namespace kvlane
