// The written forms of a report.
// SPDX-License-Identifier: Apache-2.0
#include "eval/eval_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "eval/eval_fixture.h"

namespace kvlane {
namespace {

using eval_fixture::kNone;

EvalReport report() {
  return {.machine = "m",
          .commit = "c",
          .command = "kvlane eval",
          .facts = {{"text", "a \"book\""}},
          .measures = {{"text", "bf16", "perplexity", {31.25, 30.5, 32}, ""},
                       {"text", "kivi:bits=2,group=32", "perplexity", {33, 32, 34}, ""},
                       {"text", "kivi:bits=2,group=32", "bits", {3, kNone, kNone}, "bit/value"},
                       {"passkey", "bf16", "found", {0.5, 0.25, 0.75}, "share"}},
          .curves = {{"layers", "bf16", "k", {0, 1}, {0.5, 0.25}}},
          .not_measured = {"GSM8K"}};
}

TEST(EvalReport, JsonHoldsEverything) {
  const auto json = nlohmann::json::parse(eval_json(report()));
  EXPECT_EQ(json["facts"]["text"], "a \"book\"");
  EXPECT_EQ(json["measures"].size(), 4U);
  EXPECT_EQ(json["measures"][1]["format"], "kivi:bits=2,group=32");
  EXPECT_EQ(json["measures"][0]["value"], 31.25);
  EXPECT_TRUE(json["measures"][2]["low"].is_null());
  EXPECT_EQ(json["curves"][0]["y"][1], 0.25);
  EXPECT_EQ(json["not_measured"][0], "GSM8K");
}

TEST(EvalReport, CsvQuotesWhatItMust) {
  EXPECT_EQ(eval_csv(report()),
            "task,format,metric,value,low,high,unit\n"
            "text,bf16,perplexity,31.25,30.5,32,\n"
            "text,\"kivi:bits=2,group=32\",perplexity,33,32,34,\n"
            "text,\"kivi:bits=2,group=32\",bits,3,,,bit/value\n"
            "passkey,bf16,found,0.5,0.25,0.75,share\n");
}

TEST(EvalReport, TablesPutFormatsDownAndMetricsAcross) {
  EXPECT_EQ(eval_table(report()),
            "text                  perplexity        bits\n"
            "bf16                  31.25 [30.5, 32]  -\n"
            "kivi:bits=2,group=32  33 [32, 34]       3\n"
            "\n"
            "passkey  found\n"
            "bf16     0.5 [0.25, 0.75]\n"
            "\n"
            "not measured: GSM8K\n");
}

}  // namespace
}  // namespace kvlane
