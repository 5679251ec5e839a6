// Prompts: as long as asked for, the needle where it was asked for, the same every time.
// SPDX-License-Identifier: Apache-2.0
#include "eval/needle_prompt.h"

#include <gtest/gtest.h>

#include <cmath>

#include "eval/eval_fixture.h"

namespace kvlane {
namespace {

using eval_fixture::count_of;
using eval_fixture::tokenizer;

std::string text_of(const NeedlePrompt& prompt) { return tokenizer().decode(prompt.tokens); }

TEST(NeedlePrompt, HasTheCommonWording) {
  const auto prompts = take(NeedlePrompts::create(tokenizer(), {}));
  const NeedlePrompt prompt = take(prompts.make({NeedleForm::kPasskey, 256, 0.5, 1, 0}, 1));
  const std::string text = text_of(prompt);
  EXPECT_EQ(prompt.value.size(), 5U);
  EXPECT_NE(text.find("\nThe pass key is " + prompt.value + ". Remember it. " + prompt.value +
                      " is the pass key.\n"),
            std::string::npos)
      << text;
  EXPECT_TRUE(text.ends_with("\nWhat is the pass key? The pass key is")) << text;
  EXPECT_TRUE(text.starts_with("There is an important info hidden")) << text;
  EXPECT_EQ(tokenizer().decode(prompt.answer), " " + prompt.value);
  EXPECT_GT(count_of(text, "The grass is green. The sky is blue."), 2);
}

TEST(NeedlePrompt, IsAsLongAsAskedForAndTheNeedleAtItsDepth) {
  const auto repeated = take(NeedlePrompts::create(tokenizer(), {}));
  const auto text = take(NeedlePrompts::create(tokenizer(), eval_fixture::text_tokens()));
  for (const NeedlePrompts* const prompts : {&repeated, &text}) {
    for (const NeedleForm form : {NeedleForm::kPasskey, NeedleForm::kCities}) {
      for (const int length : {256, 500, 1000, 4096}) {
        for (const double depth : {0.0, 0.25, 0.5, 0.75, 1.0}) {
          const NeedlePrompt prompt = take(prompts->make({form, length, depth, 3, 0}, 7));
          const int tokens = static_cast<int>(prompt.tokens.size() + prompt.answer.size());
          EXPECT_LE(tokens, length);
          EXPECT_GE(tokens, length - 12);
          // Introduction, question and other needles are no filler; then cuts, within a twentieth.
          const int off = static_cast<int>(std::abs(prompt.needle_at - depth * length));
          EXPECT_LE(off, 120 + length / 20) << length << " " << depth;
        }
      }
    }
  }
}

TEST(NeedlePrompt, TheFirstIsAtTheBeginningAndTheLastAtTheEnd) {
  const auto prompts = take(NeedlePrompts::create(tokenizer(), {}));
  const std::string first = text_of(take(prompts.make({NeedleForm::kPasskey, 300, 0, 1, 0}, 1)));
  EXPECT_NE(first.find("important information there.\nThe pass key is"), std::string::npos)
      << first;
  const std::string last = text_of(take(prompts.make({NeedleForm::kPasskey, 300, 1, 1, 0}, 1)));
  EXPECT_NE(last.find("is the pass key.\nWhat is the pass key?"), std::string::npos) << last;
}

TEST(NeedlePrompt, OfSeveralNeedlesAsksForOneThatIsThereOnce) {
  const auto prompts = take(NeedlePrompts::create(tokenizer(), {}));
  const NeedlePrompt prompt = take(prompts.make({NeedleForm::kCities, 600, 0.5, 8, 0}, 3));
  const std::string text = text_of(prompt);
  EXPECT_EQ(count_of(text, "\nThe special magic number for "), 8);
  EXPECT_EQ(count_of(text, prompt.value), 1);
  const std::size_t question = text.find("\nWhat is the special magic number for ");
  ASSERT_NE(question, std::string::npos);
  const std::size_t name = question + std::string("\nWhat is the special magic number for ").size();
  const std::string city = text.substr(name, text.find('?') - name);
  EXPECT_EQ(count_of(text, "special magic number for " + city + " is " + prompt.value + "."), 1);
  EXPECT_TRUE(text.ends_with("? The special magic number for " + city + " is")) << text;
  const std::span<const std::int32_t> from(prompt.tokens.begin() + prompt.needle_at,
                                           prompt.tokens.end());
  EXPECT_TRUE(tokenizer().decode(from).starts_with("\nThe special magic number for " + city));
}

TEST(NeedlePrompt, DependsOnPlaceAndSeedAlone) {
  const auto prompts = take(NeedlePrompts::create(tokenizer(), eval_fixture::text_tokens()));
  const NeedlePlace place{NeedleForm::kCities, 500, 0.25, 4, 2};
  const NeedlePrompt prompt = take(prompts.make(place, 5));
  EXPECT_EQ(prompt.tokens, take(prompts.make(place, 5)).tokens);
  EXPECT_NE(prompt.tokens, take(prompts.make(place, 6)).tokens);
  NeedlePlace other = place;
  other.trial = 3;
  EXPECT_NE(prompt.value, take(prompts.make(other, 5)).value);
}

TEST(NeedlePrompt, RefusesLengthsThatHoldNoNeedle) {
  const auto prompts = take(NeedlePrompts::create(tokenizer(), {}));
  const auto refused = prompts.make({NeedleForm::kPasskey, 40, 0, 1, 0}, 1);
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvlane
