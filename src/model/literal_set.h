// A set of fixed strings, searched for the longest one at a place in a text.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvlane {

// Immutable, thread-safe.
class LiteralSet {
 public:
  struct Literal {
    std::string text;  // not empty, and not twice in one set
    std::int32_t value;
  };
  struct Match {
    std::int32_t value;
    std::size_t bytes;
  };

  explicit LiteralSet(std::vector<Literal> literals);

  bool empty() const { return literals_.empty(); }
  // The longest literal that `text` begins with.
  std::optional<Match> longest_prefix(std::string_view text) const;

 private:
  std::vector<Literal> literals_;  // sorted by bytes
  std::array<std::size_t, 257>
      starts_{};  // [first byte]: where the literals that begin with it start
};

}  // namespace kvlane
