// Attention on codes as tests see it, in decode and in prefill: sealed sequences in blocks of a
// pool with everything else poisoned, exact results in double precision, and how far a kernel may
// be from them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numbers>
#include <numeric>
#include <random>
#include <vector>

#include "attention/hack_arithmetic.h"
#include "attention/hack_prefill_gpu.h"
#include "cpu/parallel.h"
#include "format/kv_window.h"
#include "plan/prefill_units.h"
#include "quant/hack_kernels.h"
#include "quant/hadamard.h"

namespace kvlane::hack_fixture {

// As slabs and rows want to begin.
struct alignas(64) Line {
  std::byte bytes[64];
};
using Lines = std::vector<Line>;

// HackShape of a kind.
inline HackShape hack_shape(const HackKind& kind, int head_dim, bool mix) {
  const bool both = kind.partition == 0;
  const hack::Plane k{kind.key_bits, both ? hack::Axis::kBoth : hack::Axis::kToken, kind.partition,
                      hack::Meta::kFp16};
  const hack::Plane v{kind.value_bits, both ? hack::Axis::kBoth : hack::Axis::kChannel,
                      std::min(kind.partition, kBlockTokens), hack::Meta::kFp16};
  return {k, v, hack::page_layout(k, v, {head_dim, head_dim}), head_dim, head_dim, mix};
}

// Rows [position, position + rows) of a sequence.
struct SpanShape {
  int position;
  int rows;
};

struct SceneShape {
  HackKind kind;
  bool mix;
  int heads, kv_heads, head_dim;
  std::vector<std::int32_t> blocks;  // of each sequence, sealed
  // Of each sequence; without them each has one row, which sees all blocks.
  std::vector<SpanShape> spans = {};
  KvWindow window = {};  // the blocks that rows do not see sealed
};

// Sealed blocks that a row sees.
struct Blocks {
  int begin, end;
};

// One row of the result in the basis of codes.
struct Row {
  std::vector<double> exact;
  std::vector<double> allowed;  // how far a result in F32 may be away from it
  // Of all tokens' state. The maximum is in units of log2.
  double max = 0, max_allowed = 0;
  double sum = 0, sum_allowed = 0;
};

// Of all tokens of a row, in units of log2, and how far off a kernel's may be.
struct Scores {
  std::vector<double> of;
  double off = 0;
};

// What a kernel has weights in where they meet V.
enum class WeightsIn : std::uint8_t { kEightBits, kBinary16 };

// Of V: m + s code; the code is that from the middle where the axes are both.
struct CodedValue {
  double code, m, s;
};

// Sealed K and V, and queries, of one layer. A sequence's values depend on its own length and
// `seed` alone, not on the other sequences of the batch. Channels have means of their own, one
// token is far from all others and one channel is constant.
class Scene {
 public:
  static constexpr int kLayers = 2, kLayer = 1;

  explicit Scene(SceneShape shape, unsigned seed = 1, float query_size = 1)
      : shape_(std::move(shape)), hack_(hack_shape(shape_.kind, shape_.head_dim, shape_.mix)) {
    const int sequences = static_cast<int>(shape_.blocks.size());
    for (int i = 0; i < sequences; ++i) {
      const SpanShape span =
          shape_.spans.empty() ? SpanShape{shape_.blocks[i] * kBlockTokens, 1} : shape_.spans[i];
      spans_.push_back({span.position, span.rows, static_cast<std::int32_t>(places_.size())});
      for (int row = 0; row < span.rows; ++row) places_.push_back({i, span.position + row});
    }
    const int blocks = std::accumulate(shape_.blocks.begin(), shape_.blocks.end(), 0);
    stride_ = 1 + *std::max_element(shape_.blocks.begin(), shape_.blocks.end());
    // In no order, with blocks of others between them.
    std::vector<std::int32_t> ids(blocks + 2);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(seed));
    tables_.assign(std::size_t(sequences) * stride_, -1);
    pool_.resize(ids.size() * block_bytes() / sizeof(Line));
    std::fill_n(reinterpret_cast<std::byte*>(pool_.data()), pool_.size() * sizeof(Line),
                std::byte{0xFF});
    q_.resize((rows() * shape_.head_dim * 2 + sizeof(Line) - 1) / sizeof(Line));
    for (int sequence = 0, used = 0; sequence < sequences; ++sequence) {
      for (int i = 0; i < shape_.blocks[sequence]; ++i) {
        tables_[sequence * stride_ + i] = ids[used++];
      }
      fill(sequence, seed, query_size);
    }
  }

