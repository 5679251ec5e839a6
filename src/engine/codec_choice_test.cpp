// The choice of a codec from what was measured: figures are given by hand, the clock is virtual.
// SPDX-License-Identifier: Apache-2.0
#include "engine/codec_choice.h"

#include <gtest/gtest.h>

namespace kvlane {
namespace {

using std::chrono_literals::operator""ms;

constexpr PlaneShape kPlane{ElementType::kBf16, 2, 64, 64};
// So slow that any machine decodes faster, under any sanitizer: the tests pretend encoding speeds
// and ratios, but decoding speeds are what the machine was measured to do.
constexpr LinkSpeed kSlow{1e6, false};

std::unique_ptr<CodecChoice> make(std::string_view name, const PlaneShape& plane = kPlane) {
  auto choice = CodecChoice::create(name, best_isa(), plane);
  EXPECT_TRUE(choice.ok()) << choice.status().message();
  return std::move(*choice);
}
const Codec& codec(std::string_view name) { return **find_codec(name); }

// As if planes had gone through at that speed and ratio.
void pretend(CodecChoice& choice, std::string_view name, double bytes_per_second, double ratio) {
  const auto bytes = static_cast<double>(kPlane.bytes());
  for (int i = 0; i < 300; ++i) {
    choice.learn(codec(name), kPlane, static_cast<std::size_t>(bytes / ratio),
                 Seconds(bytes / bytes_per_second));
  }
}

TEST(CodecChoice, AFixedCodecIsTakenWhateverTheLink) {
  const auto choice = make("splitzip");
  EXPECT_FALSE(choice->watches_links());
  EXPECT_EQ(choice->for_transfer({}).name(), "splitzip");
  EXPECT_EQ(choice->for_slab(codec("splitzip"), {}).name(), "splitzip");
  EXPECT_EQ(choice->for_slab(codec("splitzip"), LinkSpeed{1e12, false}).name(), "splitzip");
  EXPECT_EQ(choice->due(codec("splitzip"), SteadyClock::now()), nullptr);
}

TEST(CodecChoice, UnknownNamesAreRefused) {
  EXPECT_EQ(CodecChoice::create("zip", best_isa(), kPlane).status().code(), Code::kUnsupported);
}

TEST(CodecChoice, TheTestAtTheStartMeasuresAllCodecs) {
  const auto choice = make("auto");
  EXPECT_TRUE(choice->watches_links());
  const auto splitzip = choice->pace("splitzip");
  ASSERT_TRUE(splitzip.has_value());
  EXPECT_GT(splitzip->ratio, 1.2);
  EXPECT_GT(splitzip->encode, 1e6);
  EXPECT_GT(splitzip->decode, 1e6);
  ASSERT_TRUE(choice->pace("none").has_value());
  EXPECT_NEAR(choice->pace("none")->ratio, 1, 0.01);
  EXPECT_FALSE(choice->pace("zip").has_value());
}

TEST(CodecChoice, SlowLinksGetTheCodecAndFastAndUnknownOnesDoNot) {
  const auto choice = make("auto");
  pretend(*choice, "none", 20e9, 1);
  // Slower than any machine copies planes, as far as its clock can tell.
  pretend(*choice, "splitzip", 5e6, 1.33);
  const Codec& named = choice->for_transfer(kSlow);
  EXPECT_NE(named.name(), "none");
  EXPECT_EQ(choice->for_slab(codec("splitzip"), kSlow).name(), "splitzip");
  EXPECT_EQ(choice->for_slab(codec("splitzip"), LinkSpeed{50e9, false}).name(), "none");
  EXPECT_EQ(choice->for_slab(codec("splitzip"), {}).name(), "none") << "nobody waits for it";
  EXPECT_EQ(choice->for_slab(codec("none"), kSlow).name(), "none");
  // It can still turn out to be slow.
  EXPECT_NE(choice->for_transfer({}).name(), "none");
  EXPECT_NE(choice->for_transfer(LinkSpeed{50e9, false}).name(), "none");
}

TEST(CodecChoice, FollowsWhatIsMeasured) {
  const auto choice = make("auto");
  pretend(*choice, "splitzip", 5e9, 1.33);
  ASSERT_EQ(choice->for_slab(codec("splitzip"), kSlow).name(), "splitzip");
  pretend(*choice, "splitzip", 5e9, 1.01);
  EXPECT_EQ(choice->for_slab(codec("splitzip"), kSlow).name(), "none") << "does not shrink";
  pretend(*choice, "splitzip", 0.5e6, 1.33);
  EXPECT_EQ(choice->for_slab(codec("splitzip"), kSlow).name(), "none") << "too slow";
  EXPECT_NEAR(choice->pace("splitzip")->encode, 0.5e6, 0.05e6);
  EXPECT_NEAR(choice->pace("splitzip")->ratio, 1.33, 0.01);
}

TEST(CodecChoice, PlanesThatNoCodecShrinksAreSentAsTheyAre) {
  const auto choice = make("auto", {ElementType::kFp16, 2, 64, 64});
  EXPECT_EQ(choice->for_transfer(kSlow).name(), "none");
}

// Counting a codebook is rare in use; it does not make the codec look slow.
TEST(CodecChoice, EncodingsAreTimedWithACodebook) {
  std::vector<std::byte> plane(kPlane.bytes(), std::byte{0x3F});
  std::vector<std::byte> coded(codec("splitzip").bound(kPlane));
  std::vector<std::byte> counted(coded.size());
  const TimedEncoding encoding =
      time_encoding(codec("splitzip"), kPlane, dense_plane(kPlane, plane.data()), coded);
  EXPECT_EQ(encoding.bytes, codec("splitzip").encode(kPlane, plane, nullptr, counted));
  EXPECT_EQ(coded, counted);
  EXPECT_GT(encoding.time, Seconds(0));
  EXPECT_EQ(time_encoding(codec("none"), kPlane, dense_plane(kPlane, plane.data()), coded).bytes,
            kPlane.bytes());
}

TEST(CodecChoice, TrialsTakeTurnsAndLittleTime) {
  const auto choice = make("auto");
  TimePoint now = SteadyClock::now();
  const Codec* const tried = choice->due(codec("none"), now);
  ASSERT_NE(tried, nullptr);
  EXPECT_NE(tried->name(), "none") << "that one is in use";
  choice->learn_trial(*tried, kPlane, kPlane.bytes(), Seconds(0.0002), now, now + 1ms);
  now += 191ms;  // a millisecond is 0.5 % of 200
  EXPECT_EQ(choice->due(codec("none"), now), nullptr);
  now += 20ms;
  EXPECT_NE(choice->due(codec("none"), now), nullptr);
}

TEST(CodecChoice, TheBoundIsThatOfTheLongest) {
  EXPECT_EQ(make("none")->bound(kPlane), codec("none").bound(kPlane));
  EXPECT_GE(make("auto")->bound(kPlane), codec("splitzip").bound(kPlane));
}

}  // namespace
}  // namespace kvlane
