// Errors as values: every call of kvlane that can fail returns Status or Result<T>.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvlane {

// What went wrong, in the terms a caller can act on. The server maps each code to one HTTP status.
enum class Code {
  kOk,
  kInvalidArgument,  // the caller's input is wrong: do not retry unchanged
  kNotFound,         // a file, model, transfer or peer with that name does not exist
  kCorrupt,          // bytes failed a check: truncated, bad magic, bad checksum, out of range
  kUnsupported,      // valid, but kvlane does not do it
  kExhausted,        // a stated limit is reached: retry later or raise the limit
  kUnavailable,      // a peer is not there or went away: retry elsewhere
  kTimeout,          // a deadline passed
  kAborted,          // the caller or the peer gave up
  kInternal,         // a bug of kvlane
};

// The stable lower-case name of a code ("invalid_argument"), as logs and metrics print it.
std::string_view code_name(Code code);

// A code and one clear sentence for a person. Success carries no message and allocates nothing.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {
    assert(code != Code::kOk);
  }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same error with `context` and ": " before its message.
  Status with_context(std::string_view context) const {
    return ok() ? *this : Status(code_, std::string(context) + ": " + message_);
  }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// One constructor per code, so that call sites read as a sentence.
inline Status invalid_argument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
inline Status not_found(std::string m) { return {Code::kNotFound, std::move(m)}; }
inline Status corrupt(std::string m) { return {Code::kCorrupt, std::move(m)}; }
inline Status unsupported(std::string m) { return {Code::kUnsupported, std::move(m)}; }
inline Status exhausted(std::string m) { return {Code::kExhausted, std::move(m)}; }
inline Status unavailable(std::string m) { return {Code::kUnavailable, std::move(m)}; }
inline Status timed_out(std::string m) { return {Code::kTimeout, std::move(m)}; }
inline Status aborted(std::string m) { return {Code::kAborted, std::move(m)}; }
inline Status internal_error(std::string m) { return {Code::kInternal, std::move(m)}; }

// Either a value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                                  // NOLINT: implicit
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }  // NOLINT: implicit

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // Precondition of the four accessors: ok().
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace kvlane

#define KVLANE_CONCAT_(a, b) a##b
#define KVLANE_CONCAT(a, b) KVLANE_CONCAT_(a, b)

// Returns from the enclosing function when `expression` (a Status) is an error.
#define KVLANE_TRY(expression)                                                \
  do {                                                                        \
    if (::kvlane::Status kvlane_status_ = (expression); !kvlane_status_.ok()) \
      return kvlane_status_;                                                  \
  } while (false)

// Declares or assigns `target` from a Result, or returns its Status.
#define KVLANE_ASSIGN(target, expression) \
  KVLANE_ASSIGN_(KVLANE_CONCAT(kvlane_result_, __LINE__), target, expression)
#define KVLANE_ASSIGN_(result, target, expression) \
  auto result = (expression);                      \
  if (!result.ok()) return result.status();        \
  target = std::move(*result)