  const SceneShape& shape() const { return shape_; }
  const HackShape& hack() const { return hack_; }
  std::size_t block_bytes() const { return kLayers * shape_.kv_heads * hack_.layout.bytes; }
  std::size_t layer_offset() const { return block_bytes() / kLayers * kLayer; }
  const Lines& pool() const { return pool_; }
  const Lines& q() const { return q_; }
  const std::vector<std::int32_t>& tables() const { return tables_; }
  // Of queries: (row, head) pairs.
  std::size_t rows() const { return places_.size() * shape_.heads; }
  const std::vector<PrefillSpan>& spans() const { return spans_; }
  ChannelMix mix() const { return shape_.mix ? channel_mix(shape_.head_dim) : kNoMix; }
  float scale() const {
    return static_cast<float>(1.4426950408889634 / std::sqrt(shape_.head_dim));
  }
  // For plans.
  std::vector<std::int32_t> tokens() const {
    std::vector<std::int32_t> tokens;
    for (const std::int32_t blocks : shape_.blocks) tokens.push_back(blocks * kBlockTokens);
    return tokens;
  }

  // With the scene's own addresses; outputs are the caller's.
  HackPrepare prepare() const {
    return {.q = bytes(q_),
            .rows = static_cast<std::int32_t>(rows()),
            .head_dim = shape_.head_dim,
            .scale = scale(),
            .mix = mix(),
            .middle = hack::middle_code(hack_.k),
            .partition = shape_.kind.partition,
            .to = {}};
  }
  HackDecodeBatch batch() const {
    return {.tables = tables_.data(),
            .table_stride = stride_,
            .heads = shape_.heads,
            .kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim,
            .slabs = bytes(pool_) + layer_offset(),
            .block_bytes = block_bytes(),
            .layout = hack_.layout,
            .queries = {},
            .mix = mix(),
            .max = nullptr,
            .sum = nullptr,
            .out = nullptr};
  }

  HackPrefillBatch prefill_batch() const {
    return {.tables = tables_.data(),
            .table_stride = stride_,
            .heads = shape_.heads,
            .kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim,
            .key_bits = shape_.kind.key_bits,
            .value_bits = shape_.kind.value_bits,
            .slabs = bytes(pool_) + layer_offset(),
            .block_bytes = block_bytes(),
            .layout = hack_.layout,
            .window = shape_.window,
            .queries = {},
            .mix = mix(),
            .max = nullptr,
            .sum = nullptr,
            .out = nullptr};
  }

  // As the scalar kernel prepares it.
  std::unique_ptr<HackQuery> prepared(std::size_t row) const {
    auto query = std::make_unique<HackQuery>();
    PageQuery rows{};
    rows.q[0] = reinterpret_cast<const std::uint16_t*>(bytes(q_)) + row * shape_.head_dim;
    rows.parts = 1;
    rows.part_stride = rows.key_dim = shape_.head_dim;
    rows.scale = scale();
    hack_kernel_scalar().prepare(hack_, rows, 1, *query);
    return query;
  }

  Blocks blocks_of(int row) const {
    const int own = places_[row].position / kBlockTokens;
    return {shape_.window.sink, std::max(shape_.window.sink, own - shape_.window.recent)};
  }
  Row exact(int row, int head, WeightsIn weights = WeightsIn::kEightBits) const;

  // `result` is [rows()][head_dim], divided by the sum unless that is 0; `max` and `sum` are
  // [rows()]: of all tokens.
  void expect_right(const std::vector<float>& result, const std::vector<float>& max,
                    const std::vector<float>& sum,
                    WeightsIn weights = WeightsIn::kEightBits) const {
    const int d = shape_.head_dim;
    std::vector<Row> right(rows());
    parallel_for(static_cast<std::int64_t>(rows()), [&](std::int64_t at) {
      const int i = static_cast<int>(at);
      right[i] = exact(i / shape_.heads, i % shape_.heads, weights);
    });
    for (std::size_t at = 0; at < rows(); ++at) {
      const int query = static_cast<int>(at) / shape_.heads;
      const int head = static_cast<int>(at) % shape_.heads;
      const Row& row = right[at];
      std::vector<float> own(result.begin() + static_cast<std::ptrdiff_t>(at * d),
                             result.begin() + static_cast<std::ptrdiff_t>((at + 1) * d));
      if (shape_.mix)
        mix_channels_scalar(own.data(), 1, d);  // once more: back in the basis of codes
      const Blocks blocks = blocks_of(query);
      const auto where = testing::Message()
                         << "row " << query << " of blocks " << blocks.begin << " to " << blocks.end
                         << ", head " << head << " of " << shape_.heads << ", head_dim " << d;
      if (blocks.end > blocks.begin) {
        ASSERT_NEAR(max[at], row.max, row.max_allowed) << where;
      } else {
        ASSERT_EQ(max[at], -std::numeric_limits<float>::infinity()) << where;
      }
      ASSERT_NEAR(sum[at], row.sum, row.sum_allowed) << where;
      for (int i = 0; i < d; ++i) {
        ASSERT_NEAR(own[i], row.exact[i], row.allowed[i]) << where << ", channel " << i;
      }
    }
  }

