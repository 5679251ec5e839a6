// Fields of config.json, read one by one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvlane/status.h"

namespace kvlane {

// Text from the file, for errors. Long text is only measured: cutting it could split a character.
std::string in_quotes(const std::string& text);

// Reads fields of one JSON object. The first error sticks: check status() once, after the last
// field. An absent field and a null are the same.
class FieldReader {
 public:
  using Json = nlohmann::json;

  // `object` must outlive the reader; `prefix` goes before names in errors ("rope_scaling.").
  explicit FieldReader(const Json& object, std::string prefix = "");

  const Status& status() const { return status_; }

  // Keeps `status` unless there is an error already; success changes nothing.
  void fail(Status status);

  // The field, or nullptr.
  const Json* find(const char* name) const;
  // Whether it is there at all, be it null.
  bool has(const char* name) const;

  int integer(const char* name, int min, int max, std::optional<int> fallback = std::nullopt);
  // A finite number above zero.
  double positive(const char* name, std::optional<double> fallback = std::nullopt);
  // Finite numbers above zero, `count` of them.
  std::vector<double> positives(const char* name, std::size_t count);
  bool flag(const char* name, bool fallback);
  std::string text(const char* name, const char* fallback);

 private:
  template <class T>
  T absent(const char* name, const std::optional<T>& fallback, T otherwise);
  template <class T>
  T wrong_kind(const char* name, const std::string& wanted, T otherwise);

  const Json& object_;
  std::string prefix_;
  Status status_;
};

}  // namespace kvlane
