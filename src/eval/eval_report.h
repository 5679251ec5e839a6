// What an evaluation found, in the one form that JSON, CSV, tables and pages are made from.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "eval/bootstrap.h"

namespace kvlane {

// One figure of one format.
struct Measure {
  std::string task;    // "text", "passkey", ...
  std::string format;  // canonical name; "bf16" is the reference
  std::string metric;  // "perplexity", "divergence", ...: docs/eval.md lists them
  Interval value;      // low and high are NaN where there is no interval
  std::string unit;
};

// One line of a plot.
struct Curve {
  std::string task;    // "layers", "histogram", "spectrum", ...
  std::string format;  // "bf16" where it is about the model
  std::string name;    // "k, layer 3, head 1"
  std::vector<double> x;
  std::vector<double> y;
};

// A fact that a reader needs to run it again: "text" -> "wikitext-2-test.txt, sha256 ...".
struct EvalFact {
  std::string name;
  std::string value;
};

struct EvalReport {
  std::string machine;
  std::string commit;
  std::string command;
  std::vector<EvalFact> facts;
  std::vector<Measure> measures;
  std::vector<Curve> curves;
  std::vector<std::string> not_measured;  // sentences
};

// One object with everything.
std::string eval_json(const EvalReport& report);
// task,format,metric,value,low,high,unit: the measures, a line each under one of names.
std::string eval_csv(const EvalReport& report);

// The measures of one task, formats down, metrics across, as a person reads them: the first row
// names the metrics, the first column the formats.
struct ReportTable {
  std::string task;
  std::vector<std::vector<std::string>> rows;
};
std::vector<ReportTable> report_tables(const EvalReport& report);

// These tables and what was not measured, for a terminal.
std::string eval_table(const EvalReport& report);

}  // namespace kvlane
