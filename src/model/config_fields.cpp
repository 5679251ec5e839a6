// Reading fields, and saying what is wrong with them.
// SPDX-License-Identifier: Apache-2.0
#include "model/config_fields.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace kvlane {

std::string in_quotes(const std::string& text) {
  constexpr std::size_t kShown = 64;
  return text.size() > kShown ? "a text of " + std::to_string(text.size()) + " bytes"
                              : "\"" + text + "\"";
}

FieldReader::FieldReader(const Json& object, std::string prefix)
    : object_(object), prefix_(std::move(prefix)) {}

void FieldReader::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

const FieldReader::Json* FieldReader::find(const char* name) const {
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

bool FieldReader::has(const char* name) const { return object_.contains(name); }

int FieldReader::integer(const char* name, int min, int max, std::optional<int> fallback) {
  const Json* field = find(name);
  if (field == nullptr) return absent(name, fallback, min);
  if (!field->is_number_integer()) return wrong_kind(name, "a whole number", min);
  // A float can be a whole number too big for 64 bits; an unsigned one can wrap when read as
  // signed.
  const double value = field->get<double>();
  if (value < min || value > max) {
    fail(invalid_argument(prefix_ + name + " is " + field->dump() + "; kvlane takes " +
                          std::to_string(min) + " to " + std::to_string(max)));
    return min;
  }
  return field->get<int>();
}

double FieldReader::positive(const char* name, std::optional<double> fallback) {
  const Json* field = find(name);
  if (field == nullptr) return absent(name, fallback, 1.0);
  if (!field->is_number()) return wrong_kind(name, "a number", 1.0);
  const double value = field->get<double>();
  if (!std::isfinite(value) || value <= 0) {
    fail(invalid_argument(prefix_ + name + " is " + field->dump() + ", which is not above zero"));
    return 1.0;
  }
  return value;
}

std::vector<double> FieldReader::positives(const char* name, std::size_t count) {
  const Json* field = find(name);
  std::vector<double> values(count, 1.0);
  if (field == nullptr || !field->is_array() || field->size() != count) {
    return wrong_kind(name, "a list of " + std::to_string(count) + " numbers", values);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const Json& element = (*field)[i];
    values[i] = element.is_number() ? element.get<double>() : 0;
    if (!std::isfinite(values[i]) || values[i] <= 0) {
      return wrong_kind(name, "a list of numbers above zero", values);
    }
  }
  return values;
}

bool FieldReader::flag(const char* name, bool fallback) {
  const Json* field = find(name);
  if (field == nullptr) return fallback;
  if (!field->is_boolean()) return wrong_kind(name, "true or false", fallback);
  return field->get<bool>();
}

std::string FieldReader::text(const char* name, const char* fallback) {
  const Json* field = find(name);
  if (field == nullptr) return fallback;
  if (!field->is_string()) return wrong_kind(name, "a string", std::string(fallback));
  return field->get<std::string>();
}

template <class T>
T FieldReader::absent(const char* name, const std::optional<T>& fallback, T otherwise) {
  if (!fallback) fail(invalid_argument("it has no " + prefix_ + name));
  return fallback.value_or(otherwise);
}

template <class T>
T FieldReader::wrong_kind(const char* name, const std::string& wanted, T otherwise) {
  fail(invalid_argument(prefix_ + name + " is not " + wanted));
  return otherwise;
}

}  // namespace kvlane