  const std::byte* page(int sequence, int block, int kv_head) const {
    const std::int32_t id = tables_[sequence * stride_ + block];
    return bytes(pool_) + id * block_bytes() + layer_offset() + kv_head * hack_.layout.bytes;
  }

 private:
  static constexpr double kU = 0x1p-23;

  Scores scores(int row, int head) const;
  void open_values(int row, int head, const std::vector<double>& weights, double share,
                   Row& to) const;
  CodedValue value(int sequence, int kv_head, int token, int channel) const;
  static std::byte* bytes(Lines& lines) { return reinterpret_cast<std::byte*>(lines.data()); }
  static const std::byte* bytes(const Lines& lines) {
    return reinterpret_cast<const std::byte*>(lines.data());
  }

  void fill(int sequence, unsigned seed, float query_size) {
    const int d = shape_.head_dim;
    std::mt19937 random(seed * 7919 + static_cast<unsigned>(shape_.blocks[sequence]));
    std::normal_distribution<float> normal;
    auto* const q = reinterpret_cast<std::uint16_t*>(bytes(q_));
    const std::size_t row = std::size_t(shape_.heads) * d;
    for (std::size_t i = 0; i < spans_[sequence].rows * row; ++i) {
      q[spans_[sequence].first_row * row + i] = to_bf16(query_size * normal(random)).bits;
    }
    std::vector<float> means(2 * std::size_t(shape_.kv_heads) * d);
    for (float& x : means) x = 3 * normal(random);
    for (int block = 0; block < shape_.blocks[sequence]; ++block) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        for (const hack::Part part : {hack::Part::kKeys, hack::Part::kValues}) {
          const bool keys = part == hack::Part::kKeys;
          Lines rows(std::size_t{kBlockTokens} * d * sizeof(float) / sizeof(Line));
          auto* const values = reinterpret_cast<float*>(rows.data());
          for (int i = 0; i < kBlockTokens * d; ++i) {
            const float far = block == 0 && i / d == 0 ? 4.0F : 1.0F;
            const float spread = i % d == 5 ? 0.0F : far * normal(random);
            values[i] = means[(2 * head + (keys ? 0 : 1)) * d + i % d] + spread;
          }
          if (shape_.mix) mix_channels_scalar(values, kBlockTokens, d);
          auto* const page = const_cast<std::byte*>(this->page(sequence, block, head));
          hack::seal_scalar({keys ? hack_.k : hack_.v,
                             part,
                             d,
                             hack::Rounding::kNearest,
                             {},
                             values,
                             page + (keys ? 0 : hack_.layout.v_codes),
                             page + (keys ? hack_.layout.k_metadata : hack_.layout.v_metadata)});
        }
      }
    }
  }

  struct Place {
    int sequence, position;
  };

  const SceneShape shape_;
  const HackShape hack_;
  std::vector<PrefillSpan> spans_;
  std::vector<Place> places_;  // of rows
  std::int32_t stride_ = 0;
  std::vector<std::int32_t> tables_;
  Lines pool_, q_;
};

// A row's query and sums over partitions in double precision; codes are those of the kernel.
struct ExactQuery {
  explicit ExactQuery(const HackShape& shape, const HackQuery& prepared)
      : codes(prepared.codes[0]), scale(prepared.scale[0]) {
    const bool both = shape.k.axis == hack::Axis::kBoth;
    for (int i = 0; i < shape.key_dim; ++i) {
      values.push_back(prepared.values[0][i]);
      const int partition = i / shape.key_partition();
      sums[partition] += values[i];
      centres[partition] +=
          hack::middle_code(shape.k) * ((both ? 0 : values[i]) - scale * codes[i]);
    }
  }
  hack_arithmetic::Query<double> query() const {
    return {codes, values.data(), scale, sums, centres};
  }

