// Tables of KVQuant behind ZACK: counted over rotated rows as far as dimensions are kept.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/bf16.h"
#include "base/test_paths.h"
#include "calib/calibrate_tables.h"
#include "calib/calibration_fixture.h"
#include "calib/kv_statistics.h"
#include "calib/signposts.h"
#include "model/forward.h"
#include "quant/kvquant_rows.h"
#include "quant/tables_fixture.h"

namespace kvlane {
namespace {

using namespace tables_fixture;
using calibration_fixture::kCounted;
using calibration_fixture::kTokens;
using calibration_fixture::tokens_of;

constexpr const char* kZack = "zack:keep=0.75";
const std::string kPrefix = std::string(kZack) + "+kvquant";

class ZackKvquantTables : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Model::load(std::string(kSourceDir) + "/tests/fixtures/models/qwen3-gqa-bf16",
                              {.isa = best_isa()});
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    model_ = std::move(*loaded);
    shape_ = model_->config().kv_shape();
    add_zack_tables(shape_, true, tables_);
    auto zack = zack_before_kvquant(kPrefix, shape_, tables_);
    ASSERT_TRUE(zack.ok()) << zack.status().message();
    zack_ = std::move(*zack);
    tokens_ = tokens_of(*model_, kTokens);
  }

  void calibrate() {
    auto made = calibrate_tables(*model_, tokens_, SignpostWeights::kNone, {}, {&zack_, 1});
    ASSERT_TRUE(made.ok()) << made.status().message();
    made_ = std::move(*made);
    made_.values.insert(tables_.values.begin(), tables_.values.end());
  }

  // Rows as the model leaves them where K is in the basis of `zack`, [layers][blocks] slabs.
  std::vector<std::vector<std::vector<std::uint16_t>>> rotated_slabs() const {
    BlockPool pool = std::move(*BlockPool::create(shape_, 4 * shape_.block_bytes()));
    BlockTable table(pool);
    EXPECT_TRUE(table.grow(kTokens).ok());
    const auto forward = std::move(*Forward::create(*model_, kTokens, 1));
    const ForwardSpan span{&table, tokens_, 0};
    EXPECT_TRUE(forward->run({&span, 1}, {}).ok());
    const int d = shape_.head_dim;
    std::vector<std::vector<std::vector<std::uint16_t>>> slabs(shape_.layers);
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (int block = 0; block < kCounted / kBlockTokens; ++block) {
        const std::uint16_t* const from = pool.slab(table.id(block), layer);
        std::vector<std::uint16_t> rows(from, from + shape_.slab_bytes() / 2);
        for (int head = 0; head < shape_.kv_heads; ++head) {
          const float* const rotation = zack_->key_rotation(layer, head);
          for (int token = 0; token < kBlockTokens; ++token) {
            const auto* const x = slab_row(shape_, from, head, true, token);
            for (int j = 0; j < d; ++j) {
              double sum = 0;
              for (int i = 0; i < d; ++i) sum += double{to_float(bf16{x[i]})} * rotation[i * d + j];
              rows[head * shape_.page_elements() + std::size_t(token) * d + j] =
                  to_bf16(static_cast<float>(sum)).bits;
            }
          }
        }
        slabs[layer].push_back(std::move(rows));
      }
    }
    return slabs;
  }

  std::unique_ptr<Model> model_;
  KvShape shape_;
  KvTables tables_;  // of `zack`
  KvTables made_;    // and those that calibration makes
  std::shared_ptr<const ZackFormat> zack_;
  std::vector<std::int32_t> tokens_;
};

TEST_F(ZackKvquantTables, LimitsArePercentilesOfRotatedKeys) {
  calibrate();
  const auto slabs = rotated_slabs();
  std::set<int> seen;
  for (int layer = 0; layer < shape_.layers; ++layer) {
    const std::string prefix = table_prefix(kPrefix, layer, true);
    const auto& low = made_.values.at(prefix + "o1.low");
    const auto& high = made_.values.at(prefix + "o1.high");
    std::size_t channel = 0;
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const HeadWidths widths = zack_->widths(layer, head);
      seen.insert(widths.k);
      seen.insert(widths.v);
      EXPECT_EQ(made_.values.at(prefix + "widths")[head], static_cast<float>(widths.k));
      EXPECT_EQ(made_.values.at(table_prefix(kPrefix, layer, false) + "widths")[head],
                static_cast<float>(widths.v));
      for (int c = 0; c < widths.k; ++c, ++channel) {
        std::vector<float> values;
        for (int token = 0; token < kCounted; ++token) {
          const auto& rows = slabs[layer][token / kBlockTokens];
          const auto* const row = slab_row(shape_, rows.data(), head, true, token % kBlockTokens);
          values.push_back(to_float(bf16{row[c]}));
        }
        std::ranges::sort(values);
        // Sums were rounded to BF16 from another order of adding up: the next value at most. Half a
        // per cent of 192 is one.
        EXPECT_NEAR(low[channel], values[1], std::abs(values[1]) * 0x1p-7F + 1e-5F);
        EXPECT_NEAR(high[channel], values[kCounted - 2],
                    std::abs(values[kCounted - 2]) * 0x1p-7F + 1e-5F);
      }
    }
    EXPECT_EQ(low.size(), channel);
  }
  EXPECT_GT(seen.size(), 1U) << "heads were to have widths of their own";
}

// Closer to the rows that are kept, the more bits there are.
TEST_F(ZackKvquantTables, ServeTheFormat) {
  calibrate();
  const auto slabs = rotated_slabs();
  const auto error_of = [&](const std::string& codes) {
    const auto format = made(kPrefix + codes, {.shape = shape_, .tables = &made_});
    double error = 0;
    double size = 0;
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const auto& rows = slabs[layer][1];
      Sealed sealed(*format, {layer, kBlockTokens}, rows);
      EXPECT_TRUE(sealed.status.ok());
      const auto opened = open(*format, {layer, kBlockTokens}, sealed.slab.data());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::size_t plane = i / shape_.page_plane_elements();
        const HeadWidths widths = zack_->widths(layer, static_cast<int>(plane / 2));
        const auto channel = static_cast<int>(i % shape_.head_dim);
        if (channel >= (plane % 2 == 0 ? widths.k : widths.v)) continue;
        const double x = to_float(bf16{rows[i]});
        error += std::pow(to_float(bf16{opened[i]}) - x, 2);
        size += x * x;
      }
    }
    return error / size;
  };
  const double two = error_of(":bits=2,outliers=0");
  const double three = error_of(":bits=3,outliers=0");
  EXPECT_LT(two, 0.3);
  EXPECT_LT(three, two / 2);
  EXPECT_LT(error_of(":bits=4,outliers=0"), three / 2);
  EXPECT_LT(error_of(":bits=3"), three);
}

// Of the first layer, without outliers.
void expect_signposts(const KvTables& tables, bool is_key, const UnitHistogram& weighted) {
  for (const int bits : {2, 3, 4}) {
    const std::string name =
        table_prefix(kPrefix, 0, is_key) + "o0.b" + std::to_string(bits) + ".signposts";
    const std::vector<double> expected = find_signposts(weighted, 1 << bits);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(tables.values.at(name)[i], expected[i], 2e-3) << name;
    }
  }
}

