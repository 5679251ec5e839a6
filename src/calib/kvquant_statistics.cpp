// Limits of each channel of K, and signposts of K and V: of whole heads for `kvquant`, of rotated
// rows' first channels for `zack:...+kvquant`.
//
// The first pass keeps the largest and smallest values of each channel, as many as are outliers,
// and so finds percentiles exactly without keeping all values. The second normalises by them and
// counts: all alike, and by the squares of gradients where there are any.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <utility>

#include "base/bf16.h"
#include "calib/kv_statistics.h"
#include "calib/signposts.h"
#include "ops/rotation.h"
#include "quant/kvquant_rows.h"
#include "quant/slab_rows.h"
#include "quant/table_lookup.h"
#include "quant/zack_kvquant.h"

namespace kvlane {
namespace kvquant {
namespace {

constexpr int kOutlierChoices = 2;  // none, or 1 %: by `outliers` of the format

// The greatest values of many, by `Greater`.
template <class Greater>
class Extremes {
 public:
  void add(float value, std::size_t keep) {
    if (kept_.size() == keep) {
      if (!Greater()(value, kept_.front())) return;
      std::ranges::pop_heap(kept_, Greater());
      kept_.back() = value;
    } else {
      kept_.push_back(value);
    }
    std::ranges::push_heap(kept_, Greater());
  }
  // Of those kept; there is at least one.
  float least() const { return kept_.front(); }
  float greatest() const { return *std::ranges::min_element(kept_, Greater()); }

 private:
  std::vector<float> kept_;  // a heap with the least on top
};

struct ChannelExtremes {
  Extremes<std::greater<>> high;
  Extremes<std::less<>> low;
};

// What is counted.
struct Counted {
  KvShape shape;
  const RopeTable* rope = nullptr;  // K is rotated back by it; null: stays as it is
  // [layers] of K and of V: which channels of the rows.
  std::vector<FirstChannels> keys, values;
  std::string tables;  // "kvquant"
  bool writes_widths = false;
};

// Normalised values, and the same weighted: empty where nothing is.
struct Histograms {
  UnitHistogram alike, weighted;
};

// One layer.
struct LayerCounts {
  std::vector<ChannelExtremes> keys;            // [channels]
  std::vector<Limits> limits[kOutlierChoices];  // [channels] of K, once the first pass is over
  Histograms histograms[kOutlierChoices][2];    // of K and V
};

// One token's row.
struct CountedRow {
  std::vector<float> values;    // of the channels that count
  std::vector<double> weights;  // theirs; empty: none
  std::vector<float> head;      // gradients of one head: scratch
};

class KvquantStatistics final : public KvStatistics {
 public:
  KvquantStatistics(Counted counted, std::uint64_t tokens)
      : counted_(std::move(counted)),
        keep_(static_cast<std::size_t>(outliers_at_end(static_cast<std::int64_t>(tokens), 1)) + 1),
        layers_(counted_.shape.layers) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      layers_[i].keys.resize(counted_.keys[i].back());
    }
  }

  void first(SlabPlace place, const std::uint16_t* rows) override {
    std::vector<ChannelExtremes>& keys = layers_[place.layer].keys;
    CountedRow row;
    for (int token = 0; token < kBlockTokens; ++token) {
      read_row(place, rows, nullptr, true, token, row);
      for (std::size_t c = 0; c < row.values.size(); ++c) {
        keys[c].high.add(row.values[c], keep_);
        keys[c].low.add(row.values[c], keep_);
      }
    }
  }

  void second(SlabPlace place, const std::uint16_t* rows, const SlabGradients* gradients) override {
    LayerCounts& layer = layers_[place.layer];
    if (layer.limits[0].empty()) find_limits(layer);
    CountedRow row;
    std::vector<std::uint32_t> order(counted_.values[place.layer].back());
    for (int token = 0; token < kBlockTokens; ++token) {
      read_row(place, rows, gradients, true, token, row);
      for (int choice = 0; choice < kOutlierChoices; ++choice) {
        const std::vector<Limits>& limits = layer.limits[choice];
        count([&](std::size_t c) { return limits[c]; }, row, layer.histograms[choice][0]);
      }
      read_row(place, rows, gradients, false, token, row);
      for (int choice = 0; choice < kOutlierChoices; ++choice) {
        const int at_end = outliers_at_end(static_cast<std::int64_t>(row.values.size()), choice);
        if (2 * std::size_t(at_end) >= row.values.size()) continue;
        const Limits limits = token_limits(row.values, at_end, order);
        count([&](std::size_t) { return limits; }, row, layer.histograms[choice][1]);
      }
    }
  }