  const std::int8_t* codes;
  double scale;
  std::vector<double> values;
  double sums[kHackPartitionsMax] = {};
  double centres[kHackPartitionsMax] = {};
};

// Attention over what codes stand for in double precision, of queries and weights in 8 bits where
// they meet codes, as attention/hack_page.h has it. A kernel may be away from it, with U = 2^-23,
// twice the rounding of a float (matrix units cut off instead of rounding), D = head_dim and T
// tokens:
//  - Sums of products of codes are exact. By token a score has besides 4 roundings a partition,
//    and 20 for the sums over a query's lanes and for its scale. By both the means are a sum of D
//    products, and y - u is rounded to binary16 besides: 2^-13 a (sum of |m|); all else is at most
//    24 roundings. Each is at most U times the sum of magnitudes.
//  - A weight is off relatively by ln 2 times that, 2 U of the power of two, and 3 U for each of P
//    moves of a state to another maximum; sums over tokens add T U each.
//  - A weight is rounded to a whole number of units, a unit being 1/255 of the page's largest. That
//    is the same number, but where the weight's and the unit's error reach the middle between two:
//    there it may be one unit off. By both the state's sum has no part in that. Else it has the
//    same weights, so what counts is a value's distance from the result.
//  - Weights in binary16 are rounded by 2^-11 of themselves, or 2^-36 of the largest, and have a
//    part in the state's sum as they are; values of V are rounded by 2^-11 of themselves.
inline Scores Scene::scores(int query_row, int head) const {
  const int d = shape_.head_dim, kv_head = head / (shape_.heads / shape_.kv_heads);
  const int sequence = places_[query_row].sequence;
  const Blocks blocks = blocks_of(query_row);
  const bool both = shape_.kind.partition == 0;
  const auto prepared_row = prepared(std::size_t(query_row) * shape_.heads + head);
  const ExactQuery query(hack_, *prepared_row);
  const double middle = hack::middle_code(hack_.k);
  const double terms = both ? 24 : 20 + 4 * (d / hack_.key_partition() + 1);
  Scores scores;
  for (int token = blocks.begin * kBlockTokens; token < blocks.end * kBlockTokens; ++token) {
    const std::byte* const at = page(sequence, token / kBlockTokens, kv_head);
    const int row = token % kBlockTokens;
    const double base = hack_arithmetic::base_score(hack_, query.query(), at);
    scores.of.push_back(hack_arithmetic::score(hack_, query.query(), at, row, base));
    double of_means = 0, of_codes = 0, means = 0;
    for (int i = 0; i < d; ++i) {
      const auto affine =
          hack_arithmetic::affine_of(hack_.k, d, at + hack_.layout.k_metadata, row, i);
      const double u = query.scale * std::abs(query.codes[i]), q = std::abs(query.values[i]);
      means += std::abs(affine.m);
      of_means += q * std::abs(affine.m);
      of_codes += affine.s * middle * (both ? u : 3 * u + q);
    }
    const double off = terms * kU * (of_means + of_codes) +
                       (both ? d * kU * of_means + 0x1p-13 * query.scale * means : 0);
    scores.off = std::max(scores.off, off);
  }
  return scores;
}

inline CodedValue Scene::value(int sequence, int kv_head, int token, int channel) const {
  const int d = shape_.head_dim, row = token % kBlockTokens;
  const std::byte* const at = page(sequence, token / kBlockTokens, kv_head);
  const auto place = hack::value_place(hack_.v.bits, d, row, channel);
  const int code = hack_arithmetic::code_at(at + hack_.layout.v_codes, place, hack_.v.bits);
  const auto affine =
      hack_arithmetic::affine_of(hack_.v, d, at + hack_.layout.v_metadata, row, channel);
  const bool both = shape_.kind.partition == 0;
  return {code - (both ? double{hack::middle_code(hack_.v)} : 0), affine.m, affine.s};
}

