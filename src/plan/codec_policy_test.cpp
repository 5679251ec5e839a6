// Which codec pays on which link: the cases one can work out by hand, and the crossover as the
// place where the choice changes.
// SPDX-License-Identifier: Apache-2.0
#include "plan/codec_policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace kvlane {
namespace {

constexpr CodecPace kNoCodec{};
constexpr CodecPace kFast{.ratio = 1.33, .encode = 8e9, .decode = 10e9};
constexpr CodecPace kSmall{.ratio = 1.47, .encode = 4e9, .decode = 5e9};
constexpr double kGigabit = 1e9 / 8;

TEST(SecondsPerByte, TheSlowestStageSetsThePace) {
  EXPECT_DOUBLE_EQ(seconds_per_byte(kFast, {1e9}), 1 / 1.33e9);
  EXPECT_DOUBLE_EQ(seconds_per_byte(kFast, {100e9}), 1 / 8e9) << "encoding";
  EXPECT_DOUBLE_EQ(seconds_per_byte({1.33, 8e9, 2e9}, {100e9}), 1 / 2e9) << "decoding";
  EXPECT_DOUBLE_EQ(seconds_per_byte(kNoCodec, {1e9}), 1e-9);
}

TEST(SecondsPerByte, ABusyReceiverReadsOrDecodes) {
  EXPECT_DOUBLE_EQ(seconds_per_byte(kFast, {2e9, true}), 1 / (1.33 * 2e9) + 1 / 10e9);
  EXPECT_DOUBLE_EQ(seconds_per_byte({1.33, 1e9, 10e9}, {2e9, true}), 1e-9);
  EXPECT_DOUBLE_EQ(seconds_per_byte(kNoCodec, {2e9, true}), 1 / 2e9);
}

TEST(SecondsPerByte, SerialStagesAddUp) {
  EXPECT_DOUBLE_EQ(seconds_per_byte_serial(kFast, 1e9), 1 / 8e9 + 1 / 1.33e9 + 1 / 10e9);
  EXPECT_DOUBLE_EQ(seconds_per_byte_serial(kNoCodec, 1e9), 1e-9);
}

// The speed-ups of the SplitZip paper's codec, at 50 GB/s and where it ends to pay.
TEST(SecondsPerByte, ThePapersFigures) {
  const CodecPace h200{1.311, 613.3e9, 2181.8e9};
  EXPECT_NEAR(1 / 50e9 / seconds_per_byte_serial(h200, 50e9), 1.15, 0.005);
  EXPECT_NEAR(1 / 6.25e9 / seconds_per_byte_serial(h200, 6.25e9), 1.29, 0.005);
  EXPECT_NEAR(crossover_serial(h200), 113e9, 1e9);
}

TEST(PickCodec, TheSmallestOnSlowLinksTheFastestOnFasterOnes) {
  const std::vector<CodecPace> candidates = {kNoCodec, kFast, kSmall};
  EXPECT_EQ(pick_codec(candidates, LinkPace{kGigabit}), 2U);
  EXPECT_EQ(pick_codec(candidates, LinkPace{10 * kGigabit}), 2U);
  EXPECT_EQ(pick_codec(candidates, LinkPace{5e9}), 1U);
  EXPECT_EQ(pick_codec(candidates, LinkPace{50e9}), 0U);
}

TEST(PickCodec, NobodyWaitsForTheLink) {
  EXPECT_EQ(pick_codec(std::vector<CodecPace>{kNoCodec, kFast}, std::nullopt), 0U);
}

TEST(PickCodec, AWinSmallerThanTheMarginIsNone) {
  const CodecPace tiny{.ratio = 1 / (1 - kCodecMargin) - 0.001, .encode = 1e12, .decode = 1e12};
  const CodecPace enough{.ratio = 1 / (1 - kCodecMargin) + 0.001, .encode = 1e12, .decode = 1e12};
  EXPECT_EQ(pick_codec(std::vector<CodecPace>{kNoCodec, tiny}, LinkPace{kGigabit}), 0U);
  EXPECT_EQ(pick_codec(std::vector<CodecPace>{kNoCodec, enough}, LinkPace{kGigabit}), 1U);
}

// A codec may look faster than `none`, which copies; but bytes that do not shrink are not for it.
TEST(PickCodec, WhatDoesNotShrinkIsNeverTaken) {
  const CodecPace slow_none{.ratio = 1, .encode = 1e9, .decode = 1e9};
  const CodecPace fast_grower{.ratio = 0.99, .encode = 50e9, .decode = 50e9};
  EXPECT_EQ(pick_codec(std::vector<CodecPace>{slow_none, fast_grower}, LinkPace{100e9}), 0U);
}

TEST(PickCodec, AReceiverThatIsTheBottleneckMakesDecodingCount) {
  const CodecPace slow_reader{.ratio = 1.33, .encode = 8e9, .decode = 6e9};
  EXPECT_EQ(pick_codec(std::vector<CodecPace>{kNoCodec, slow_reader}, LinkPace{2e9, false}), 1U);
  EXPECT_EQ(pick_codec(std::vector<CodecPace>{kNoCodec, slow_reader}, LinkPace{2e9, true}), 0U);
}

TEST(PickCodec, OneCandidateIsTaken) {
  EXPECT_EQ(pick_codec(std::vector<CodecPace>{kNoCodec}, LinkPace{kGigabit}), 0U);
}

// Just below the crossover the codec is taken, just above it is not.
TEST(Crossover, IsWhereTheChoiceChanges) {
  for (const CodecPace& codec : {kFast, kSmall}) {
    const double edge = crossover(codec, kCodecMargin);
    ASSERT_GT(edge, 0);
    const std::vector<CodecPace> candidates = {kNoCodec, codec};
    EXPECT_EQ(pick_codec(candidates, LinkPace{edge * 0.999}), 1U);
    EXPECT_EQ(pick_codec(candidates, LinkPace{edge * 1.001}), 0U);
  }
}

TEST(Crossover, OfSerialStagesComesEarlier) {
  EXPECT_DOUBLE_EQ(crossover(kFast), 8e9);
  EXPECT_DOUBLE_EQ(seconds_per_byte_serial(kFast, crossover_serial(kFast)),
                   1 / crossover_serial(kFast));
  EXPECT_LT(crossover_serial(kFast), crossover(kFast));
  EXPECT_LT(crossover_serial(kFast, kCodecMargin), crossover_serial(kFast));
}

TEST(Crossover, ACodecThatSavesNothingHasNone) {
  const CodecPace raw{.ratio = 1, .encode = 8e9, .decode = 8e9};
  EXPECT_EQ(crossover(raw), 0);
  EXPECT_EQ(crossover_serial(raw), 0);
  EXPECT_EQ(crossover({.ratio = 1.04, .encode = 8e9, .decode = 8e9}, kCodecMargin), 0);
  EXPECT_TRUE(std::isinf(crossover({.ratio = 1.33}))) << "free of charge";
}

}  // namespace
}  // namespace kvlane
