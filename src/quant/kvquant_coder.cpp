// Codes and outliers of a slab, token after token.
// SPDX-License-Identifier: Apache-2.0
#include "quant/kvquant_coder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/bf16.h"
#include "quant/slab_rows.h"

namespace kvlane::kvquant {
namespace {

// A value of K outside its channel's limits.
struct Outside {
  float distance;  // from the middle, in reaches
  std::uint32_t token;
  std::uint32_t channel;
  std::uint16_t value;  // BF16
};

// Leaves, of those from `first` on, the `room` farthest out, by token and channel; gives how many
// these were too many.
std::uint32_t keep_farthest(std::size_t first, std::size_t room, std::vector<Outside>& keys) {
  const auto begin = keys.begin() + static_cast<std::ptrdiff_t>(first);
  const std::size_t found = keys.size() - first;
  if (found <= room) return 0;
  const auto place = [](const Outside& o) { return std::pair(o.token, o.channel); };
  const auto last = begin + static_cast<std::ptrdiff_t>(room);
  std::nth_element(begin, last, keys.end(), [&](const Outside& a, const Outside& b) {
    return a.distance != b.distance ? a.distance > b.distance : place(a) < place(b);
  });
  keys.erase(last, keys.end());
  std::sort(begin, keys.end(),
            [&](const Outside& a, const Outside& b) { return place(a) < place(b); });
  return static_cast<std::uint32_t>(found - room);
}

std::uint32_t end_of(const std::byte* slab, int plane) {
  std::uint32_t end = 0;
  std::memcpy(&end, slab + sizeof(end) * (1 + plane), sizeof(end));
  return end;
}

}  // namespace

// Of a slab while it is sealed.
struct Coder::Sealing {
  explicit Sealing(const Layer& layer)
      : row(std::max(layer.keys.channels.back(), layer.values.channels.back())),
        codes(row.size()),
        order(layer.values.channels.back()),
        outliers(layer.planes.size() - 1) {}

  // Keeps a value; called in the order of tokens, of channels within one.
  void keep(const Tensor& tensor, bool is_key, std::uint32_t token, std::uint32_t channel,
            std::uint16_t value) {
    const auto next =
        std::upper_bound(tensor.channels.begin(), tensor.channels.end(), static_cast<int>(channel));
    const auto head = static_cast<int>(next - tensor.channels.begin()) - 1;
    const std::uint32_t place =
        token * tensor.width(head) + (channel - static_cast<std::uint32_t>(tensor.channels[head]));
    outliers[2 * std::size_t(head) + (is_key ? 0 : 1)].push_back(std::uint32_t{value} << 16 |
                                                                 place);
  }

