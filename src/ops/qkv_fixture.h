// Heads on their way from the product of Q, K and V to attention, as tests of device code see them:
// sequences in blocks of a pool with everything else poisoned, and what must be where afterwards.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <numeric>

#include "format/shape.h"
#include "ops/rope_table.h"
#include "ops/rows_fixture.h"

namespace kvlane::qkv_fixture {

using rows_fixture::kPoison16;
using rows_fixture::kU;

struct Written {
  std::vector<std::uint16_t> q, pool;
  friend bool operator==(const Written&, const Written&) = default;
};

struct Place {
  int sequence;
  int position;  // negative: padding
};

struct SceneShape {
  int heads, kv_heads, head_dim;
  bool norm;
  std::vector<Place> rows;
  bool turned = false;  // Q and K into another basis
};

// One layer of a pool of two. Places are those of no two rows.
class Scene {
 public:
  static constexpr int kLayers = 2, kLayer = 1;
  static constexpr int kPositions = 200;
  static constexpr int kTableStride = 5;  // more than kPositions need

  explicit Scene(SceneShape shape, unsigned seed = 1) : shape_(std::move(shape)) {
    std::mt19937 random(seed);
    const int d = shape_.head_dim;
    product_ = rows_fixture::normal_values(shape_.rows.size() * width(), 3, random);
    q_norm_ = rows_fixture::normal_values(d, 1, random);
    k_norm_ = rows_fixture::normal_values(d, 1, random);
    if (shape_.turned) {
      // Not orthogonal, but of the same size: errors are not rotated away.
      const float size = 1 / std::sqrt(static_cast<float>(d));
      rotations_ = rows_fixture::normal_values(std::size_t(shape_.kv_heads) * d * d, size, random);
    }
    std::vector<float> frequencies(d / 2);
    for (int i = 0; i < d / 2; ++i) {
      frequencies[i] = static_cast<float>(std::pow(10000.0, -2.0 * i / d));
    }
    rope_ = RopeTable(frequencies, kPositions);
    int sequences = 1;
    for (const Place& place : shape_.rows) {
      positions_.push_back(place.position);
      sequences_.push_back(place.sequence);
      sequences = std::max(sequences, place.sequence + 1);
    }
    // Blocks in no order.
    tables_.resize(std::size_t(sequences) * kTableStride);
    std::iota(tables_.begin(), tables_.end(), 0);
    std::shuffle(tables_.begin(), tables_.end(), random);
  }

  const std::vector<float>& product() const { return product_; }
  const std::vector<float>& q_norm() const { return q_norm_; }
  const std::vector<float>& k_norm() const { return k_norm_; }
  const std::vector<float>& rotations() const { return rotations_; }
  const std::vector<std::int32_t>& positions() const { return positions_; }
  const std::vector<std::int32_t>& sequences() const { return sequences_; }
  const std::vector<std::int32_t>& tables() const { return tables_; }
  // All of RopeTable's values.
  std::vector<float> angles() const {
    const float* const first = rope_.angles(0).cos;
    return {first, first + std::size_t{kPositions} * shape_.head_dim};
  }
  std::size_t q_values() const {
    return shape_.rows.size() * shape_.heads * std::size_t(shape_.head_dim);
  }
  std::size_t pool_values() const { return tables_.size() * block_values(); }
  std::size_t layer_offset() const { return 2 * block_values() / kLayers * kLayer; }

  QkvRows rows() const {
    return {.product = product_.data(),
            .q_norm = shape_.norm ? q_norm_.data() : nullptr,
            .k_norm = shape_.norm ? k_norm_.data() : nullptr,
            .eps = 1e-5F,
            .angles = rope_.angles(0).cos,
            .positions = positions_.data(),
            .sequences = sequences_.data(),
            .tables = tables_.data(),
            .table_stride = kTableStride,
            .rows = static_cast<std::int32_t>(shape_.rows.size()),
            .heads = shape_.heads,
            .kv_heads = shape_.kv_heads,
            .head_dim = shape_.head_dim,
            .block_bytes = 2 * block_values(),
            .rotations = shape_.turned ? rotations_.data() : nullptr};
  }

  // `pool` was poisoned before.
  void expect_right(const std::vector<std::uint16_t>& q, std::vector<std::uint16_t> pool) const {
    ASSERT_EQ(q.size(), q_values());
    ASSERT_EQ(pool.size(), pool_values());
    const int d = shape_.head_dim;
    for (std::size_t row = 0; row < shape_.rows.size(); ++row) {
      const Place& place = shape_.rows[row];
      const float* head = &product_[row * width()];
      for (int h = 0; h < shape_.heads; ++h, head += d) {
        const std::uint16_t* const own = &q[(row * shape_.heads + h) * d];
        if (place.position < 0) {
          for (int i = 0; i < d; ++i) ASSERT_EQ(own[i], 0) << "row " << row << ", head " << h;
        } else {
          expect_head(own, head, q_norm_, place.position, h / (shape_.heads / shape_.kv_heads));
        }
      }
      for (int plane = 0; place.position >= 0 && plane < 2 * shape_.kv_heads; ++plane) {
        const int kv_head = plane / 2, is_value = plane % 2;
        const float* const from = head + (is_value * shape_.kv_heads + kv_head) * d;
        std::uint16_t* const own = &pool[page_row(place, plane)];
        if (is_value != 0) {
          for (int i = 0; i < d; ++i) ASSERT_EQ(own[i], to_bf16(from[i]).bits) << "V, row " << row;
        } else {
          expect_head(own, from, k_norm_, place.position, kv_head);
        }
        std::fill_n(own, d, kPoison16);
      }
      if (testing::Test::HasFatalFailure()) return;
    }
    for (std::size_t i = 0; i < pool.size(); ++i) {
      ASSERT_EQ(pool[i], kPoison16) << "written where no row is: value " << i;
    }
  }

