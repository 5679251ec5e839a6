// Errors of formats whose error is known, percentiles and spectra against plain computations.
// SPDX-License-Identifier: Apache-2.0
#include "eval/kv_statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/bf16.h"
#include "eval/eval_fixture.h"
#include "eval/spectrum.h"

namespace kvlane {
namespace {

using eval_fixture::make_run;
using eval_fixture::measure_of;
using eval_fixture::model;

TEST(Spectrum, OfKnownMatrices) {
  // Orthogonal columns: their lengths.
  const std::vector<float> diagonal = {0, 3, 0, -2, 0, 0, 0, 0, 0, 0, 0, 0.5};
  const auto lengths = singular_values(diagonal, 3);
  ASSERT_TRUE(lengths.ok());
  ASSERT_EQ(lengths->size(), 3U);
  EXPECT_NEAR((*lengths)[0], 3, 1e-12);
  EXPECT_NEAR((*lengths)[1], 2, 1e-12);
  EXPECT_NEAR((*lengths)[2], 0.5, 1e-12);
  // 1 1; 0 1: the golden ratio and its inverse.
  const auto golden = singular_values(std::vector<float>{1, 1, 0, 1}, 2);
  ASSERT_TRUE(golden.ok());
  EXPECT_NEAR((*golden)[0], (1 + std::sqrt(5)) / 2, 1e-12);
  EXPECT_NEAR((*golden)[1], (std::sqrt(5) - 1) / 2, 1e-12);
  // Rank one: 1 2; 2 4; 3 6.
  const auto one = singular_values(std::vector<float>{1, 2, 2, 4, 3, 6}, 2);
  ASSERT_TRUE(one.ok());
  EXPECT_NEAR((*one)[0], std::sqrt(70), 1e-12);
  EXPECT_NEAR((*one)[1], 0, 1e-6);
}

class KvStatistics : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    tokens_ = eval_fixture::text_tokens();
    tokens_.resize(300);  // four blocks, and rows that belong to none
    run_ = std::make_unique<EvalRun>(make_run());
    ASSERT_TRUE(run_kv_statistics_task({tokens_}, *run_).ok());
  }
  static void TearDownTestSuite() { run_.reset(); }

  static const Curve& curve(const std::string& task, const std::string& format,
                            const std::string& name) {
    const auto& curves = run_->report.curves;
    const auto found = std::ranges::find_if(curves, [&](const Curve& each) {
      return each.task == task && each.format == format && each.name == name;
    });
    EXPECT_NE(found, curves.end()) << task << " " << name;
    return *found;
  }

  // K of layer 2, head 1: [256][head_dim].
  static std::vector<float> key_rows() {
    FormatRunner runner = take(FormatRunner::create(model(), nullptr, 300));
    EXPECT_TRUE(runner.append(tokens_, 0).ok());
    std::vector<float> rows;
    for (int block = 0; block < 4; ++block) {
      const std::uint16_t* const page = runner.table().page(block, 2, 1);
      for (int i = 0; i < kBlockTokens * model().config().head_dim; ++i) {
        rows.push_back(to_float(bf16{page[i]}));
      }
    }
    return rows;
  }

  static inline std::vector<std::int32_t> tokens_;
  static inline std::unique_ptr<EvalRun> run_;
};

TEST_F(KvStatistics, ErrorsAreThoseOfTheFormats) {
  const int layers = model().config().layers;
  for (const char* const plane : {"k", "v"}) {
    const Curve& identity = curve("layers", "identity", plane);
    EXPECT_EQ(identity.x.size(), static_cast<std::size_t>(layers));
    EXPECT_EQ(identity.y, std::vector<double>(layers, 0));
    EXPECT_EQ(measure_of(run_->report, "kv", "identity", std::string(plane) + "_error").value.value,
              0);
  }
  // Zero in place of V: all of its squares are missing.
  EXPECT_EQ(curve("layers", "without-values", "k").y, std::vector<double>(layers, 0));
  EXPECT_EQ(curve("layers", "without-values", "v").y, std::vector<double>(layers, 1));
  EXPECT_EQ(measure_of(run_->report, "kv", "without-values", "v_error").value.value, 1);
}

TEST_F(KvStatistics, ChannelsHaveTheirPercentiles) {
  const int channels = model().config().head_dim;
  const auto rows = key_rows();
  for (int channel = 0; channel < channels; ++channel) {
    std::vector<float> column;
    for (int token = 0; token < 256; ++token) column.push_back(rows[token * channels + channel]);
    std::ranges::sort(column);
    const auto of = [&](const std::string& rank) {
      return curve("channels", "bf16", "k, layer 2, head 1, " + rank).y[channel];
    };
    ASSERT_EQ(of("min"), column.front());
    ASSERT_EQ(of("p1"), column[3]);  // 2.55
    ASSERT_EQ(of("median"), column[128]);
    ASSERT_EQ(of("p99"), column[252]);  // 252.45
    ASSERT_EQ(of("max"), column.back());
  }
}

TEST_F(KvStatistics, SpectraHoldAllOfTheSquares) {
  const Curve& spectrum = curve("spectrum", "bf16", "k, layer 2, head 1");
  const auto rows = key_rows();
  const double squares = std::inner_product(rows.begin(), rows.end(), rows.begin(), 0.0);
  double sum = 0;
  for (const double value : spectrum.y) sum += value * value;
  EXPECT_NEAR(sum, squares, 1e-9 * squares);
  EXPECT_TRUE(std::ranges::is_sorted(spectrum.y, std::ranges::greater()));
  EXPECT_EQ(spectrum.x.front(), 1);
}

TEST_F(KvStatistics, NeedABlockAndAFormatThatSeals) {
  EvalRun run = make_run();
  EXPECT_FALSE(run_kv_statistics_task({std::span(tokens_).first(63)}, run).ok());
  run.formats.push_back(
      std::make_shared<format_fixture::Failing>(model().config().kv_shape(), SlabPlace{1, 64}));
  EXPECT_EQ(run_kv_statistics_task({tokens_}, run).message(), "identity: this slab is bad");
}

}  // namespace
}  // namespace kvlane
