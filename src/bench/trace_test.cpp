// Traces as they are published, and every way in which a line can be wrong.
// SPDX-License-Identifier: Apache-2.0
#include "bench/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/temporary_directory.h"

namespace kvlane {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kMooncake =
    R"({"timestamp": 3000, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]})"
    "\n"
    R"({"timestamp": 4500, "input_length": 512, "output_length": 0, "hash_ids": [46]})"
    "\r\n\n"
    R"({"timestamp": 4500, "input_length": 100, "output_length": 7, "further": true})";

constexpr const char* kAzure =
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 23:59:59.5000000,374,44\r\n"
    "2023-11-17 00:00:01.2500000,396,109";

TEST(MooncakeTrace, IsRead) {
  const Result<Trace> trace = parse_mooncake_trace(kMooncake);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_TRUE(trace->has_times);
  ASSERT_EQ(trace->requests.size(), 3u);
  const std::vector<TraceRequest>& requests = trace->requests;
  EXPECT_EQ(requests[0].time, 0);
  EXPECT_EQ(requests[1].time, 1.5);
  EXPECT_EQ(requests[0].input_tokens, 600);
  EXPECT_EQ(requests[0].output_tokens, 52);
  EXPECT_THAT(requests[0].blocks, ElementsAre(46, 47));
  EXPECT_EQ(requests[1].output_tokens, 1) << "an answer has a token";
  EXPECT_THAT(requests[2].blocks, IsEmpty());
}

TEST(MooncakeTrace, BadLinesAreNamed) {
  const struct {
    const char* line;
    const char* message;
  } cases[] = {
      {"{", "line 2: not valid JSON"},
      {"[]", "line 2: is not a JSON object"},
      {R"({"input_length": 1, "output_length": 1})", "line 2: timestamp is missing"},
      {R"({"timestamp": "0", "input_length": 1, "output_length": 1})", "milliseconds from 0"},
      {R"({"timestamp": -1, "input_length": 1, "output_length": 1})", "not '-1'"},
      {R"({"timestamp": 0, "output_length": 1})", "line 2: input_length is missing"},
      {R"({"timestamp": 0, "input_length": 1.5, "output_length": 1})", "not '1.5'"},
      {R"({"timestamp": 0, "input_length": -1, "output_length": 1})", "not '-1'"},
      {R"({"timestamp": 0, "input_length": 16777217, "output_length": 1})", "to 16777216, not"},
      {R"({"timestamp": 0, "input_length": 1})", "line 2: output_length is missing"},
      {R"({"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]})",
       "at least 2 ids"},
      {R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": 1})", "an array"},
      {R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]})",
       "hash_ids contains '\"a\"'"},
  };
  for (const auto& wrong : cases) {
    const std::string text =
        std::string(R"({"timestamp": 0, "input_length": 1, "output_length": 1})") + "\n" +
        wrong.line + "\n";
    const Result<Trace> trace = parse_mooncake_trace(text);
    ASSERT_FALSE(trace.ok()) << wrong.line;
    EXPECT_EQ(trace.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(trace.status().message(), HasSubstr(wrong.message));
    EXPECT_THAT(trace.status().message(), HasSubstr("line 2"));
  }
}

TEST(CsvTrace, OfAzureIsReadAcrossMidnight) {
  const Result<Trace> trace = parse_csv_trace(kAzure);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_TRUE(trace->has_times);
  ASSERT_EQ(trace->requests.size(), 2u);
  EXPECT_EQ(trace->requests[0].time, 0);
  EXPECT_NEAR(trace->requests[1].time, 1.75, 1e-6);
  EXPECT_EQ(trace->requests[1].input_tokens, 396);
  EXPECT_EQ(trace->requests[1].output_tokens, 109);
}

TEST(CsvTrace, OfVidurIsReadWithAndWithoutTimes) {
  const Result<Trace> lengths =
      parse_csv_trace("num_prefill_tokens,num_decode_tokens,num_total_tokens\n3772,54,3826\n");
  ASSERT_TRUE(lengths.ok()) << lengths.status().message();
  EXPECT_FALSE(lengths->has_times);
  EXPECT_EQ(lengths->requests[0].input_tokens, 3772);
  const Result<Trace> timed = parse_csv_trace(
      "\xEF\xBB\xBF"
      "arrived_at,num_prefill_tokens,num_decode_tokens\n2.5,30,4\n1.0,10,2\n");
  ASSERT_TRUE(timed.ok()) << timed.status().message();
  EXPECT_TRUE(timed->has_times);
  ASSERT_EQ(timed->requests.size(), 2u);
  EXPECT_EQ(timed->requests[0].input_tokens, 10) << "sorted by time";
  EXPECT_EQ(timed->requests[1].time, 1.5);
}

TEST(CsvTrace, BadTextIsNamed) {
  const std::string header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
  const std::string good = "2023-11-16 18:15:46.68,374,44\n";
  const struct {
    std::string text;
    const char* message;
  } cases[] = {
      {"", "the trace is empty"},
      {header, "no requests"},
      {"a,b,c\n1,2,3\n", "line 1: the header must name ContextTokens"},
      {header + good + "2023-11-16 18:15:46.68,374\n", "line 3: has 2 fields, the header 3"},
      {header + "2023-11-16 18:15:46.68,374,44,5\n", "line 2: has 4 fields"},
      {header + "yesterday,374,44\n", "line 2: TIMESTAMP must look like"},
      {header + "2023-02-30 18:15:46.68,374,44\n", "not '2023-02-30 18:15:46.68'"},
      {header + "2023-11-16 24:15:46.68,374,44\n", "TIMESTAMP"},
      {header + "2023-11-16 18:15:46.68x,374,44\n", "TIMESTAMP"},
      {header + "2023-11-16 18:15:46.68,-3,44\n", "ContextTokens must be an integer"},
      {header + "2023-11-16 18:15:46.68,3,\n", "GeneratedTokens must be an integer"},
      {header + "2023-11-16 18:15:46.68,3,99999999999\n", "not '99999999999'"},
      {"arrived_at,num_prefill_tokens,num_decode_tokens\nnan,1,1\n", "line 2: arrived_at"},
  };
  for (const auto& wrong : cases) {
    const Result<Trace> trace = parse_csv_trace(wrong.text);
    ASSERT_FALSE(trace.ok()) << wrong.text;
    EXPECT_EQ(trace.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(trace.status().message(), HasSubstr(wrong.message)) << wrong.text;
  }
}

TEST(ReadTrace, TellsTheFormsApartAndNamesTheFile) {
  const TemporaryDirectory folder;
  const auto write = [&folder](const char* name, const char* text) {
    std::ofstream(folder.path() / name) << text;
    return folder.path() / name;
  };
  const Result<Trace> mooncake = read_trace(write("a", kMooncake));
  ASSERT_TRUE(mooncake.ok());
  EXPECT_EQ(mooncake->requests.size(), 3u);
  const Result<Trace> azure = read_trace(write("b", kAzure));
  ASSERT_TRUE(azure.ok());
  EXPECT_EQ(azure->requests.size(), 2u);
  EXPECT_THAT(read_trace(write("broken.csv", "x")).status().message(), HasSubstr("broken.csv"));
  EXPECT_EQ(read_trace(folder.path() / "none").status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace kvlane
