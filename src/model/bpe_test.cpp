// Byte-pair encoding against its definition, on random merges, and the tables under it.
// SPDX-License-Identifier: Apache-2.0
#include "model/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "model/literal_set.h"

namespace kvlane {
namespace {

using ::testing::ElementsAre;
using Ids = std::vector<std::int32_t>;

struct BpeModel {
  Vocabulary vocabulary;
  std::vector<Bpe::Merge> merges;

  BpeModel() {
    for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  }
  std::int32_t add(const std::string& bytes) {
    const std::int32_t id = vocabulary.size();
    EXPECT_TRUE(vocabulary.add(id, bytes, true).ok());
    return id;
  }
  // Merges two tokens into one, new or not.
  void merge(std::int32_t left, std::int32_t right) {
    const std::string bytes(std::string(vocabulary.bytes(left)) +
                            std::string(vocabulary.bytes(right)));
    const std::int32_t known = vocabulary.find(bytes);
    merges.push_back({left, right, known >= 0 ? known : add(bytes)});
  }
};

Ids encode(const Bpe& bpe, std::string_view word) {
  Bpe::Scratch scratch;
  Ids ids;
  bpe.encode(word, scratch, ids);
  return ids;
}

// As the paper has it: merge the pair of lowest rank, the leftmost one, until none is left.
Ids encode_by_definition(const BpeModel& model, std::string_view word) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> ranks;
  for (std::size_t rank = 0; rank < model.merges.size(); ++rank) {
    ranks[{model.merges[rank].left, model.merges[rank].right}] = rank;
  }
  Ids ids;
  for (const char c : word) ids.push_back(static_cast<unsigned char>(c));
  while (true) {
    std::size_t best_rank = model.merges.size();
    std::size_t best_at = 0;
    for (std::size_t at = 0; at + 1 < ids.size(); ++at) {
      const auto found = ranks.find({ids[at], ids[at + 1]});
      if (found == ranks.end() || found->second >= best_rank) continue;
      best_rank = found->second;
      best_at = at;
    }
    if (best_rank == model.merges.size()) return ids;
    ids[best_at] = model.merges[best_rank].merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

TEST(BpeTest, EqualsItsDefinition) {
  for (std::uint32_t round = 0; round < 60; ++round) {
    BpeModel model;
    // Few letters and many merges in random order: pairs compete, overlap, and reach one token in
    // several ways; some come twice.
    std::uint32_t counter = 0;
    const auto random = [&](std::uint32_t below) {
      return philox4x32(11, {round, counter++, 0, 0})[0] % below;
    };
    const auto pick = [&] {
      const auto made = static_cast<std::uint32_t>(model.vocabulary.size()) - 256;
      const std::uint32_t choice = random(4 + made);
      return static_cast<std::int32_t>(choice < 4 ? 'a' + choice : 256 + choice - 4);
    };
    for (int merge = 0; merge < 60; ++merge) {
      const std::int32_t left = pick();
      model.merge(left, pick());
    }
    const Result<Bpe> bpe = Bpe::create(model.vocabulary, model.merges, {});
    ASSERT_TRUE(bpe.ok()) << bpe.status().message();
    for (int trial = 0; trial < 60; ++trial) {
      std::string word;
      for (std::uint32_t left = random(80); left > 0; --left)
        word += static_cast<char>('a' + random(4));
      EXPECT_EQ(encode(*bpe, word), encode_by_definition(model, word)) << word;
    }
  }
}

TEST(BpeTest, WholeWordsFirst) {
  BpeModel model;
  const std::int32_t word = model.add("word");
  const Result<Bpe> merging = Bpe::create(model.vocabulary, {}, {});
  const Result<Bpe> whole = Bpe::create(model.vocabulary, {}, {.whole_words_first = true});
  ASSERT_TRUE(merging.ok() && whole.ok());
  EXPECT_THAT(encode(*merging, "word"), ElementsAre('w', 'o', 'r', 'd'));
  EXPECT_THAT(encode(*whole, "word"), ElementsAre(word));
  EXPECT_THAT(encode(*whole, "wor"), ElementsAre('w', 'o', 'r'));
  EXPECT_THAT(encode(*whole, ""), ElementsAre());
}

TEST(BpeTest, NeedsATokenForEachByte) {
  Vocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    ASSERT_TRUE(vocabulary.add(byte, std::string(1, static_cast<char>(byte)), byte != 7).ok());
  }
  const Result<Bpe> bpe = Bpe::create(vocabulary, {}, {});
  ASSERT_FALSE(bpe.ok());
  EXPECT_EQ(bpe.status().code(), Code::kUnsupported);
  EXPECT_EQ(bpe.status().message(),
            "the vocabulary has no token for the byte 7, so it is not byte-level");
}

TEST(VocabularyTest, FindsWhatWasAdded) {
  Vocabulary vocabulary;
  EXPECT_EQ(vocabulary.find("a"), -1);
  for (std::int32_t id = 0; id < 5000; ++id) {
    ASSERT_TRUE(vocabulary.add(3 * id, "token " + std::to_string(id), id % 5 != 0).ok());
  }
  EXPECT_EQ(vocabulary.size(), 3 * 4999 + 1);
  for (std::int32_t id = 0; id < 5000; ++id) {
    const std::string bytes = "token " + std::to_string(id);
    EXPECT_EQ(vocabulary.bytes(3 * id), bytes);
    EXPECT_EQ(vocabulary.find(bytes), id % 5 != 0 ? 3 * id : -1);
    EXPECT_FALSE(vocabulary.contains(3 * id + 1));
    EXPECT_EQ(vocabulary.bytes(3 * id + 1), "");
  }
  EXPECT_EQ(vocabulary.add(3, "again", true).code(), Code::kCorrupt);
  EXPECT_EQ(vocabulary.add(-1, "x", true).code(), Code::kCorrupt);
  EXPECT_EQ(vocabulary.add(kTokenIdsMax, "x", true).code(), Code::kCorrupt);
  // Of two tokens with the same bytes the first is found.
  EXPECT_TRUE(vocabulary.add(1, "token 1", true).ok());
  EXPECT_EQ(vocabulary.find("token 1"), 3);
}

TEST(LiteralSetTest, FindsTheLongestPrefix) {
  const LiteralSet set({{"<a>", 1}, {"<", 2}, {"<a>b", 3}, {"\xC3\xA9", 4}, {"<ab", 5}});
  const auto value = [&](std::string_view text) {
    const auto match = set.longest_prefix(text);
    return match ? std::pair(match->value, match->bytes) : std::pair(-1, std::size_t{0});
  };
  EXPECT_EQ(value("<a>bc"), std::pair(3, std::size_t{4}));
  EXPECT_EQ(value("<a>"), std::pair(1, std::size_t{3}));
  EXPECT_EQ(value("<a"), std::pair(2, std::size_t{1}));
  EXPECT_EQ(value("<abc"), std::pair(5, std::size_t{3}));
  EXPECT_EQ(value("<\xFF"), std::pair(2, std::size_t{1}));
  EXPECT_EQ(value("\xC3\xA9"), std::pair(4, std::size_t{2}));
  EXPECT_EQ(value("\xC3"), std::pair(-1, std::size_t{0}));
  EXPECT_EQ(value("a<"), std::pair(-1, std::size_t{0}));
  EXPECT_EQ(value(""), std::pair(-1, std::size_t{0}));
  EXPECT_TRUE(LiteralSet({}).empty());
  EXPECT_EQ(LiteralSet({}).longest_prefix("x"), std::nullopt);
}

}  // namespace
}  // namespace kvlane
