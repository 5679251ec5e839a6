// The page: whole, self-contained, and safe whatever names hold.
// SPDX-License-Identifier: Apache-2.0
#include "eval/eval_page.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "eval/eval_fixture.h"
#include "eval/page_resources.h"

namespace kvlane {
namespace {

using eval_fixture::count_of;
using eval_fixture::kNone;

const std::string kEvil = "</script><script>alert(1)</script> & \"'<b>";

EvalReport evil_report() {
  return {.machine = kEvil,
          .commit = "c",
          .command = "kvlane eval",
          .facts = {{kEvil, kEvil}},
          .measures = {{"text", "bf16", "perplexity", {31.25, 30.5, 32}, ""},
                       {kEvil, kEvil, kEvil, {3, kNone, kNone}, kEvil}},
          .curves = {{"layers", kEvil, "k", {0, 1}, {0.5, 0.25}}},
          .not_measured = {kEvil}};
}

std::string between(const std::string& page, const std::string& open, const std::string& close) {
  const std::size_t from = page.find(open);
  EXPECT_NE(from, std::string::npos);
  const std::size_t to = page.find(close, from);
  EXPECT_NE(to, std::string::npos);
  return page.substr(from + open.size(), to - from - open.size());
}

TEST(EvalPage, HoldsTheReportAsData) {
  const std::string page = eval_page(evil_report());
  const std::string data =
      between(page, "<script type=\"application/json\" id=\"data\">", "</script>");
  EXPECT_EQ(nlohmann::json::parse(data), nlohmann::json::parse(eval_json(evil_report())));
  EXPECT_NE(page.find("<td>31.25 [30.5, 32]</td>"), std::string::npos);
}

TEST(EvalPage, EscapesWhatNamesHold) {
  const std::string page = eval_page(evil_report());
  EXPECT_EQ(page.find("alert(1)</script>"), std::string::npos);
  EXPECT_EQ(page.find("<b>"), std::string::npos);
  EXPECT_EQ(count_of(page, "<script"), 3);
  EXPECT_EQ(count_of(page, "</script>"), 3);
  EXPECT_NE(
      page.find("&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;&#39;&lt;b&gt;"),
      std::string::npos);
}

TEST(EvalPage, NeedsNothingElse) {
  const std::string page = eval_page(evil_report());
  EXPECT_NE(page.find("Permission is hereby granted"), std::string::npos);
  EXPECT_NE(kChartScript.find("Chart.js v3."), std::string_view::npos);
  EXPECT_NE(page.find(kChartScript), std::string::npos);
  EXPECT_NE(page.find(kPageScript), std::string::npos);
  for (const char* const outside :
       {"<link", "<img", "<iframe", " src=", " href=", "@import", "fetch(", "XMLHttpRequest"}) {
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  }
}

}  // namespace
}  // namespace kvlane
