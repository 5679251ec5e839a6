// What is found again, and what has to go.
// SPDX-License-Identifier: Apache-2.0
#include "sim/prefix_cache.h"

#include <gtest/gtest.h>

namespace kvlane {
namespace {

using Names = std::vector<std::uint64_t>;

TEST(PrefixCache, NamesOutliveTheirOwners) {
  PrefixCache cache(4);
  cache.take(3);
  EXPECT_TRUE(cache.publish(1));
  EXPECT_TRUE(cache.publish(2));
  EXPECT_EQ(cache.available(), 1);
  cache.give_back(Names{1, 2}, 1);
  EXPECT_EQ(cache.taken(), 0);
  EXPECT_EQ(cache.peak(), 3);
  EXPECT_EQ(cache.known(Names{1, 2, 3}), 2);
  EXPECT_EQ(cache.known(Names{3, 1}), 0) << "a prefix begins at the first block";
  EXPECT_EQ(cache.unowned(Names{1, 2}), 2);
  cache.hold(Names{1, 2});
  EXPECT_EQ(cache.taken(), 2);
}

TEST(PrefixCache, SharedBlocksCountOnce) {
  PrefixCache cache(4);
  cache.take(1);
  cache.publish(1);
  cache.hold(Names{1});
  EXPECT_EQ(cache.taken(), 1);
  EXPECT_EQ(cache.unowned(Names{1}), 0);
  cache.give_back(Names{1}, 0);
  EXPECT_EQ(cache.taken(), 1);
  cache.give_back(Names{1}, 0);
  EXPECT_EQ(cache.taken(), 0);
}

TEST(PrefixCache, TheSecondOfANameStaysWithout) {
  PrefixCache cache(4);
  cache.take(2);
  EXPECT_TRUE(cache.publish(1));
  EXPECT_FALSE(cache.publish(1));
  EXPECT_EQ(cache.taken(), 2);
}

TEST(PrefixCache, TheLongestUnusedGoesFirstAndEndsBeforeBeginnings) {
  PrefixCache cache(4);
  cache.take(2);
  cache.publish(1);
  cache.publish(2);
  cache.give_back(Names{1, 2}, 0);
  cache.take(2);
  cache.publish(5);
  cache.give_back(Names{5}, 1);
  EXPECT_EQ(cache.known(Names{1, 2}), 2);
  cache.take(2);
  EXPECT_EQ(cache.known(Names{1, 2}), 1) << "one had to go: the end of the older prompt";
  EXPECT_EQ(cache.known(Names{5}), 1);
  cache.take(1);
  EXPECT_EQ(cache.known(Names{1}), 0);
  EXPECT_EQ(cache.known(Names{5}), 1);
  cache.take(1);
  EXPECT_EQ(cache.known(Names{5}), 0);
  EXPECT_EQ(cache.available(), 0);
}

}  // namespace
}  // namespace kvlane
