// Figures as JSON and as a table.
// SPDX-License-Identifier: Apache-2.0
#include "bench/figures.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/commit.h"

namespace kvlane {
namespace {

// Four significant digits: more is noise on shared machines.
std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", value);
  return text;
}

std::string padded(std::string text, std::size_t width, bool right) {
  const std::size_t missing = text.size() < width ? width - text.size() : 0;
  return right ? std::string(missing, ' ') + text : text + std::string(missing, ' ');
}

}  // namespace

std::optional<double> Figure::ratio() const {
  if (!baseline || *baseline == 0) return std::nullopt;
  return value / *baseline;
}

std::optional<bool> Figure::met() const {
  if (!goal) return std::nullopt;
  return better == Better::kHigher ? value >= *goal : value <= *goal;
}

std::string report_json(const Report& report) {
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const Figure& figure : report.results) {
    nlohmann::ordered_json entry = {
        {"name", figure.name}, {"value", figure.value}, {"unit", figure.unit}};
    if (figure.baseline) entry["baseline"] = *figure.baseline;
    if (figure.ratio()) entry["ratio"] = *figure.ratio();
    if (figure.goal) entry["goal"] = *figure.goal;
    if (figure.met()) entry["met"] = *figure.met();
    results.push_back(std::move(entry));
  }
  const nlohmann::ordered_json whole = {{"machine", report.machine},
                                        {"commit", report.commit},
                                        {"command", report.command},
                                        {"results", std::move(results)}};
  return whole.dump(2);
}

std::string report_table(const Report& report) {
  std::vector<std::vector<std::string>> rows = {
      {"figure", "value", "unit", "baseline", "ratio", "goal", "met"}};
  for (const Figure& figure : report.results) {
    const auto number = [](const std::optional<double>& value) {
      return value ? short_number(*value) : std::string();
    };
    const std::string sign = figure.better == Figure::Better::kHigher ? ">= " : "<= ";
    rows.push_back({figure.name, short_number(figure.value), figure.unit, number(figure.baseline),
                    number(figure.ratio()), figure.goal ? sign + number(figure.goal) : "",
                    figure.met() ? (*figure.met() ? "yes" : "no") : ""});
  }
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text = "machine: " + report.machine + "\ncommit:  " + report.commit +
                     "\ncommand: " + report.command + "\n\n";
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool right = i == 1 || (i >= 3 && i <= 5);
      line += padded(row[i], widths[i], right) + "  ";
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string describe_machine(int threads) {
  std::string processor = "unknown processor";
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    processor = line.substr(line.find(':') + 2);
    break;
  }
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const double gib =
      static_cast<double>(pages) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 0x1p30;
  return processor + ", " + std::to_string(threads) + " of " +
         std::to_string(::sysconf(_SC_NPROCESSORS_ONLN)) + " cores, " + short_number(gib) + " GiB";
}

std::string build_commit() { return KVLANE_COMMIT; }

}  // namespace kvlane
