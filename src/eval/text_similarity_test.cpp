// Similarities against values by hand and a plain recursive definition.
// SPDX-License-Identifier: Apache-2.0
#include "eval/text_similarity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/random.h"

namespace kvlane {
namespace {

TEST(TextSimilarity, Rouge1CountsWordsThatBothHave) {
  EXPECT_EQ(rouge1_f("", ""), 1);
  EXPECT_EQ(rouge1_f(" .", "!"), 1);
  EXPECT_EQ(rouge1_f("a", ""), 0);
  EXPECT_EQ(rouge1_f("The cat sat.", "the CAT, sat"), 1);
  // 3 of 4 and of 6 words: 2 * 3 / 10.
  EXPECT_DOUBLE_EQ(rouge1_f("the cat the dog", "the cat sat on the mat"), 0.6);
  // A word counts as often as both have it.
  EXPECT_DOUBLE_EQ(rouge1_f("a a a", "a"), 0.5);
  EXPECT_EQ(rouge1_f("Brücke", "brücke"), 1);
  EXPECT_EQ(rouge1_f("Brücke", "Brucke"), 0);
}

TEST(TextSimilarity, EditDistanceByHand) {
  EXPECT_EQ(edit_similarity("", ""), 1);
  EXPECT_EQ(edit_similarity("abc", ""), 0);
  EXPECT_DOUBLE_EQ(edit_similarity("kitten", "sitting"), 1 - 3.0 / 7);
  EXPECT_DOUBLE_EQ(edit_similarity("flaw", "lawn"), 0.5);
  EXPECT_DOUBLE_EQ(edit_similarity("Brücke", "Brucke"), 1 - 1.0 / 6) << "characters, not bytes";
}

// The definition, word for word.
int distance(const std::string& a, const std::string& b,
             std::map<std::pair<std::size_t, std::size_t>, int>& known) {
  if (a.empty() || b.empty()) return static_cast<int>(a.size() + b.size());
  const auto key = std::pair(a.size(), b.size());
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const std::string shorter_a = a.substr(1);
  const std::string shorter_b = b.substr(1);
  const int result =
      a[0] == b[0] ? distance(shorter_a, shorter_b, known)
                   : 1 + std::min({distance(shorter_a, b, known), distance(a, shorter_b, known),
                                   distance(shorter_a, shorter_b, known)});
  return known[key] = result;
}

TEST(TextSimilarity, EditDistanceEqualsItsDefinition) {
  for (std::uint32_t trial = 0; trial < 300; ++trial) {
    std::string texts[2];
    for (std::uint32_t side = 0; side < 2; ++side) {
      const auto words = philox4x32(5, {trial, side, 0, 0});
      for (std::uint32_t i = 0; i < words[0] % 13; ++i) {
        texts[side] += static_cast<char>('a' + philox4x32(6, {trial, side, i, 0})[0] % 3);
      }
    }
    std::map<std::pair<std::size_t, std::size_t>, int> known;
    const std::size_t longer = std::max(texts[0].size(), texts[1].size());
    const double expected =
        longer == 0 ? 1 : 1 - distance(texts[0], texts[1], known) / static_cast<double>(longer);
    EXPECT_DOUBLE_EQ(edit_similarity(texts[0], texts[1]), expected) << texts[0] << " " << texts[1];
  }
}

}  // namespace
}  // namespace kvlane