  void write(KvTables& tables) const override {
    for (int layer = 0; layer < counted_.shape.layers; ++layer) {
      if (counted_.writes_widths) write_widths(layer, tables);
      for (int choice = 0; choice < kOutlierChoices; ++choice) {
        const std::string outliers = "o" + std::to_string(choice) + ".";
        for (const Limits& limits : layers_[layer].limits[choice]) {
          const std::string prefix = table_prefix(counted_.tables, layer, true) + outliers;
          tables.values[prefix + "low"].push_back(limits.low);
          tables.values[prefix + "high"].push_back(limits.high);
        }
        for (int part = 0; part < 2; ++part) {
          const std::string prefix = table_prefix(counted_.tables, layer, part == 0) + outliers;
          for (const int bits : {2, 3, 4}) {
            write_levels(layers_[layer].histograms[choice][part], bits, prefix, tables);
          }
        }
      }
    }
  }

 private:
  void read_row(SlabPlace place, const std::uint16_t* rows, const SlabGradients* gradients,
                bool is_key, int token, CountedRow& row) const {
    const bool turned = is_key && counted_.rope != nullptr;
    const RopeAngles angles =
        turned ? counted_.rope->angles(place.position + token) : RopeAngles{nullptr, nullptr};
    const FirstChannels& channels = (is_key ? counted_.keys : counted_.values)[place.layer];
    row.values.resize(channels.back());
    read_token(counted_.shape, channels, rows, is_key, token, angles, row.values.data());
    row.weights.clear();
    if (gradients == nullptr) return;
    const int d = counted_.shape.head_dim;
    const float* from = (is_key ? gradients->keys : gradients->values) +
                        std::size_t(token) * counted_.shape.kv_heads * d;
    for (int i = 0; i < counted_.shape.kv_heads; ++i, from += d) {
      row.head.assign(from, from + d);
      // As it is the transpose of rope(): what gradients take back.
      if (turned) undo_rope(row.head.data(), angles, d);
      for (int c = 0; c < channels[i + 1] - channels[i]; ++c) {
        row.weights.push_back(double{row.head[c]} * row.head[c]);
      }
    }
  }

  void write_widths(int layer, KvTables& tables) const {
    for (const bool is_key : {true, false}) {
      const FirstChannels& channels = (is_key ? counted_.keys : counted_.values)[layer];
      auto& widths = tables.values[table_prefix(counted_.tables, layer, is_key) + "widths"];
      for (std::size_t head = 0; head + 1 < channels.size(); ++head) {
        widths.push_back(static_cast<float>(channels[head + 1] - channels[head]));
      }
    }
  }

  static void find_limits(LayerCounts& layer) {
    for (const ChannelExtremes& channel : layer.keys) {
      layer.limits[0].push_back({channel.low.greatest(), channel.high.greatest()});
      // Few tokens: what is left in the middle may be nothing.
      const float low = std::min(channel.low.least(), channel.high.least());
      const float high = std::max(channel.low.least(), channel.high.least());
      layer.limits[1].push_back({low, high});
    }
    layer.keys.clear();
    layer.keys.shrink_to_fit();
  }

  // Outliers are what limits leave out. limits_of: a channel's.
  template <class LimitsOf>
  static void count(const LimitsOf& limits_of, const CountedRow& row, Histograms& histograms) {
    for (std::size_t c = 0; c < row.values.size(); ++c) {
      const Limits& limits = limits_of(c);
      const float x = row.values[c];
      const float per_value = limits.per_value();
      if (per_value == 0 || x < limits.low || x > limits.high) continue;
      const float unit = (x - limits.middle()) * per_value;
      histograms.alike.add(unit, 1);
      if (!row.weights.empty()) histograms.weighted.add(unit, row.weights[c]);
    }
  }

  static void write_levels(const Histograms& histograms, int bits, const std::string& prefix,
                           KvTables& tables) {
    const std::string name = prefix + "b" + std::to_string(bits);
    const bool weighted = histograms.weighted.total() > 0;
    const std::vector<double> signposts =
        find_signposts(weighted ? histograms.weighted : histograms.alike, 1 << bits);
    // Q-Norm is for 2 bits, where the levels are so few that the spread suffers: that of values as
    // they are.
    const std::vector<double> values =
        bits == 2 ? normalise_levels(histograms.alike, signposts) : signposts;
    tables.values[name + ".signposts"].assign(signposts.begin(), signposts.end());
    tables.values[name + ".values"].assign(values.begin(), values.end());
  }

