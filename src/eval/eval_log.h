// What an evaluation has measured so far, on disk: a run that was interrupted goes on where it
// stopped.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "kvlane/status.h"

namespace kvlane {

// A file of JSON lines: what was evaluated, then one measured piece a line. Thread-compatible.
class EvalLog {
 public:
  // Opens or makes the file. `subject` says everything that figures depend on (model, text,
  // options, program); a file of another subject is refused. A last line that an interruption cut
  // is dropped.
  static Result<EvalLog> open(const std::filesystem::path& file, const std::string& subject);
  // Keeps nothing.
  EvalLog() = default;

  // What was measured under this key, exactly as it was added.
  std::optional<std::vector<double>> find(const std::string& key) const;
  Status add(const std::string& key, std::span<const double> values);
  // Those that are there, else what `measure` gives, which is added.
  Result<std::vector<double>> find_or_add(
      const std::string& key, const std::function<Result<std::vector<double>>()>& measure);

 private:
  std::map<std::string, std::vector<double>> values_;
  Descriptor file_;
  std::filesystem::path path_;
};

}  // namespace kvlane
