// Figures as JSON and as a table.
// SPDX-License-Identifier: Apache-2.0
#include "bench/figures.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "bench/commit.h"

namespace kvlane {
namespace {

// Four significant digits: more is noise on shared machines.
std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", value);
  return text;
}

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

std::string json_string(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    // Control characters: command lines may have line breaks.
    if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(c));
      quoted += escaped;
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
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

// By hand, as kvlane_gpu_bench is built where there is no JSON library.
std::string report_json(const Report& report) {
  std::string results;
  for (const Figure& figure : report.results) {
    results += results.empty() ? "\n" : ",\n";
    results += "    {\"name\": " + json_string(figure.name) +
               ", \"value\": " + json_number(figure.value) +
               ", \"unit\": " + json_string(figure.unit);
    const auto add = [&results](const char* name, const std::optional<double>& value) {
      if (value) results += std::string(", \"") + name + "\": " + json_number(*value);
    };
    add("baseline", figure.baseline);
    add("ratio", figure.ratio());
    add("goal", figure.goal);
    if (figure.met()) results += *figure.met() ? ", \"met\": true" : ", \"met\": false";
    std::string runs;
    for (const double run : figure.runs) runs += (runs.empty() ? "" : ", ") + json_number(run);
    if (!runs.empty()) results += ", \"runs\": [" + runs + "]";
    results += "}";
  }
  return "{\n  \"machine\": " + json_string(report.machine) +
         ",\n  \"commit\": " + json_string(report.commit) +
         ",\n  \"command\": " + json_string(report.command) + ",\n  \"results\": [" + results +
         "\n  ]\n}";
}

std::string report_table(const Report& report) {
  std::vector<std::vector<std::string>> rows = {
      {"figure", "value", "unit", "baseline", "ratio", "goal", "met", ""}};
  for (const Figure& figure : report.results) {
    const auto number = [](const std::optional<double>& value) {
      return value ? short_number(*value) : std::string();
    };
    const std::string sign = figure.better == Figure::Better::kHigher ? ">= " : "<= ";
    rows.push_back({figure.name, short_number(figure.value), figure.unit, number(figure.baseline),
                    number(figure.ratio()), figure.goal ? sign + number(figure.goal) : "",
                    figure.met() ? (*figure.met() ? "yes" : "no") : "", ""});
    for (const double run : figure.runs) rows.back().back() += short_number(run) + " ";
    if (!figure.runs.empty()) rows[0].back() = "runs";
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
