// Tables of KV formats: counted as a plain reading of the cache would, and good for the model they
// come from.
// SPDX-License-Identifier: Apache-2.0
#include "calib/calibrate_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/bf16.h"
#include "calib/calibration_fixture.h"
#include "calib/kv_gradients.h"
#include "calib/kv_statistics.h"
#include "calib/row_gradients.h"
#include "calib/signposts.h"
#include "model/expected_fixture.h"
#include "model/forward.h"
#include "quant/cachegen_symbols.h"
#include "quant/kv_format.h"
#include "quant/kvquant_rows.h"
#include "quant/slab_rows.h"
#include "quant/table_lookup.h"

namespace kvlane {
namespace {

using calibration_fixture::kCounted;
using calibration_fixture::kTokens;
using calibration_fixture::tokens_of;
using expected_fixture::kModels;

class CalibrateTables : public testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Model::load(kModels / "llama-gqa-bf16-llama3-sharded", {.isa = best_isa()});
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    model_ = std::move(*loaded);
    shape_ = model_->config().kv_shape();
    tokens_ = tokens_of(*model_, kTokens);
    pool_.emplace(std::move(*BlockPool::create(shape_, 6 * shape_.block_bytes())));
    table_.emplace(*pool_);
    ASSERT_TRUE(table_->grow(kTokens).ok());
    const auto forward = std::move(*Forward::create(*model_, kTokens, 1));
    const ForwardSpan span{&*table_, tokens_, 0};
    ASSERT_TRUE(forward->run({&span, 1}, {}).ok());
  }

  const std::uint16_t* slab(int layer, int block) const {
    return pool_->slab(table_->id(block), layer);
  }
  // All counted values of a channel, K before its rotation.
  std::vector<float> channel(int layer, bool is_key, int wanted) const {
    std::vector<float> values;
    std::vector<float> row(std::size_t(shape_.kv_heads) * shape_.head_dim);
    for (int token = 0; token < kCounted; ++token) {
      kvquant::read_token(shape_, kvquant::all_channels(shape_), slab(layer, token / 64), is_key,
                          token % 64, model_->rope().angles(token), row.data());
      values.push_back(row[wanted]);
    }
    return values;
  }

  // [layers] of [tokens][channels], by K before its rotation or by V.
  std::vector<Matrix<double>> gradients(bool is_key) const {
    std::vector<Matrix<double>> by(shape_.layers);
    const auto keep = [&](int layer, const Matrix<double>& keys, const Matrix<double>& values) {
      by[layer] = is_key ? keys : values;
      for (int i = 0; is_key && i < keys.size(); i += shape_.head_dim) {
        const auto token = static_cast<int>(i / keys.cols());
        turn_gradient_back(by[layer].data() + i, model_->rope().angles(token), shape_.head_dim);
      }
    };
    const auto made = KvGradients<double>::create(*model_);
    EXPECT_TRUE(made.ok());
    EXPECT_TRUE(made->run(tokens_, {.on_gradients = keep, .on_rows = {}, .progress = {}}).ok());
    return by;
  }

  std::unique_ptr<Model> model_;
  KvShape shape_;
  std::vector<std::int32_t> tokens_;
  std::optional<BlockPool> pool_;
  std::optional<BlockTable> table_;
};

TEST_F(CalibrateTables, LimitsArePercentilesOfTheKeysBeforeRotation) {
  const auto tables = calibrate_tables(*model_, tokens_, SignpostWeights::kNone, {});
  ASSERT_TRUE(tables.ok()) << tables.status().message();
  for (int layer = 0; layer < shape_.layers; ++layer) {
    const std::string prefix = table_prefix("kvquant", layer, true);
    for (int c = 0; c < shape_.kv_heads * shape_.head_dim; ++c) {
      std::vector<float> values = channel(layer, true, c);
      std::ranges::sort(values);
      EXPECT_EQ(tables->values.at(prefix + "o0.low")[c], values.front());
      EXPECT_EQ(tables->values.at(prefix + "o0.high")[c], values.back());
      // Half a per cent of 192 is one.
      EXPECT_EQ(tables->values.at(prefix + "o1.low")[c], values[1]);
      EXPECT_EQ(tables->values.at(prefix + "o1.high")[c], values[kCounted - 2]);
    }
  }
}

