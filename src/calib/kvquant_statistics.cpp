// Limits of each channel of K, and signposts of K and V.
//
// The first pass keeps the largest and smallest values of each channel, as many as are outliers,
// and so finds percentiles exactly without keeping all values. The second normalises by them and
// counts.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>

#include "calib/kv_statistics.h"
#include "calib/signposts.h"
#include "quant/kvquant_rows.h"
#include "quant/table_lookup.h"

namespace kvlane {
namespace {

using namespace kvquant;

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

// One layer.
struct LayerCounts {
  std::vector<ChannelExtremes> keys;             // [channels]
  std::vector<Limits> limits[kOutlierChoices];   // [channels] of K, once the first pass is over
  UnitHistogram histograms[kOutlierChoices][2];  // of K and V
};

class KvquantStatistics final : public KvStatistics {
 public:
  // weights: [2 * layers][channels], K then V; or empty.
  KvquantStatistics(const KvShape& shape, const RopeTable& rope, std::uint64_t tokens,
                    std::vector<std::span<const float>> weights)
      : shape_(shape),
        rope_(rope),
        channels_(std::size_t(shape.kv_heads) * shape.head_dim),
        keep_(static_cast<std::size_t>(outliers_at_end(static_cast<std::int64_t>(tokens), 1)) + 1),
        weights_(std::move(weights)),
        layers_(shape.layers) {
    for (LayerCounts& layer : layers_) layer.keys.resize(channels_);
  }

  void first(SlabPlace place, const std::uint16_t* rows) override {
    std::vector<ChannelExtremes>& keys = layers_[place.layer].keys;
    std::vector<float> row(channels_);
    for (int token = 0; token < kBlockTokens; ++token) {
      read_token(shape_, rows, true, token, rope_.angles(place.position + token), row.data());
      for (std::size_t c = 0; c < channels_; ++c) {
        keys[c].high.add(row[c], keep_);
        keys[c].low.add(row[c], keep_);
      }
    }
  }

  void second(SlabPlace place, const std::uint16_t* rows) override {
    LayerCounts& layer = layers_[place.layer];
    if (layer.limits[0].empty()) find_limits(layer);
    std::vector<float> row(channels_);
    std::vector<std::uint32_t> order(channels_);
    for (int token = 0; token < kBlockTokens; ++token) {
      read_token(shape_, rows, true, token, rope_.angles(place.position + token), row.data());
      for (int choice = 0; choice < kOutlierChoices; ++choice) {
        for (std::size_t c = 0; c < channels_; ++c) {
          count(layer.limits[choice][c], row[c], weight(place.layer, 0, c),
                layer.histograms[choice][0]);
        }
      }
      read_token(shape_, rows, false, token, {}, row.data());
      for (int choice = 0; choice < kOutlierChoices; ++choice) {
        const int at_end = outliers_at_end(static_cast<std::int64_t>(channels_), choice);
        if (2 * std::size_t(at_end) >= channels_) continue;
        const Limits limits = token_limits(row, at_end, order);
        for (std::size_t c = 0; c < channels_; ++c) {
          count(limits, row[c], weight(place.layer, 1, c), layer.histograms[choice][1]);
        }
      }
    }
  }

  void write(KvTables& tables) const override {
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (int choice = 0; choice < kOutlierChoices; ++choice) {
        const std::string outliers = "o" + std::to_string(choice) + ".";
        for (const Limits& limits : layers_[layer].limits[choice]) {
          const std::string prefix = table_prefix("kvquant", layer, true) + outliers;
          tables.values[prefix + "low"].push_back(limits.low);
          tables.values[prefix + "high"].push_back(limits.high);
        }
        for (int part = 0; part < 2; ++part) {
          const std::string prefix = table_prefix("kvquant", layer, part == 0) + outliers;
          for (const int bits : {2, 3, 4}) {
            write_levels(layers_[layer].histograms[choice][part], bits, prefix, tables);
          }
        }
      }
    }
  }

 private:
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

  // Outliers are what limits leave out.
  static void count(const Limits& limits, float x, double weight, UnitHistogram& histogram) {
    const float per_value = limits.per_value();
    if (per_value == 0 || x < limits.low || x > limits.high) return;
    histogram.add((x - limits.middle()) * per_value, weight);
  }

  double weight(int layer, int part, std::size_t channel) const {
    return weights_.empty() ? 1.0 : weights_[2 * std::size_t(layer) + part][channel];
  }

  static void write_levels(const UnitHistogram& histogram, int bits, const std::string& prefix,
                           KvTables& tables) {
    const std::string name = prefix + "b" + std::to_string(bits);
    const std::vector<double> signposts = find_signposts(histogram, 1 << bits);
    // Q-Norm is for 2 bits, where the levels are so few that the spread suffers.
    const std::vector<double> values =
        bits == 2 ? normalise_levels(histogram, signposts) : signposts;
    tables.values[name + ".signposts"].assign(signposts.begin(), signposts.end());
    tables.values[name + ".values"].assign(values.begin(), values.end());
  }

  const KvShape shape_;
  const RopeTable& rope_;
  const std::size_t channels_;
  const std::size_t keep_;  // of each channel's values at either end
  const std::vector<std::span<const float>> weights_;
  std::vector<LayerCounts> layers_;
};

}  // namespace

Result<std::unique_ptr<KvStatistics>> make_kvquant_statistics(const KvShape& shape,
                                                              const RopeTable& rope,
                                                              std::uint64_t tokens,
                                                              const KvTables* weights) {
  std::vector<std::span<const float>> found;
  for (int i = 0; weights != nullptr && i < 2 * shape.layers; ++i) {
    const std::string name = table_prefix("kvquant", i / 2, i % 2 == 0) + "weights";
    KVLANE_ASSIGN(const auto values, find_table(weights, "kvquant", name,
                                                std::size_t(shape.kv_heads) * shape.head_dim));
    if (std::ranges::any_of(values, [](float weight) { return weight < 0; })) {
      return invalid_argument("table '" + name + "' has a negative weight");
    }
    found.push_back(values);
  }
  return std::unique_ptr<KvStatistics>(
      std::make_unique<KvquantStatistics>(shape, rope, tokens, std::move(found)));
}

}  // namespace kvlane
