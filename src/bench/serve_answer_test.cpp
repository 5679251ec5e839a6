// Streams of several servers, cut anywhere, and streams that are none.
// SPDX-License-Identifier: Apache-2.0
#include "bench/serve_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvlane {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kStream =
    "data: {\"choices\": [{\"index\": 0, \"text\": \"one \", \"token_ids\": [11]}]}\n\n"
    "data: {\"choices\": [{\"text\": \"two three \", \"token_ids\": [12, 13]}]}\n\n"
    "data: {\"choices\": [{\"text\": \"\", \"finish_reason\": \"length\"}]}\n\n"
    "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 5, \"completion_tokens\": 3, "
    "\"prompt_tokens_details\": {\"cached_tokens\": 4}}, \"kvlane\": {\"account\": {\"queue\": "
    "0.5, "
    "\"decode\": 1.5}}}\n\n"
    "data: [DONE]\n\n";

TEST(AnswerReader, ReadsAWholeStream) {
  AnswerReader reader(true, true);
  ASSERT_TRUE(reader.add(kStream, 2.5).ok());
  ASSERT_TRUE(reader.finish().ok());
  const Answer& answer = reader.answer();
  EXPECT_THAT(answer.times, ElementsAre(2.5, 2.5));
  EXPECT_THAT(answer.counts, ElementsAre(1, 2));
  EXPECT_EQ(answer.text, "one two three ");
  EXPECT_THAT(answer.ids, ElementsAre(11, 12, 13));
  EXPECT_EQ(answer.prompt_tokens, 5);
  EXPECT_EQ(answer.output_tokens(), 3);
  EXPECT_EQ(answer.cached_tokens, 4);
  ASSERT_TRUE(answer.account.has_value());
  EXPECT_EQ(answer.account->total(), 2);
}

TEST(AnswerReader, DoesNotMindWhereAStreamIsCut) {
  for (std::size_t cut = 0; cut <= kStream.size(); ++cut) {
    AnswerReader reader(true, true);
    ASSERT_TRUE(reader.add(kStream.substr(0, cut), 1).ok());
    ASSERT_TRUE(reader.add(kStream.substr(cut), 2).ok());
    ASSERT_TRUE(reader.finish().ok());
    EXPECT_EQ(reader.answer().text, "one two three ");
    EXPECT_EQ(reader.answer().times.size(), 2u);
  }
}

TEST(AnswerReader, EventsCountFromWhenTheyWereWhole) {
  AnswerReader reader(false, false);
  const std::size_t end = kStream.find("\n\n") + 1;
  ASSERT_TRUE(reader.add(kStream.substr(0, end - 1), 1).ok());
  ASSERT_TRUE(reader.add(kStream.substr(end - 1), 2).ok());
  EXPECT_THAT(reader.answer().times, ElementsAre(2, 2));
  EXPECT_THAT(reader.answer().text, IsEmpty()) << "not asked for";
  EXPECT_THAT(reader.answer().ids, IsEmpty());
}

TEST(AnswerReader, ReadsAChatOfAnotherServer) {
  AnswerReader reader(true, false);
  const std::string stream =
      ": comment\r\nevent: x\r\n"
      "data:{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n"
      "data:{\"choices\":[{\"delta\":{\"reasoning_content\":\"hm \"}}],\"usage\":null}\r\n\r\n"
      "data:{\"choices\":[{\"delta\":{\"content\":\"yes\"},\"finish_reason\":\"stop\"}]}\r\n\r\n";
  ASSERT_TRUE(reader.add(stream, 1).ok());
  EXPECT_TRUE(reader.finish().ok()) << "a finish reason ends an answer, with or without [DONE]";
  EXPECT_EQ(reader.answer().text, "hm yes");
  EXPECT_EQ(reader.answer().prompt_tokens, -1);
  EXPECT_EQ(reader.answer().output_tokens(), 2) << "events, where the server does not count";
}

TEST(AnswerReader, TellsWhatIsWrong) {
  const struct {
    const char* stream;
    Code code;
    const char* message;
  } cases[] = {
      {"data: {\"error\": {\"message\": \"no room\"}}\n", Code::kUnavailable, "no room"},
      {"data: {\"error\": \"no\"}\n", Code::kUnavailable, "no"},
      {"data: {\n", Code::kCorrupt, "an event is not valid JSON"},
  };
  for (const auto& wrong : cases) {
    AnswerReader reader(false, false);
    const Status status = reader.add(wrong.stream, 0);
    EXPECT_EQ(status.code(), wrong.code);
    EXPECT_THAT(status.message(), HasSubstr(wrong.message));
  }
}

TEST(AnswerReader, MistrustsTypes) {
  AnswerReader reader(true, true);
  const std::string stream =
      "data: 5\n"
      "data: {\"choices\": 5}\n"
      "data: {\"choices\": [5]}\n"
      "data: {\"choices\": [{\"text\": 5, \"token_ids\": \"x\", \"delta\": []}]}\n"
      "data: {\"choices\": [{\"text\": \"a\", \"token_ids\": [-1, \"b\", 7]}], \"kvlane\": []}\n"
      "data: {\"usage\": {\"prompt_tokens\": -5, \"completion_tokens\": 1e30}, \"kvlane\": 1}\n"
      "data: [DONE]\n";
  ASSERT_TRUE(reader.add(stream, 0).ok());
  ASSERT_TRUE(reader.finish().ok());
  EXPECT_THAT(reader.answer().ids, ElementsAre(7));
  EXPECT_EQ(reader.answer().prompt_tokens, -1);
  EXPECT_EQ(reader.answer().completion_tokens, -1);
  EXPECT_FALSE(reader.answer().account.has_value());
}

TEST(AnswerReader, KnowsWhenAnAnswerIsNotOver) {
  AnswerReader cut(false, false);
  ASSERT_TRUE(cut.add("data: {\"choices\": [{\"text\": \"a\"}]}\n", 0).ok());
  EXPECT_EQ(cut.finish().code(), Code::kUnavailable);
  AnswerReader empty(false, false);
  ASSERT_TRUE(empty.add("data: [DONE]\n", 0).ok());
  EXPECT_EQ(empty.finish().code(), Code::kCorrupt);
}

TEST(AnswerReader, GivesUpOnALineWithoutEnd) {
  AnswerReader reader(false, false);
  const std::string megabyte(1 << 20, 'x');
  Status status;
  std::size_t added = 0;
  while (status.ok() && added < 2 * kAnswerLineBytesMax) {
    status = reader.add(megabyte, 0);
    added += megabyte.size();
  }
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_GT(added, kAnswerLineBytesMax);
}

}  // namespace
}  // namespace kvlane
