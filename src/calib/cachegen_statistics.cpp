// How often each of CacheGen's symbols occurs in each channel.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>

#include "base/bf16.h"
#include "calib/kv_statistics.h"
#include "quant/cachegen_symbols.h"
#include "quant/slab_rows.h"
#include "quant/table_lookup.h"

namespace kvlane {
namespace cachegen {
namespace {

// K or V of one layer.
struct TensorCounts {
  std::array<std::vector<std::uint32_t>, kBins.size()> code;  // [channels][symbols]
  std::vector<double> sum, squares;                           // [channels]
  std::uint64_t tokens = 0;
  std::vector<float> deviation;  // [channels], once the first pass is over
  std::vector<std::uint32_t> anchors, deltas;
};

class CachegenStatistics final : public KvStatistics {
 public:
  explicit CachegenStatistics(const KvShape& shape)
      : shape_(shape),
        channels_(std::size_t(shape.kv_heads) * shape.head_dim),
        tensors_(2 * std::size_t(shape.layers)) {
    for (TensorCounts& counts : tensors_) {
      for (std::size_t i = 0; i < kBins.size(); ++i) {
        counts.code[i].resize(channels_ * symbols_of(kBins[i]));
      }
      counts.sum.resize(channels_);
      counts.squares.resize(channels_);
      counts.anchors.resize(channels_ * kAnchorSymbols);
      counts.deltas.resize(channels_ * kDeltaSymbols);
    }
  }

  void first(SlabPlace place, const std::uint16_t* rows) override {
    for (const bool is_key : {true, false}) {
      TensorCounts& counts = tensor(place, is_key);
      for (int token = 0; token < kBlockTokens; ++token) {
        const float largest = largest_magnitude(shape_, rows, is_key, token);
        for (std::size_t i = 0; i < kBins.size(); ++i) {
          const Scale scale(largest, middle_of(kBins[i]));
          const std::size_t symbols = symbols_of(kBins[i]);
          for_channels(rows, is_key, token, [&](std::size_t c, float x) {
            ++counts.code[i][c * symbols + symbol_of(x, scale)];
          });
        }
        for_channels(rows, is_key, token, [&](std::size_t c, float x) {
          counts.sum[c] += x;
          counts.squares[c] += double{x} * x;
        });
        ++counts.tokens;
      }
    }
  }

  void second(SlabPlace place, const std::uint16_t* rows,
              const SlabGradients* /*gradients*/) override {
    std::vector<int> anchors(channels_);
    for (const bool is_key : {true, false}) {
      TensorCounts& counts = tensor(place, is_key);
      const std::vector<float> per_step = steps_inverse(counts, place.layer);
      float largest = 0;
      for (int token = 0; token < kBlockTokens; ++token) {
        if (is_anchor(token)) largest = largest_magnitude(shape_, rows, is_key, token);
        const Scale scale(largest, kAnchorMiddle);
        for_channels(rows, is_key, token, [&](std::size_t c, float x) {
          if (is_anchor(token)) {
            anchors[c] = symbol_of(x, scale);
            ++counts.anchors[c * kAnchorSymbols + (anchors[c] >> kAnchorLowBits)];
          } else {
            const float from = value_of(anchors[c], kAnchorMiddle, scale.largest_value);
            ++counts.deltas[c * kDeltaSymbols + delta_symbol_of(x - from, per_step[c])];
          }
        });
      }
    }
  }

  void write(KvTables& tables) const override {
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (const bool is_key : {true, false}) {
        const TensorCounts& counts = tensors_[2 * std::size_t(layer) + (is_key ? 0 : 1)];
        const std::string prefix = table_prefix("cachegen", layer, is_key);
        for (std::size_t i = 0; i < kBins.size(); ++i) {
          tables.values[prefix + "bins" + std::to_string(kBins[i])] = as_floats(counts.code[i]);
        }
        tables.values[prefix + "deviation"] = deviations(counts);
        tables.values[prefix + "anchor"] = as_floats(counts.anchors);
        tables.values[prefix + "delta"] = as_floats(counts.deltas);
      }
    }
  }

 private:
  TensorCounts& tensor(SlabPlace place, bool is_key) {
    return tensors_[2 * std::size_t(place.layer) + (is_key ? 0 : 1)];
  }

  template <class Body>
  void for_channels(const std::uint16_t* rows, bool is_key, int token, const Body& body) const {
    std::size_t channel = 0;
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const std::uint16_t* const row = slab_row(shape_, rows, head, is_key, token);
      for (int i = 0; i < shape_.head_dim; ++i) body(channel++, to_float(bf16{row[i]}));
    }
  }

  static std::vector<float> deviations(const TensorCounts& counts) {
    std::vector<float> result;
    const auto tokens = static_cast<double>(std::max<std::uint64_t>(counts.tokens, 1));
    for (std::size_t c = 0; c < counts.sum.size(); ++c) {
      const double mean = counts.sum[c] / tokens;
      const double variance = std::max(0.0, counts.squares[c] / tokens - mean * mean);
      result.push_back(static_cast<float>(std::min(std::sqrt(variance), 0x1p120)));
    }
    return result;
  }

  // Of this layer; the deviations are final from the second pass on.
  std::vector<float> steps_inverse(TensorCounts& counts, int layer) const {
    if (counts.deviation.empty()) counts.deviation = deviations(counts);
    std::vector<float> result;
    for (const float deviation : counts.deviation) {
      result.push_back(step_inverse(deviation * bin_width(layer, shape_.layers)));
    }
    return result;
  }

  static std::vector<float> as_floats(const std::vector<std::uint32_t>& counts) {
    return {counts.begin(), counts.end()};
  }

  const KvShape shape_;
  const std::size_t channels_;
  std::vector<TensorCounts> tensors_;  // K then V of each layer
};

}  // namespace
}  // namespace cachegen

std::unique_ptr<KvStatistics> make_cachegen_statistics(const KvShape& shape) {
  return std::make_unique<cachegen::CachegenStatistics>(shape);
}

}  // namespace kvlane