  std::vector<float> row;            // of one token
  std::vector<std::uint8_t> codes;   // likewise
  std::vector<std::uint32_t> order;  // likewise, scratch
  std::vector<Outside> keys;
  std::vector<std::vector<std::uint32_t>> outliers;  // [kv_heads][K, V]: value << 16 | place
  std::uint32_t cut = 0;
};

Coder::Coder(const Kind& kind, const KvFormatContext& context, std::vector<Layer> layers)
    : shape_(context.shape),
      options_(kind.options),
      rope_(kind.rope),
      layers_(std::move(layers)),
      open_keys_(open_keys_kernel(context.isa)),
      open_values_(open_values_kernel(context.isa)) {}

Result<Coder> Coder::make(const Kind& kind, const KvFormatContext& context) {
  KVLANE_ASSIGN(std::vector<Layer> layers, make_layers(kind, context));
  return Coder(kind, context, std::move(layers));
}

SlabSizes Coder::slab_sizes() const {
  std::vector<std::size_t> bytes;
  for (const Layer& layer : layers_) {
    bytes.push_back((layer.outliers_at() + kOutlierBytes * layer.capacity + 63) / 64 * 64);
  }
  return SlabSizes(bytes);
}

std::size_t Coder::used_bytes(int layer, const std::byte* slab) const {
  const std::size_t end = end_of(slab, 2 * shape_.kv_heads - 1);
  return layers_[layer].outliers_at() + kOutlierBytes * std::min(end, layers_[layer].capacity);
}

std::string Coder::wrong_ends(int layer, const std::byte* slab) const {
  const std::size_t capacity = layers_[layer].capacity;
  std::uint32_t first = 0;
  for (int plane = 0; plane < 2 * shape_.kv_heads; ++plane) {
    const std::uint32_t end = end_of(slab, plane);
    if (end < first || end > capacity) {
      return "has outliers from " + std::to_string(first) + " to " + std::to_string(end) +
             ", there is room for " + std::to_string(capacity);
    }
    first = end;
  }
  return {};
}

PagePlace Coder::codes_place(int layer, int head) const {
  const std::size_t begin = layers_[layer].plane_at(head, true);
  return {begin, layers_[layer].plane_at(head + 1, true) - begin};
}

// A token's codes over all heads.
void Coder::write_codes(const Tensor& tensor, bool is_key, int token, const Layer& layer,
                        const Sealing& sealing, std::byte* slab) const {
  const int bits = options_.bits;
  for (int head = 0; head < shape_.kv_heads; ++head) {
    const int width = tensor.width(head);
    const std::uint8_t* const codes = sealing.codes.data() + tensor.channels[head];
    std::byte* to = slab + layer.plane_at(head, is_key) + token * row_bytes(width, bits);
    for (int first = 0; first < width; first += kGroup) {
      std::uint16_t words[4] = {};
      for (int i = first; i < std::min(first + kGroup, width); ++i) {
        for (int bit = 0; bit < bits; ++bit) {
          words[bit] =
              static_cast<std::uint16_t>(words[bit] | (codes[i] >> bit & 1) << (i - first));
        }
      }
      std::memcpy(to, words, bits * sizeof(std::uint16_t));
      to += bits * sizeof(std::uint16_t);
    }
  }
}

void Coder::seal_key(SlabPlace place, const std::uint16_t* rows, int token, Sealing& sealing,
                     std::byte* slab) const {
  const Layer& layer = layers_[place.layer];
  const Tensor& keys = layer.keys;
  const auto channels = static_cast<std::uint32_t>(keys.channels.back());
  float* const row = sealing.row.data();
  read_token(shape_, keys.channels, rows, true, token, angles(place.position + token), row);
  for (std::uint32_t c = 0; c < channels; ++c) {
    const float normalised = (row[c] - keys.limits[c].middle()) * keys.limits[c].per_value();
    sealing.codes[c] = static_cast<std::uint8_t>(keys.code_of(normalised));
  }
  write_codes(keys, true, token, layer, sealing, slab);
  if (keys.at_end == 0) return;

  const std::size_t first = sealing.keys.size();
  for (std::uint32_t c = 0; c < channels; ++c) {
    const Limits& limits = keys.limits[c];
    if (row[c] >= limits.low && row[c] <= limits.high) continue;
    // A channel that calibration saw constant comes first.
    const float scale = limits.per_value();
    const float distance = scale > 0 ? std::abs(row[c] - limits.middle()) * scale
                                     : std::numeric_limits<float>::infinity();
    sealing.keys.push_back({distance, static_cast<std::uint32_t>(token), c, to_bf16(row[c]).bits});
  }
  if (options_.room_by_token) {
    sealing.cut += keep_farthest(first, 2 * std::size_t(keys.at_end), sealing.keys);
  }
}

void Coder::seal_value(SlabPlace place, const std::uint16_t* rows, int token, Sealing& sealing,
                       std::byte* slab) const {
  const Layer& layer = layers_[place.layer];
  const Tensor& values = layer.values;
  const std::span<float> row = std::span(sealing.row).first(values.channels.back());
  read_token(shape_, values.channels, rows, false, token, {}, row.data());
  const Limits limits = token_limits(row, values.at_end, sealing.order);
  const std::uint16_t stored[2] = {to_bf16(limits.low).bits, to_bf16(limits.high).bits};
  std::byte* const to = slab + limits_at(shape_.kv_heads);
  std::memcpy(to + sizeof(stored[0]) * token, &stored[0], sizeof(stored[0]));
  std::memcpy(to + sizeof(stored[0]) * (kBlockTokens + token), &stored[1], sizeof(stored[1]));
  const float middle = limits.middle();
  const float per_value = limits.per_value();
  for (std::size_t c = 0; c < row.size(); ++c) {
    sealing.codes[c] = static_cast<std::uint8_t>(values.code_of((row[c] - middle) * per_value));
  }
  write_codes(values, false, token, layer, sealing, slab);
  const auto last = sealing.order.begin() + 2 * std::ptrdiff_t{values.at_end};
  std::sort(sealing.order.begin(), last);
  for (auto at = sealing.order.begin(); at != last; ++at) {
    sealing.keep(values, false, static_cast<std::uint32_t>(token), *at, to_bf16(row[*at]).bits);
  }
}

void Coder::write_outliers(const Layer& layer, const Sealing& sealing, std::byte* slab) const {
  std::memcpy(slab, &sealing.cut, sizeof(sealing.cut));
  std::uint32_t end = 0;
  std::byte* to = slab + layer.outliers_at();
  for (std::size_t plane = 0; plane < sealing.outliers.size(); ++plane) {
    const auto& outliers = sealing.outliers[plane];
    end += static_cast<std::uint32_t>(outliers.size());
    std::memcpy(slab + sizeof(end) * (1 + plane), &end, sizeof(end));
    if (!outliers.empty()) std::memcpy(to, outliers.data(), kOutlierBytes * outliers.size());
    to += kOutlierBytes * outliers.size();
  }
}

Status Coder::seal(SlabPlace place, const std::uint16_t* rows, std::byte* slab) const {
  KVLANE_TRY(check_rows_are_finite(shape_, place, rows));
  const Layer& layer = layers_[place.layer];
  std::memset(slab, 0, (layer.outliers_at() + kOutlierBytes * layer.capacity + 63) / 64 * 64);
  Sealing sealing(layer);
  for (int token = 0; token < kBlockTokens; ++token) {
    seal_key(place, rows, token, sealing, slab);
    seal_value(place, rows, token, sealing, slab);
  }
  const std::size_t room = kBlockTokens * 2 * std::size_t(layer.keys.at_end);
  sealing.cut += keep_farthest(0, room, sealing.keys);
  for (const Outside& key : sealing.keys) {
    sealing.keep(layer.keys, true, key.token, key.channel, key.value);
  }
  write_outliers(layer, sealing, slab);
  return {};
}

void Coder::open_page(SlabPlace place, const std::byte* slab, int head, std::uint16_t* keys,
                      std::uint16_t* values) const {
  const Layer& layer = layers_[place.layer];
  RopeAngles of_tokens[kBlockTokens];
  for (int i = 0; i < kBlockTokens && rope_ != nullptr; ++i) {
    of_tokens[i] = rope_->angles(place.position + i);
  }
  const int at = layer.keys.places[head];
  open_keys_(plane(layer, slab, head, true, keys), layer.keys.middle.data() + at,
             layer.keys.reach.data() + at, rope_ == nullptr ? nullptr : of_tokens);

  float middle[kBlockTokens];
  float reach[kBlockTokens];
  for (int i = 0; i < kBlockTokens; ++i) {
    const Limits limits = value_limits(slab, i);
    middle[i] = limits.middle();
    reach[i] = limits.reach();
  }
  open_values_(plane(layer, slab, head, false, values), middle, reach);
}

// Limits of a token's V; finite whatever the bytes are.
Limits Coder::value_limits(const std::byte* slab, int token) const {
  const std::byte* const from = slab + limits_at(shape_.kv_heads);
  std::uint16_t bits[2];
  std::memcpy(&bits[0], from + sizeof(bits[0]) * token, sizeof(bits[0]));
  std::memcpy(&bits[1], from + sizeof(bits[0]) * (kBlockTokens + token), sizeof(bits[1]));
  if (!is_finite_bf16(bits[0]) || !is_finite_bf16(bits[1])) return {};
  return {to_float(bf16{bits[0]}), to_float(bf16{bits[1]})};
}

Plane Coder::plane(const Layer& layer, const std::byte* slab, int head, bool is_key,
                   std::uint16_t* rows) const {
  const int index = 2 * head + (is_key ? 0 : 1);
  const std::size_t first =
      index > 0 ? std::min<std::size_t>(end_of(slab, index - 1), layer.capacity) : 0;
  const std::size_t end = std::clamp<std::size_t>(end_of(slab, index), first, layer.capacity);
  const Tensor& tensor = layer.tensor(is_key);
  return {tensor.width(head),
          options_.bits,
          slab + layer.plane_at(head, is_key),
          tensor.values.data(),
          slab + layer.outliers_at() + kOutlierBytes * first,
          end - first,
          rows};
}

}  // namespace kvlane::kvquant
