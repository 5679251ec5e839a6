// Answers go on after their questions, whatever a tokenizer does at the beginning of a text.
// SPDX-License-Identifier: Apache-2.0
#include "eval/answer_tokens.h"

#include <gtest/gtest.h>

#include <string>

#include "eval/eval_fixture.h"
#include "model/tokenizer_fixture.h"

namespace kvlane {
namespace {

TEST(AnswerTokens, AreThoseOfOneText) {
  const std::string question = "What is the pass key? The pass key is";
  for (const char* const name : {"llama2", "llama3", "mistral", "qwen2"}) {
    const Tokenizer tokenizer = take(parse_tokenizer_fixture(name));
    const auto before = take(tokenizer.encode(question, false));
    auto both = before;
    const auto answer = take(answer_tokens(tokenizer, question, "83125"));
    both.insert(both.end(), answer.begin(), answer.end());
    EXPECT_EQ(both, take(tokenizer.encode(question + " 83125", false))) << name;
    EXPECT_EQ(tokenizer.decode(both), question + " 83125") << name;
  }
}

TEST(AnswerTokens, StandAloneWhereATokenIsShared) {
  const Tokenizer& tokenizer = eval_fixture::tokenizer();
  // Two blanks are one token, of which neither question nor answer has a half.
  const auto answer = take(answer_tokens(tokenizer, "The key is ", "7"));
  EXPECT_EQ(tokenizer.decode(answer), " 7");
}

}  // namespace
}  // namespace kvlane