// A score is the same in either basis: what K is multiplied by, its gradients are divided by. And
// each value has its own head's weight, also where heads have widths of their own.
TEST_F(ZackKvquantTables, GradientsTurnAgainstKeys) {
  stretch_zack_rotations(shape_, tables_);
  zack_ = std::move(*zack_before_kvquant(kPrefix, shape_, tables_));
  const int d = shape_.head_dim;
  const std::size_t width = std::size_t(shape_.kv_heads) * d;
  const std::vector<std::uint16_t> slab = to_bits(plain_rows(shape_, 3));
  // Behind the rotation gradients by K are of two channels alone, one the larger the later the
  // token is and one the smaller.
  constexpr int kRising = 5, kFalling = 6;
  std::vector<float> keys(kBlockTokens * width), values(keys.size());
  const auto of_value = [](int token, int head, int channel) {
    return static_cast<float>((1 + 3 * head) * (1 + channel % 5) + token % 7);
  };
  for (int token = 0; token < kBlockTokens; ++token) {
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const float* const rotation = zack_->key_rotation(0, head);
      for (int i = 0; i < d; ++i) {
        const std::size_t at = token * width + std::size_t(head) * d + i;
        keys[at] = rotation[i * d + kRising] * static_cast<float>(token) +
                   rotation[i * d + kFalling] * static_cast<float>(kBlockTokens - token);
        values[at] = of_value(token, head, i);
      }
    }
  }
  const SlabGradients gradients{keys.data(), values.data()};
  const auto statistics = make_zack_kvquant_statistics(zack_, Isa::kScalar, kBlockTokens);
  for (int layer = 0; layer < shape_.layers; ++layer) {
    statistics->first({layer, 0}, slab.data());
    statistics->second({layer, 0}, slab.data(), layer == 0 ? &gradients : nullptr);
  }
  KvTables made;
  statistics->write(made);

  const std::string of_keys = table_prefix(kPrefix, 0, true) + "o0.";
  UnitHistogram by_keys, by_values;
  for (int token = 0; token < kBlockTokens; ++token) {
    std::vector<float> row;
    std::vector<double> weights;
    std::size_t first = 0;
    for (int head = 0; head < shape_.kv_heads; ++head) {
      const float* const rotation = zack_->key_rotation(0, head);
      const auto* const key = slab_row(shape_, slab.data(), head, true, token);
      for (const int channel : {kRising, kFalling}) {
        double sum = 0;
        for (int i = 0; i < d; ++i) {
          sum += double{to_float(bf16{key[i]})} * rotation[i * d + channel];
        }
        const float x = to_float(to_bf16(static_cast<float>(sum)));
        const kvquant::Limits limits{made.values.at(of_keys + "low")[first + channel],
                                     made.values.at(of_keys + "high")[first + channel]};
        const double weight = channel == kRising ? token : kBlockTokens - token;
        by_keys.add((x - limits.middle()) * limits.per_value(), weight * weight);
      }
      first += zack_->widths(0, head).k;
      const auto* const value = slab_row(shape_, slab.data(), head, false, token);
      for (int c = 0; c < zack_->widths(0, head).v; ++c) {
        row.push_back(to_float(bf16{value[c]}));
        weights.push_back(of_value(token, head, c) * of_value(token, head, c));
      }
    }
    const kvquant::Limits limits{std::ranges::min(row), std::ranges::max(row)};
    for (std::size_t i = 0; i < row.size(); ++i) {
      by_values.add((row[i] - limits.middle()) * limits.per_value(), weights[i]);
    }
  }
  expect_signposts(made, true, by_keys);
  expect_signposts(made, false, by_values);
}

TEST_F(ZackKvquantTables, OthersStayAsTheyAre) {
  calibrate();
  const auto plain = calibrate_tables(*model_, tokens_, SignpostWeights::kNone, {});
  ASSERT_TRUE(plain.ok());
  for (const auto& [name, values] : plain->values) EXPECT_EQ(made_.values.at(name), values) << name;
  for (const auto& table : made_.values) {
    const std::string& name = table.first;
    EXPECT_TRUE(plain->values.contains(name) || tables_.values.contains(name) ||
                name.starts_with(kPrefix + ".layers."))
        << name;
  }
}

TEST_F(ZackKvquantTables, WhatTheyCannotBeMadeForIsSaid) {
  const auto message = [&](std::string_view text) {
    return std::string(zack_before_kvquant(text, shape_, tables_).status().message());
  };
  for (const std::string text :
       {"kvquant", "zack:keep=0.5", "zack:keep=0.5+hack", "int4+kvquant"}) {
    EXPECT_EQ(message(text),
              "tables are made for cachegen, kvquant and such as zack:keep=0.5+kvquant, not for '" +
                  text + "'");
  }
  EXPECT_EQ(message("zack:keep=0.1+kvquant"),
            "KV format 'zack': a share of 0.1 cannot be met: every head keeps at least 16 of its "
            "32 dimensions");
  EXPECT_EQ(zack_before_kvquant(kPrefix, shape_, {}).status().message(),
            "KV format 'zack' needs tables: kvlane calibrate zack DIR --text FILE --out OUT, then "
            "OUT in the model's place");
}

}  // namespace
}  // namespace kvlane