 private:
  std::size_t width() const {
    return std::size_t(shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim;
  }
  std::size_t block_values() const {
    return std::size_t{kLayers} * shape_.kv_heads * 2 * kBlockTokens * shape_.head_dim;
  }
  std::size_t page_row(const Place& place, int plane) const {
    const std::int32_t block =
        tables_[place.sequence * kTableStride + place.position / kBlockTokens];
    return block * block_values() + layer_offset() / 2 +
           (std::size_t(plane) * kBlockTokens + place.position % kBlockTokens) * shape_.head_dim;
  }

  // A value behind the embedding, and how far a device's may be from it.
  struct Embedded {
    double exact, allowed;
  };
  // Without norm every operation is the CPU's, and so is every bit. With it: a square is rounded
  // and goes through 4 + 1 + 5 additions, the mean and eps follow: 13 U; half of that, the root,
  // the scale and two products: 10.5 U of a normed value, and of what it contributes to a rotated
  // one; there the product and the sum are rounded, too: 12.5 U and terms of second order.
  std::vector<Embedded> embedded(const float* head, const std::vector<float>& weight,
                                 int position) const {
    const int d = shape_.head_dim, half = d / 2;
    const RopeAngles angles = rope_.angles(position);
    std::vector<Embedded> values(d);
    if (!shape_.norm) {
      std::vector<float> expected(head, head + d);
      rope(expected.data(), angles, d);
      for (int i = 0; i < d; ++i) values[i] = {expected[i], 0};
      return values;
    }
    double squares = 0;
    for (int i = 0; i < d; ++i) squares += double{head[i]} * head[i];
    const double scale = 1 / std::sqrt(squares / d + 1e-5F);
    const auto normed = [&](int i) { return head[i] * scale * weight[i]; };
    for (int i = 0; i < d; ++i) {
      const double cos = angles.cos[i % half], sin = angles.sin[i % half];
      const double along = normed(i) * cos;
      const double across = i < half ? -normed(i + half) * sin : normed(i - half) * sin;
      values[i] = {along + across, 13 * kU * (std::abs(along) + std::abs(across)) + 0x1p-140};
    }
    return values;
  }

  // The head times its KV head's matrix. A value goes through d sums of a product each, all rounded
  // once: d U of the sum of magnitudes, and terms of second order.
  void turn(std::vector<Embedded>& values, int kv_head) const {
    const int d = shape_.head_dim;
    const float* const matrix = &rotations_[std::size_t(kv_head) * d * d];
    const std::vector<Embedded> x = values;
    for (int j = 0; j < d; ++j) {
      double sum = 0, magnitudes = 0, allowed = 0;
      for (int i = 0; i < d; ++i) {
        const double by = matrix[i * d + j];
        sum += x[i].exact * by;
        magnitudes += std::abs(x[i].exact * by);
        allowed += x[i].allowed * std::abs(by);
      }
      values[j] = {sum, allowed + 1.01 * d * kU * magnitudes + 0x1p-140};
    }
  }

  void expect_head(const std::uint16_t* out, const float* head, const std::vector<float>& weight,
                   int position, int kv_head) const {
    std::vector<Embedded> values = embedded(head, weight, position);
    if (shape_.turned) turn(values, kv_head);
    for (int i = 0; i < shape_.head_dim; ++i) {
      if (!shape_.norm && !shape_.turned) {
        const auto expected = to_bf16(static_cast<float>(values[i].exact));
        ASSERT_EQ(out[i], expected.bits) << "value " << i << ", position " << position;
        continue;
      }
      ASSERT_TRUE(rows_fixture::is_rounded(out[i], values[i].exact, values[i].allowed))
          << to_float(bf16{out[i]}) << " is not " << values[i].exact << ": value " << i << " of "
          << shape_.head_dim << ", position " << position;
    }
  }

  const SceneShape shape_;
  std::vector<float> product_, q_norm_, k_norm_, rotations_;
  RopeTable rope_;
  std::vector<std::int32_t> positions_, sequences_, tables_;
};

// Rows of two sequences in turn, at the edges of blocks and between, and padding.
inline std::vector<Place> mixed_rows() {
  return {{0, 0}, {1, 63}, {0, 1}, {0, -1}, {1, 64}, {0, 130}, {1, -5}, {1, 199}};
}

}  // namespace kvlane::qkv_fixture
