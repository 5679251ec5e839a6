// Windows of a text.
// SPDX-License-Identifier: Apache-2.0
#include "eval/windows.h"

#include <gtest/gtest.h>

namespace kvlane {
namespace {

TEST(Windows, ScoreEveryTokenOnceWithTheTextBeforeIt) {
  for (const std::size_t text : {2U, 10U, 100U, 101U, 1000U}) {
    for (const int context : {2, 7, 64, 2048}) {
      for (const int stride : {1, (context + 1) / 2, context - 1}) {
        std::vector<int> scored(text);
        for (const Window& window : make_windows(text, context, stride)) {
          ASSERT_LE(window.first + window.tokens, text);
          ASSERT_LE(window.tokens, context);
          ASSERT_GT(window.scored, 0);
          ASSERT_LT(window.scored, window.tokens);
          for (int i = window.tokens - window.scored; i < window.tokens; ++i) {
            ++scored[window.first + i];
            // Later windows have what overlaps.
            ASSERT_GE(i, window.first > 0 ? context - stride : 1);
          }
        }
        EXPECT_EQ(scored[0], 0);
        for (std::size_t i = 1; i < text; ++i) {
          ASSERT_EQ(scored[i], 1) << text << " " << context << " " << stride << " " << i;
        }
      }
    }
  }
}

TEST(Windows, WithoutOverlapLoseTheFirstTokenOfEach) {
  const auto windows = make_windows(25, 10, 10);
  ASSERT_EQ(windows.size(), 3U);
  EXPECT_EQ(windows[1].first, 10U);
  EXPECT_EQ(windows[1].scored, 9);
  EXPECT_EQ(windows[2].tokens, 5);
  EXPECT_EQ(windows[2].scored, 4);
}

TEST(Windows, OfNextToNothingAreNone) {
  EXPECT_TRUE(make_windows(0, 10, 10).empty());
  EXPECT_TRUE(make_windows(1, 10, 10).empty());
  // A last window of one token predicts nothing.
  EXPECT_EQ(make_windows(11, 10, 10).size(), 1U);
}

}  // namespace
}  // namespace kvlane
