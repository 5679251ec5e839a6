// The one form in which every benchmark reports: docs/bench.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace kvlane {

struct Figure {
  enum class Better { kHigher, kLower };

  std::string name;  // stable, listed in docs/bench.md
  double value = 0;
  std::string unit;
  std::optional<double> baseline;  // what `value` is compared with, measured in the same run
  std::optional<double> goal;
  Better better = Better::kHigher;  // than the goal
  std::vector<double> runs;         // of which `value` is the median, where they are told

  std::optional<double> ratio() const;
  std::optional<bool> met() const;
};

struct Report {
  std::string machine;
  std::string commit;
  std::string command;
  std::vector<Figure> results;
};

std::string report_json(const Report& report);
std::string report_table(const Report& report);

// The middle value; `values` is not empty. Of an even number, the mean of the two in the middle.
double median(std::vector<double> values);

// Processor, cores in use and memory of this machine, in words.
std::string describe_machine(int threads);

// The commit this program was built from, with "-dirty" when the tree had changes; "unknown"
// outside of a git checkout.
std::string build_commit();

}  // namespace kvlane