TEST_F(CalibrateTables, CountsTheSymbolsOfTheCache) {
  using namespace cachegen;
  const auto tables = calibrate_tables(*model_, tokens_, SignpostWeights::kNone, {});
  ASSERT_TRUE(tables.ok());
  const int layer = shape_.layers - 1;
  for (const bool is_key : {true, false}) {
    const std::string prefix = table_prefix("cachegen", layer, is_key);
    std::vector<float> expected(std::size_t(shape_.kv_heads) * shape_.head_dim * symbols_of(16));
    for (int token = 0; token < kCounted; ++token) {
      const Scale scale(largest_magnitude(shape_, slab(layer, token / 64), is_key, token % 64), 7);
      for (int c = 0; c < shape_.kv_heads * shape_.head_dim; ++c) {
        const std::uint16_t* const row =
            slab_row(shape_, slab(layer, token / 64), c / shape_.head_dim, is_key, token % 64);
        const float x = to_float(bf16{row[c % shape_.head_dim]});
        ++expected[std::size_t(c) * 15 + symbol_of(x, scale)];
      }
    }
    EXPECT_EQ(tables->values.at(prefix + "bins16"), expected);
    // 7 anchors in each of three blocks, 57 others.
    const auto& anchors = tables->values.at(prefix + "anchor");
    const auto& deltas = tables->values.at(prefix + "delta");
    EXPECT_EQ(std::accumulate(anchors.begin(), anchors.begin() + 32, 0.0), 3 * 7);
    EXPECT_EQ(std::accumulate(deltas.begin(), deltas.begin() + 63, 0.0), 3 * 57);
  }
  double sum = 0;
  double squares = 0;
  for (const float x : channel(layer, false, 5)) {
    sum += x;
    squares += double{x} * x;
  }
  const double variance = squares / kCounted - sum * sum / kCounted / kCounted;
  EXPECT_NEAR(tables->values.at(table_prefix("cachegen", layer, false) + "deviation")[5],
              std::sqrt(variance), 1e-5 * std::sqrt(variance));
}

// With tables of its own text every format is closer to the rows the more bits it has.
TEST_F(CalibrateTables, ServeTheFormats) {
  const auto tables = calibrate_tables(*model_, tokens_, SignpostWeights::kNone, {});
  ASSERT_TRUE(tables.ok());
  const KvFormatContext context{shape_, &model_->rope(), &*tables, best_isa()};
  const auto error_of = [&](const char* text) {
    const auto format = make_kv_format(text, context);
    EXPECT_TRUE(format.ok()) << format.status().message();
    struct alignas(64) AlignedLine {
      std::byte bytes[64];
    };
    std::vector<AlignedLine> sealed((*format)->slab_bytes() / 64);
    std::vector<AlignedLine> page((shape_.page_bytes() + 63) / 64);
    double error = 0;
    double size = 0;
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const SlabPlace place{layer, 64};
      EXPECT_TRUE((*format)->seal(place, slab(layer, 1), sealed.data()->bytes).ok());
      EXPECT_LT((*format)->used_bytes({0, 0}, sealed.data()->bytes), shape_.slab_bytes() / 2);
      for (int head = 0; head < shape_.kv_heads; ++head) {
        auto* const opened = reinterpret_cast<std::uint16_t*>(page.data());
        (*format)->open_page(place, sealed.data()->bytes, head, opened);
        const std::uint16_t* const rows = slab_row(shape_, slab(layer, 1), head, true, 0);
        for (std::size_t i = 0; i < shape_.page_bytes() / 2; ++i) {
          const double x = to_float(bf16{rows[i]});
          error += std::pow(to_float(bf16{opened[i]}) - x, 2);
          size += x * x;
        }
      }
    }
    return error / size;
  };
  const double two = error_of("kvquant:bits=2,outliers=0");
  const double three = error_of("kvquant:bits=3,outliers=0");
  const double four = error_of("kvquant:bits=4,outliers=0");
  EXPECT_LT(two, 0.3);
  EXPECT_LT(three, two / 2);
  EXPECT_LT(four, three / 2);
  EXPECT_LT(error_of("kvquant:bits=3"), three);
  EXPECT_LT(error_of("cachegen:level=3"), error_of("cachegen:level=1"));
  EXPECT_LT(error_of("cachegen:form=paper"), 0.2);
}