// The sum of a row's weights and its result, where these are in binary16.
inline void Scene::open_values(int query_row, int head, const std::vector<double>& weights,
                               double share, Row& to) const {
  constexpr double kHalf = 0x1p-11, kLeast = 0x1p-36;
  const int d = shape_.head_dim, kv_head = head / (shape_.heads / shape_.kv_heads);
  const int sequence = places_[query_row].sequence;
  const int first = blocks_of(query_row).begin * kBlockTokens;
  const int tokens = static_cast<int>(weights.size());
  to.sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double lost = kHalf * to.sum + kLeast * tokens;
  to.sum_allowed = 3 * share * to.sum + lost;
  for (int i = 0; i < d; ++i) {
    std::vector<double> values(tokens);
    double magnitudes = 0, roundings = 0;
    for (int token = 0; token < tokens; ++token) {
      const CodedValue v = value(sequence, kv_head, first + token, i);
      values[token] = v.m + v.s * v.code;
      to.exact[i] += weights[token] * values[token] / to.sum;
      magnitudes += weights[token] * std::abs(values[token]) / to.sum;
    }
    for (int token = 0; token < tokens; ++token) {
      roundings += (kHalf * weights[token] + kLeast) * std::abs(values[token] - to.exact[i]);
    }
    to.allowed[i] = 1.02 * (roundings / (to.sum - lost) + (kHalf + 2 * share) * magnitudes) + 1e-30;
  }
}

inline Row Scene::exact(int query_row, int head, WeightsIn weights_in) const {
  const int sequence = places_[query_row].sequence;
  const Blocks blocks = blocks_of(query_row);
  const int first = blocks.begin * kBlockTokens;
  const int d = shape_.head_dim, pages = blocks.end - blocks.begin, tokens = pages * kBlockTokens;
  const int kv_head = head / (shape_.heads / shape_.kv_heads);
  const bool both = shape_.kind.partition == 0;
  Row row{std::vector<double>(d), std::vector<double>(d)};
  if (pages == 0) return row;
  const Scores scores = this->scores(query_row, head);
  row.max = *std::max_element(scores.of.begin(), scores.of.end());
  row.max_allowed = scores.off;
  const double share =
      std::numbers::ln2 * scores.off + 2 * kU + 3 * (pages + 100) * kU + tokens * kU;
  const auto mixed_back = [&](Row result) {
    const double norm = std::sqrt(
        std::inner_product(result.exact.begin(), result.exact.end(), result.exact.begin(), 0.0));
    // Mixing back and once more: sums of two, 8 at most each time.
    for (double& allowed : result.allowed) allowed += shape_.mix ? 20 * kU * norm : 0;
    return result;
  };
  // Weights, these in codes, and how far off each of them may be.
  std::vector<double> weights(tokens), coded(tokens), unit(pages), off(tokens);
  for (int token = 0; token < tokens; ++token) {
    weights[token] = std::exp2(scores.of[token] - row.max);
  }
  if (weights_in == WeightsIn::kBinary16) {
    open_values(query_row, head, weights, share, row);
    return mixed_back(row);
  }
  for (int token = 0; token < tokens; ++token) {
    coded[token] = weights[token] * (both ? value(sequence, kv_head, first + token, 0).s : 1);
    double& of_page = unit[token / kBlockTokens];
    of_page = std::max(of_page, coded[token] / 255);
  }
  double lost = 0;
  for (int token = 0; token < tokens; ++token) {
    const double of_page = unit[token / kBlockTokens], units = coded[token] / of_page;
    const double from_tie = std::abs(units - std::floor(units) - 0.5);
    off[token] = from_tie <= 2 * share * units + 0x1p-12 ? of_page : 0;
    coded[token] = std::nearbyint(units) * of_page;
    row.sum += both ? weights[token] : coded[token];
    lost += both ? 0 : off[token];
  }
  row.sum_allowed = 3 * share * row.sum + lost;
  for (int i = 0; i < d; ++i) {
    double magnitudes = 0, roundings = 0;
    for (int token = 0; token < tokens; ++token) {
      const CodedValue v = value(sequence, kv_head, first + token, i);
      const double s = both ? 1 : v.s;  // that is not in the weight
      const double of_mean = (both ? weights[token] : coded[token]) * v.m;
      row.exact[i] += (coded[token] * s * v.code + of_mean) / row.sum;
      magnitudes += coded[token] * s * (std::abs(v.code) + hack::middle_code(hack_.v)) / row.sum;
      magnitudes += std::abs(of_mean) / row.sum;
    }
    for (int token = 0; token < tokens; ++token) {
      const CodedValue v = value(sequence, kv_head, first + token, i);
      roundings += off[token] * std::abs(both ? v.code : v.m + v.s * v.code - row.exact[i]);
    }
    row.allowed[i] = 1.02 * (roundings / (row.sum - lost) + 2 * share * magnitudes) + 1e-30;
  }
  return mixed_back(row);
}

}  // namespace kvlane::hack_fixture
