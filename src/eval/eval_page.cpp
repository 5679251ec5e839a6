// Puts the page together.
// SPDX-License-Identifier: Apache-2.0
#include "eval/eval_page.h"

#include <string_view>

#include "eval/page_resources.h"

namespace kvlane {
namespace {

// Chart.js asks that this goes with every copy of it.
constexpr std::string_view kChartLicence =
    R"(<!--
This page holds a copy of Chart.js 3 (https://www.chartjs.org) with @kurkle/color:

The MIT License (MIT)
Copyright (c) 2014-2022 Chart.js Contributors
Copyright (c) 2018-2021 Jukka Kurkela (@kurkle/color)

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and
associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial
portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES
OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
-->
)";

// For text between tags and inside of quoted attributes.
std::string escaped(std::string_view text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '&': html += "&amp;"; break;
      case '<': html += "&lt;"; break;
      case '>': html += "&gt;"; break;
      case '"': html += "&quot;"; break;
      case '\'': html += "&#39;"; break;
      default: html += c;
    }
  }
  return html;
}

// JSON inside of a script element: nothing in it may look like a tag.
std::string escaped_json(std::string_view json) {
  std::string text;
  for (const char c : json) {
    switch (c) {
      case '<': text += "\\u003c"; break;
      case '>': text += "\\u003e"; break;
      case '&': text += "\\u0026"; break;
      default: text += c;
    }
  }
  return text;
}

std::string element(std::string_view name, std::string_view text) {
  const std::string tag(name);
  return "<" + tag + ">" + escaped(text) + "</" + tag + ">";
}

std::string facts_html(const EvalReport& report) {
  std::string html = "<table class=\"facts\">\n";
  const auto add = [&](const std::string& name, const std::string& value) {
    html += "<tr>" + element("th", name) + element("td", value) + "</tr>\n";
  };
  add("command", report.command);
  add("machine", report.machine);
  add("commit", report.commit);
  for (const EvalFact& fact : report.facts) add(fact.name, fact.value);
  return html + "</table>\n";
}

std::string table_html(const ReportTable& table) {
  std::string html = "<table class=\"measures\">\n";
  for (std::size_t row = 0; row < table.rows.size(); ++row) {
    html += "<tr>";
    for (std::size_t column = 0; column < table.rows[row].size(); ++column) {
      html += element(row == 0 || column == 0 ? "th" : "td", table.rows[row][column]);
    }
    html += "</tr>\n";
  }
  return html + "</table>\n";
}

std::string not_measured_html(const EvalReport& report) {
  if (report.not_measured.empty()) return "";
  std::string html = "<h2>Not measured</h2>\n<ul>\n";
  for (const std::string& sentence : report.not_measured) html += element("li", sentence) + "\n";
  return html + "</ul>\n";
}

}  // namespace

std::string eval_page(const EvalReport& report) {
  std::string html = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  html += kChartLicence;
  html += "<title>kvlane eval</title>\n<style>\n";
  html += kPageStyle;
  html += "</style>\n</head>\n<body>\n<h1>What KV formats cost in quality</h1>\n";
  html += facts_html(report);
  // Where the script puts plots; without it the tables say everything.
  html += "<div id=\"plots\"></div>\n<h2>Tables</h2>\n";
  html += "<p>In brackets: 95 % intervals.</p>\n";
  for (const ReportTable& table : report_tables(report)) html += table_html(table);
  html += not_measured_html(report);
  html += "<script type=\"application/json\" id=\"data\">" + escaped_json(eval_json(report));
  html += "</script>\n<script>\n";
  html += kChartScript;
  html += "</script>\n<script>\n";
  html += kPageScript;
  html += "</script>\n</body>\n</html>\n";
  return html;
}

}  // namespace kvlane