// From all values and their gradients, gathered and weighted one by one.
TEST_F(CalibrateTables, ValuesCountByTheSquaresOfTheirGradients) {
  const std::vector<Matrix<double>> by[] = {gradients(true), gradients(false)};
  const auto tables = calibrate_tables(*model_, tokens_, SignpostWeights::kGradients, {});
  const auto alike = calibrate_tables(*model_, tokens_, SignpostWeights::kNone, {});
  ASSERT_TRUE(tables.ok() && alike.ok());
  const int channels = shape_.kv_heads * shape_.head_dim;
  for (int layer = 0; layer < shape_.layers; ++layer) {
    for (const bool is_key : {true, false}) {
      Matrix<float> values(kCounted, channels);
      for (int c = 0; c < channels; ++c) {
        const std::vector<float> of_channel = channel(layer, is_key, c);
        for (int token = 0; token < kCounted; ++token) values(token, c) = of_channel[token];
      }
      UnitHistogram weighted, plain;
      for (int token = 0; token < kCounted; ++token) {
        for (int c = 0; c < channels; ++c) {
          const float low = is_key ? values.col(c).minCoeff() : values.row(token).minCoeff();
          const float high = is_key ? values.col(c).maxCoeff() : values.row(token).maxCoeff();
          const kvquant::Limits limits{low, high};
          const float unit = (values(token, c) - limits.middle()) * limits.per_value();
          const double gradient = by[is_key ? 0 : 1][layer](token, c);
          weighted.add(unit, gradient * gradient);
          plain.add(unit, 1);
        }
      }
      for (const int bits : {2, 3, 4}) {
        const std::string name =
            table_prefix("kvquant", layer, is_key) + "o0.b" + std::to_string(bits);
        const auto& signposts = tables->values.at(name + ".signposts");
        const std::vector<double> expected = find_signposts(weighted, 1 << bits);
        const std::vector<double> levels = bits == 2 ? normalise_levels(plain, expected) : expected;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_NEAR(signposts[i], expected[i], 1e-3) << name;
          EXPECT_NEAR(tables->values.at(name + ".values")[i], levels[i], 1e-3) << name;
        }
        EXPECT_NE(signposts, alike->values.at(name + ".signposts"));
      }
    }
  }
  // All others are as without weights.
  for (const auto& [name, values] : alike->values) {
    if (name.ends_with(".signposts") || name.ends_with(".values")) continue;
    EXPECT_EQ(values, tables->values.at(name)) << name;
  }
}

// Two sequences of 100 tokens: a block of each counts, with the gradients of its own sequence.
TEST_F(CalibrateTables, EverySequenceHasGradientsOfItsOwn) {
  auto model = Model::load(kModels / "llama-gqa-bf16-llama3-sharded",
                           {.isa = best_isa(), .context_max = 100});
  ASSERT_TRUE(model.ok());
  const auto tables = calibrate_tables(**model, tokens_, SignpostWeights::kGradients, {});
  ASSERT_TRUE(tables.ok());
  const auto statistics = make_kvquant_statistics(shape_, (*model)->rope(), 2 * kBlockTokens);
  const auto forward = std::move(*Forward::create(**model, 100, 1));
  const auto gradients = std::move(*KvGradients<float>::create(**model));
  for (const bool first : {true, false}) {
    for (const std::size_t begin : {0, 100}) {
      const std::span<const std::int32_t> sequence = std::span(tokens_).subspan(begin, 100);
      BlockTable table(*pool_);
      ASSERT_TRUE(table.grow(100).ok());
      const ForwardSpan span{&table, sequence, 0};
      ASSERT_TRUE(forward->run({&span, 1}, {}).ok());
      const auto see = [&](int layer, const Matrix<float>& keys, const Matrix<float>& values) {
        const SlabPlace place{layer, 0};
        const SlabGradients of_slab{keys.data(), values.data()};
        const std::uint16_t* const rows = pool_->slab(table.id(0), layer);
        first ? statistics->first(place, rows) : statistics->second(place, rows, &of_slab);
      };
      ASSERT_TRUE(
          gradients.run(sequence, {.on_gradients = see, .on_rows = {}, .progress = {}}).ok());
    }
  }
  KvTables expected;
  statistics->write(expected);
  for (const auto& [name, values] : expected.values) {
    EXPECT_EQ(values, tables->values.at(name)) << name;
  }
  std::uint64_t last = 0;
  const auto progress = [&](std::uint64_t done, std::uint64_t) {
    EXPECT_GE(done, last);
    last = done;
  };
  ASSERT_TRUE(calibrate_tables(**model, tokens_, SignpostWeights::kGradients, progress).ok());
  EXPECT_EQ(last, 3 * kTokens);
}

TEST_F(CalibrateTables, NeedsABlock) {
  const auto few =
      calibrate_tables(*model_, std::span(tokens_).first(63), SignpostWeights::kNone, {});
  EXPECT_EQ(few.status().message(), "calibrating tables needs from 64 to 2^24 tokens, not 63");
}

TEST_F(CalibrateTables, TellsHowFarItIs) {
  for (const auto weights : {SignpostWeights::kNone, SignpostWeights::kGradients}) {
    const std::uint64_t all = (weights == SignpostWeights::kNone ? 2 : 3) * kTokens;
    std::uint64_t last = 0;
    const auto progress = [&](std::uint64_t done, std::uint64_t total) {
      EXPECT_GE(done, last);
      EXPECT_EQ(total, all);
      last = done;
    };
    ASSERT_TRUE(calibrate_tables(*model_, tokens_, weights, progress).ok());
    EXPECT_EQ(last, all);
  }
}

}  // namespace
}  // namespace kvlane