  const Counted counted_;
  const std::size_t keep_;  // of each channel's values at either end
  std::vector<LayerCounts> layers_;
};

// The same of rows whose K is turned into the basis of `zack` first.
class RotatedStatistics final : public KvStatistics {
 public:
  RotatedStatistics(std::shared_ptr<const ZackFormat> zack, Isa isa, Counted counted,
                    std::uint64_t tokens)
      : zack_(std::move(zack)),
        rotate_rows_(rotation_kernel(isa)),
        counts_(std::move(counted), tokens) {}

  void first(SlabPlace place, const std::uint16_t* rows) override {
    counts_.first(place, rotated(place, rows).data());
  }
  void second(SlabPlace place, const std::uint16_t* rows, const SlabGradients* gradients) override {
    const std::vector<std::uint16_t> turned = rotated(place, rows);
    if (gradients == nullptr) return counts_.second(place, turned.data(), nullptr);
    const std::vector<float> keys = rotated_gradients(place.layer, gradients->keys);
    const SlabGradients of_turned{keys.data(), gradients->values};
    counts_.second(place, turned.data(), &of_turned);
  }
  void write(KvTables& tables) const override { counts_.write(tables); }

 private:
  std::vector<std::uint16_t> rotated(SlabPlace place, const std::uint16_t* rows) const {
    const KvShape& shape = zack_->shape();
    const int d = shape.head_dim;
    std::vector<std::uint16_t> turned(rows, rows + shape.slab_bytes() / sizeof(*rows));
    std::vector<float> plain(shape.page_plane_elements());
    std::vector<float> out(plain.size());
    for (int head = 0; head < shape.kv_heads; ++head) {
      const float* const rotation = zack_->key_rotation(place.layer, head);
      if (rotation == nullptr) continue;  // it is in the weights
      std::uint16_t* const keys = turned.data() + head * shape.page_elements();
      for (std::size_t i = 0; i < plain.size(); ++i) plain[i] = to_float(bf16{keys[i]});
      rotate_rows_(plain.data(), kBlockTokens, rotation, d, d, out.data());
      for (std::size_t i = 0; i < out.size(); ++i) keys[i] = to_bf16(out[i]).bits;
    }
    return turned;
  }

  // What K is multiplied by, gradients are divided by, as queries are.
  std::vector<float> rotated_gradients(int layer, const float* keys) const {
    const KvShape& shape = zack_->shape();
    const int d = shape.head_dim;
    const std::size_t stride = std::size_t(shape.kv_heads) * d;
    std::vector<float> turned(keys, keys + kBlockTokens * stride);
    for (int head = 0; head < shape.kv_heads; ++head) {
      const float* const rotation = zack_->query_rotation(layer, head);
      if (rotation == nullptr) continue;
      rotate_heads(rotate_rows_, rotation, d, turned.data() + head * d, 1, kBlockTokens, stride);
    }
    return turned;
  }

  const std::shared_ptr<const ZackFormat> zack_;
  const RotationKernel rotate_rows_;
  KvquantStatistics counts_;
};

std::vector<FirstChannels> of_all_layers(const KvShape& shape) {
  return std::vector<FirstChannels>(shape.layers, all_channels(shape));
}

}  // namespace
}  // namespace kvquant

std::unique_ptr<KvStatistics> make_kvquant_statistics(const KvShape& shape, const RopeTable& rope,
                                                      std::uint64_t tokens) {
  using namespace kvquant;
  Counted counted{shape, &rope, of_all_layers(shape), of_all_layers(shape), "kvquant", false};
  return std::make_unique<KvquantStatistics>(std::move(counted), tokens);
}

std::unique_ptr<KvStatistics> make_zack_kvquant_statistics(std::shared_ptr<const ZackFormat> zack,
                                                           Isa isa, std::uint64_t tokens) {
  using namespace kvquant;
  const KvShape& shape = zack->shape();
  Counted counted{shape, nullptr, {}, {}, zack_kvquant_tables(zack->name()), true};
  for (int layer = 0; layer < shape.layers; ++layer) {
    FirstChannels keys = {0}, values = {0};
    for (int head = 0; head < shape.kv_heads; ++head) {
      const HeadWidths widths = zack->widths(layer, head);
      keys.push_back(keys.back() + widths.k);
      values.push_back(values.back() + widths.v);
    }
    counted.keys.push_back(std::move(keys));
    counted.values.push_back(std::move(values));
  }
  return std::make_unique<RotatedStatistics>(std::move(zack), isa, std::move(counted), tokens);
}

}  // namespace kvlane
