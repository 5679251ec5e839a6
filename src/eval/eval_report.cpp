// The forms of a report that people and programs read line by line.
// SPDX-License-Identifier: Apache-2.0
#include "eval/eval_report.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

namespace kvlane {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson number(double value) {
  return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr);
}

std::string digits(double value) {
  std::ostringstream text;
  text << std::setprecision(10) << value;
  return text.str();
}

// Four digits that count, as a person reads them.
std::string brief(double value) {
  std::ostringstream text;
  text << std::setprecision(4) << value;
  return text.str();
}

// As few as RFC 4180 asks for.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

std::vector<std::string> distinct(const EvalReport& report, std::string Measure::*member,
                                  const std::string& task) {
  std::vector<std::string> values;
  for (const Measure& measure : report.measures) {
    if (!task.empty() && measure.task != task) continue;
    if (std::ranges::find(values, measure.*member) == values.end()) {
      values.push_back(measure.*member);
    }
  }
  return values;
}

std::string cell(const EvalReport& report, const std::string& task, const std::string& format,
                 const std::string& metric) {
  for (const Measure& measure : report.measures) {
    if (measure.task != task || measure.format != format || measure.metric != metric) continue;
    std::string text = brief(measure.value.value);
    if (std::isfinite(measure.value.low)) {
      text += " [" + brief(measure.value.low) + ", " + brief(measure.value.high) + "]";
    }
    return text;
  }
  return "-";
}

// Columns as wide as their widest cell.
std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::ostringstream text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      text << (i > 0 ? "  " : "") << row[i];
      if (i + 1 < row.size()) text << std::string(widths[i] - row[i].size(), ' ');
    }
    text << '\n';
  }
  return text.str();
}

}  // namespace

std::string eval_json(const EvalReport& report) {
  OrderedJson json = {
      {"machine", report.machine}, {"commit", report.commit}, {"command", report.command}};
  for (const EvalFact& fact : report.facts) json["facts"][fact.name] = fact.value;
  json["measures"] = OrderedJson::array();
  for (const Measure& measure : report.measures) {
    json["measures"].push_back({{"task", measure.task},
                                {"format", measure.format},
                                {"metric", measure.metric},
                                {"value", number(measure.value.value)},
                                {"low", number(measure.value.low)},
                                {"high", number(measure.value.high)},
                                {"unit", measure.unit}});
  }
  json["curves"] = OrderedJson::array();
  for (const Curve& curve : report.curves) {
    json["curves"].push_back({{"task", curve.task},
                              {"format", curve.format},
                              {"name", curve.name},
                              {"x", curve.x},
                              {"y", curve.y}});
  }
  json["not_measured"] = report.not_measured;
  return json.dump();
}

std::string eval_csv(const EvalReport& report) {
  std::string text = "task,format,metric,value,low,high,unit\n";
  const auto field = [](double value) { return std::isfinite(value) ? digits(value) : ""; };
  for (const Measure& measure : report.measures) {
    text += csv_field(measure.task) + ',' + csv_field(measure.format) + ',' +
            csv_field(measure.metric) + ',' + field(measure.value.value) + ',' +
            field(measure.value.low) + ',' + field(measure.value.high) + ',' +
            csv_field(measure.unit) + '\n';
  }
  return text;
}

std::vector<ReportTable> report_tables(const EvalReport& report) {
  std::vector<ReportTable> tables;
  for (const std::string& task : distinct(report, &Measure::task, "")) {
    const auto metrics = distinct(report, &Measure::metric, task);
    std::vector<std::vector<std::string>> rows = {{task}};
    rows[0].insert(rows[0].end(), metrics.begin(), metrics.end());
    for (const std::string& format : distinct(report, &Measure::format, task)) {
      rows.push_back({format});
      for (const std::string& metric : metrics) {
        rows.back().push_back(cell(report, task, format, metric));
      }
    }
    tables.push_back({task, std::move(rows)});
  }
  return tables;
}

std::string eval_table(const EvalReport& report) {
  std::string text;
  for (const ReportTable& table : report_tables(report)) text += aligned(table.rows) + '\n';
  for (const std::string& sentence : report.not_measured)
    text += "not measured: " + sentence + "\n";
  return text;
}

}  // namespace kvlane
