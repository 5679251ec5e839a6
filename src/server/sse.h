// Server-sent events as a relay sees them: cut at blank lines, otherwise untouched.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kvlane {

// Cuts a stream of bytes into events.
class SseSplitter {
 public:
  // The longest event a worker sends: a whole answer merged into one, with its token ids.
  static constexpr std::size_t kEventBytesMax = 8 << 20;

  void add(std::string_view piece) { pending_ += piece; }

  // The next whole event, its blank line included.
  std::optional<std::string> next() {
    const std::size_t end = pending_.find("\n\n", searched_);
    if (end == std::string::npos) {
      searched_ = pending_.empty() ? 0 : pending_.size() - 1;
      return std::nullopt;
    }
    std::string event = pending_.substr(0, end + 2);
    pending_.erase(0, end + 2);
    searched_ = 0;
    return event;
  }

  // An event is longer than kEventBytesMax and not yet over: give up.
  bool too_long() const { return pending_.size() > kEventBytesMax; }

 private:
  std::string pending_;
  std::size_t searched_ = 0;  // no event ends before this
};

}  // namespace kvlane
