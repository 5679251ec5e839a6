// The harness itself: a format that changes nothing costs nothing, one that zeroes V costs much,
// and figures do not depend on how often they are made.
// SPDX-License-Identifier: Apache-2.0
#include "eval/quality.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/parallel.h"
#include "eval/divergence.h"
#include "eval/eval_fixture.h"
#include "quant/format_fixture.h"

namespace kvlane {
namespace {

using eval_fixture::model;
using eval_fixture::random_tokens;

constexpr int kContextTokens = 1024;  // the model's context

KvShape shape() { return model().config().kv_shape(); }

FormatRunner runner(std::shared_ptr<const KvFormat> format) {
  return take(FormatRunner::create(model(), std::move(format), kContextTokens));
}

struct Scored {
  std::vector<WindowScore> reference;
  std::vector<WindowScore> format;
};

Scored score(const std::shared_ptr<const KvFormat>& format, int windows, int tokens, int scored) {
  FormatRunner reference = runner(nullptr);
  FormatRunner tested = runner(format);
  FormatRunner* const both[] = {&reference, &tested};
  Scored result;
  for (int window = 0; window < windows; ++window) {
    WindowScore scores[2];
    const Status status =
        score_window(reference, both, random_tokens(tokens, window), scored, scores);
    EXPECT_TRUE(status.ok()) << status.message();
    result.reference.push_back(scores[0]);
    result.format.push_back(scores[1]);
  }
  return result;
}

TEST(Quality, LossIsThatOfAPlainLoopOverTokens) {
  constexpr int kTokens = 600;  // more than one append
  const auto tokens = random_tokens(kTokens, 0);
  FormatRunner plain = runner(nullptr);
  std::vector<double> losses;
  for (int i = 0; i + 1 < kTokens; ++i) {
    ASSERT_TRUE(plain.append(std::span(tokens).subspan(i, 1), 1).ok());
    losses.push_back(Reference(plain.logits(0)).loss(tokens[i + 1]));
  }
  for (const int scored : {1, 87, 88, 89, 512, kTokens - 1}) {
    const Scored result = score(nullptr, 1, kTokens, scored);
    double expected = 0;
    for (int i = kTokens - 1 - scored; i < kTokens - 1; ++i) expected += losses[i];
    EXPECT_EQ(result.reference[0].tokens, scored);
    EXPECT_NEAR(result.reference[0].loss, expected, 1e-9 * expected) << scored;
  }
}

TEST(Quality, AFormatThatChangesNothingCostsExactlyNothing) {
  const auto identity = std::make_shared<format_fixture::Identity>(shape(), KvWindow{0, 1});
  const Scored result = score(identity, 3, 700, 699);
  const Quality quality = summarise_quality(result.format, result.reference, 1);
  EXPECT_EQ(quality.divergence.value, 0);
  EXPECT_EQ(quality.divergence.high, 0);
  EXPECT_EQ(quality.agreement.value, 1);
  EXPECT_EQ(quality.perplexity_ratio.value, 1);
  EXPECT_EQ(quality.perplexity_ratio.low, 1);
  EXPECT_EQ(quality.perplexity_ratio.high, 1);
  EXPECT_EQ(quality.worst, 0);
  EXPECT_EQ(quality.tokens, 3 * 699);
}

TEST(Quality, AFormatWithoutValuesScoresTerribly) {
  const auto without = std::make_shared<format_fixture::WithoutValues>(shape());
  const Scored result = score(without, 3, 700, 500);
  const Quality quality = summarise_quality(result.format, result.reference, 1);
  EXPECT_GT(quality.divergence.low, 0.001);
  EXPECT_LT(quality.agreement.high, 0.95);
  EXPECT_GE(quality.worst, quality.divergence.value);
}

TEST(Quality, RerunsGiveTheSameFigures) {
  const auto without = std::make_shared<format_fixture::WithoutValues>(shape());
  const Scored first = score(without, 2, 300, 200);
  set_parallel_threads(1);
  const Scored second = score(without, 2, 300, 200);
  set_parallel_threads(2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(first.format[i].loss, second.format[i].loss);
    EXPECT_EQ(first.format[i].divergence, second.format[i].divergence);
    EXPECT_EQ(first.format[i].agreeing, second.format[i].agreeing);
  }
}

TEST(Quality, SequencesBeyondTheModelsContextAreRefused) {
  EXPECT_FALSE(FormatRunner::create(model(), nullptr, kContextTokens + 1).ok());
}

TEST(Quality, AnErrorNamesTheFormat) {
  FormatRunner reference = runner(nullptr);
  FormatRunner bad =
      runner(std::make_shared<format_fixture::Failing>(shape(), SlabPlace{0, kBlockTokens}));
  FormatRunner* const formats[] = {&bad};
  WindowScore score;
  EXPECT_EQ(score_window(reference, formats, random_tokens(200, 1), 100, {&score, 1}).message(),
            "identity: this slab is bad");
}

TEST(Quality, BytesAreThoseThatAttentionReads) {
  const double rows = static_cast<double>(shape().block_bytes()) / kBlockTokens;
  const auto bytes_of = [&](const std::shared_ptr<const KvFormat>& format, int tokens) {
    FormatRunner tested = runner(format);
    const auto all = random_tokens(tokens, 1);
    for (int at = 0; at < tokens; at += 500) {
      const auto part = std::span(all).subspan(at, std::min(500, tokens - at));
      EXPECT_TRUE(tested.append(part, 0).ok());
    }
    return tested.bytes();
  };
  EXPECT_EQ(bytes_of(nullptr, 100).bytes_per_token(), rows);
  EXPECT_EQ(bytes_of(nullptr, 100).bits_sealed(), 0);
  const auto window = std::make_shared<format_fixture::Identity>(shape(), KvWindow{1, 2});
  const CacheBytes bytes = bytes_of(window, 700);  // own block 10; 0, 8 and 9 are rows
  EXPECT_EQ(bytes.sealed, 7 * 64 * rows);
  EXPECT_EQ(bytes.bits_sealed(), 16);
  EXPECT_EQ(bytes.bytes_per_token(), rows);
}

}  // namespace
}  // namespace kvlane
