// Split rules: what is translated, what is refused, and texts that make regular expressions give
// up.
// SPDX-License-Identifier: Apache-2.0
#include "model/split_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/pattern_dialect.h"
#include "model/pretokenizer.h"

namespace kvlane {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Pieces = std::vector<std::string>;

constexpr const char* kLlama3Rule =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

Pieces split(std::string_view pattern, std::string_view text) {
  const Result<SplitRule> rule = SplitRule::compile(pattern);
  EXPECT_TRUE(rule.ok()) << rule.status().message();
  Pieces pieces;
  if (!rule.ok()) return pieces;
  const Status status = rule->split(text, [&](std::string_view piece) {
    pieces.emplace_back(piece);
    return Status();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return pieces;
}

TEST(SplitRuleTest, GivesMatchesAndGaps) {
  EXPECT_THAT(split("[0-9]+", "ab12c3"), ElementsAre("ab", "12", "c", "3"));
  EXPECT_THAT(split("x", "abc"), ElementsAre("abc"));
  EXPECT_THAT(split("x", ""), ElementsAre());
  EXPECT_THAT(split(kByteLevelRule, "I've  2 caf\u00e9s!"),
              ElementsAre("I", "'ve", " ", " 2", " caf\u00e9s", "!"));
  EXPECT_THAT(split(kLlama3Rule, "I'VE 12345\n\n x"),
              ElementsAre("I", "'VE", " ", "123", "45", "\n\n", " x"));
}

// Where PCRE2 and Oniguruma would differ.
TEST(SplitRuleTest, SpeaksTheDialectOfThePackage) {
  EXPECT_THAT(split(R"(\s+)", "a\u180eb"),
              ElementsAre("a\u180eb"));  // no white space since Unicode 6.3
  EXPECT_THAT(split(R"(\s+)", "a\u0085\u3000b"), ElementsAre("a", "\u0085\u3000", "b"));
  EXPECT_THAT(split(R"(\S+)", "\u180e \u0085"), ElementsAre("\u180e", " \u0085"));
  EXPECT_THAT(split(R"(\p{L}+)", "a\U00031350b"), ElementsAre("a\U00031350b"));  // Unicode 15
  EXPECT_THAT(split(R"(\P{L}+)", "1\U00031350"), ElementsAre("1", "\U00031350"));
  EXPECT_THAT(split(R"([^\p{L}]+)", "1\U00031350"), ElementsAre("1", "\U00031350"));
  EXPECT_THAT(split(R"(\d+)", "\U00010d40\u0663x"), ElementsAre("\U00010d40\u0663", "x"));
  EXPECT_THAT(split("(?i:'s)", "'S'\u017f"), ElementsAre("'S", "'\u017f"));
  EXPECT_THAT(split(R"(\v)", "a\vb\nc"), ElementsAre("a", "\v", "b\nc"));  // PCRE2: any line break
  EXPECT_THAT(split("a.", "a\nab"), ElementsAre("a\n", "ab"));
  EXPECT_THAT(split("(a|b)c", "acbc"), ElementsAre("ac", "bc"));
  EXPECT_THAT(split("#| x", "a# x"), ElementsAre("a", "#", " x"));
  EXPECT_THAT(split("[\u4e00-\u9fa5]+", "a\u4f60\u597db"), ElementsAre("a", "\u4f60\u597d", "b"));
}

struct PatternRefusal {
  const char* pattern;
  const char* words;
};

TEST(SplitRuleTest, RefusesWhatMightDiffer) {
  const PatternRefusal refusals[] = {
      {R"(\w+)", "the escape '\\w' at offset 0"},
      {R"(a\b)", "the escape '\\b' at offset 1"},
      {R"(\h)", "the escape '\\h'"},
      {R"((a)\1)", "the escape '\\1'"},
      {R"(\x41)", "the escape '\\x'"},
      {"^a", "the anchor '^'"},
      {"a$", "the anchor '$'"},
      {"(?i)a", "the group '(?i'"},
      {"(?<n>a)", "the group '(?<'"},
      {"(*ACCEPT)a", "the group '(*A'"},
      {"(?i:\u00e9)", "something else than plain letters"},
      {"(?i:a+)", "something else than plain letters"},
      {"(?i:mass)", "'ss' in '(?i:'"},
      {"(?i:FI)", "'fi' in '(?i:'"},
      {"[[:alpha:]]", "a class inside a class"},
      {"[a&&b]", "an intersection of classes"},
      {"[]a]", "a class that begins with ']'"},
      {R"([\S])", "a negated escape inside a class"},
      {R"([\s-x])", "a range that begins with a class"},
      {"[a-", "a class that is not closed"},
      {"[a", "a class that is not closed"},
      {"(a", "a group that is not closed"},
      {"a)", "a ')' without a group"},
      {"a**", "a quantifier with nothing to repeat"},
      {"+a", "a quantifier with nothing to repeat"},
      {"a{2}+", "a quantifier with nothing to repeat"},
      {"(?!a)*b", "a quantifier with nothing to repeat"},
      {"a{,3}", "the repetition '{,3}'"},
      {"a{3,2}", "the repetition '{3,2}'"},
      {"a{99999}", "the repetition '{99999}'"},
      {"a{", "a bare '{'"},
      {R"(\p{Han})", "the property 'Han'"},
      {R"(\p{^L})", "the property '^L'"},
      {R"(\pL)", "a property without a name in braces"},
      {"a*", "matches the empty text"},
      {"a|", "matches the empty text"},
      {"", "matches the empty text"},
      {"(?<=a+)b", "does not compile"},
      {"a\\", "a '\\' at its end"},
  };
  for (const PatternRefusal& refusal : refusals) {
    const Result<SplitRule> rule = SplitRule::compile(refusal.pattern);
    ASSERT_FALSE(rule.ok()) << refusal.pattern;
    EXPECT_EQ(rule.status().code(), Code::kUnsupported) << refusal.pattern;
    EXPECT_THAT(rule.status().message(), HasSubstr(refusal.words)) << refusal.pattern;
  }
  EXPECT_FALSE(SplitRule::compile(std::string(kPatternBytesMax + 1, 'a')).ok());
  EXPECT_FALSE(SplitRule::compile(std::string(100, '(') + "a" + std::string(100, ')')).ok());
}

// With PCRE2's own limit, 20 MB of spaces are an error; matched badly, they are quadratic.
TEST(SplitRuleTest, LongRunsOfWhiteSpace) {
  const std::string spaces(20'000'000, ' ');
  for (const std::string_view pattern : {std::string_view(kLlama3Rule), kByteLevelRule}) {
    EXPECT_EQ(split(pattern, spaces).size(), 1U);
    const Pieces before_word = split(pattern, spaces + "x");
    ASSERT_EQ(before_word.size(), 2U);
    EXPECT_EQ(before_word.back(), " x");
  }
}

TEST(SplitRuleTest, ExplodingPatternsAreAnError) {
  const Result<SplitRule> rule = SplitRule::compile("(?:a+a+)+[bc]");
  ASSERT_TRUE(rule.ok()) << rule.status().message();
  const Status status =
      rule->split(std::string(5000, 'a'), [](std::string_view) { return Status(); });
  EXPECT_EQ(status.code(), Code::kExhausted) << status.message();
}

TEST(SplitRuleTest, TheSinkCanStop) {
  const Result<SplitRule> rule = SplitRule::compile("[0-9]");
  ASSERT_TRUE(rule.ok());
  int pieces = 0;
  const Status status = rule->split(
      "1234", [&](std::string_view) { return ++pieces == 2 ? aborted("enough") : Status(); });
  EXPECT_EQ(status.code(), Code::kAborted);
  EXPECT_EQ(pieces, 2);
}

TEST(PretokenizerTest, RulesRunOneInsideTheOther) {
  std::vector<Pretokenizer::Step> steps;
  for (const char* pattern : {"[0-9]+", "[a-c]"}) {
    Result<SplitRule> rule = SplitRule::compile(pattern);
    ASSERT_TRUE(rule.ok());
    steps.emplace_back(Pretokenizer::Split{std::move(*rule)});
  }
  steps.insert(steps.begin() + 1, Pretokenizer::PrefixSpace());
  const Pretokenizer pretokenizer(std::move(steps));
  Pieces words;
  const Status status = pretokenizer.split("xay12 b", true, [&](std::string_view word) {
    words.emplace_back(word);
    return Status();
  });
  ASSERT_TRUE(status.ok());
  EXPECT_THAT(words, ElementsAre(" x", "a", "y", " 12", " ", "b"));
}

}  // namespace
}  // namespace kvlane
