// Asking for memory before it is read.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

namespace kvlane {

// Asks for the next memory line by line, one for each line that is used, so that it comes while a
// kernel computes and never more than the core can have under way. Always inline: files of every
// instruction-set tier use it, and none may keep a copy that others would call.
class Prefetch {
 public:
  [[gnu::always_inline]] explicit Prefetch(std::span<const std::byte> next)
      : at_(reinterpret_cast<const char*>(next.data())), lines_(next.size() / 64) {}

  [[gnu::always_inline]] void line() {
    if (lines_ == 0) return;
    __builtin_prefetch(at_, 0, 2);  // to be read; into the second-level cache
    at_ += 64;
    --lines_;
  }

  // What is left, at once: where the next memory is larger than what was used.
  [[gnu::always_inline]] void rest() {
    while (lines_ > 0) line();
  }

 private:
  const char* at_;
  std::size_t lines_;
};

}  // namespace kvlane
