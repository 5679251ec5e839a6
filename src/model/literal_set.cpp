// Longest-prefix search by narrowing a range of the sorted literals, byte by byte.
// SPDX-License-Identifier: Apache-2.0
#include "model/literal_set.h"

#include <algorithm>

namespace kvlane {
namespace {

// The byte at `depth`, or -1 past the end: a prefix sorts before what continues it.
int byte_or_end(std::string_view text, std::size_t depth) {
  return depth < text.size() ? static_cast<unsigned char>(text[depth]) : -1;
}

}  // namespace

LiteralSet::LiteralSet(std::vector<Literal> literals) : literals_(std::move(literals)) {
  std::sort(literals_.begin(), literals_.end(),
            [](const Literal& a, const Literal& b) { return a.text < b.text; });
  for (const Literal& literal : literals_) {
    ++starts_[static_cast<unsigned char>(literal.text[0]) + 1U];
  }
  for (std::size_t byte = 1; byte < starts_.size(); ++byte) starts_[byte] += starts_[byte - 1];
}

std::optional<LiteralSet::Match> LiteralSet::longest_prefix(std::string_view text) const {
  if (text.empty()) return std::nullopt;
  const auto first = static_cast<unsigned char>(text[0]);
  auto low = literals_.begin() + static_cast<std::ptrdiff_t>(starts_[first]);
  auto high = literals_.begin() + static_cast<std::ptrdiff_t>(starts_[first + 1U]);
  std::optional<Match> longest;
  for (std::size_t depth = 1; low != high; ++depth) {
    if (low->text.size() == depth) longest = Match{low->value, depth};
    const int next = byte_or_end(text, depth);
    if (next < 0) break;
    low = std::partition_point(low, high,
                               [&](const Literal& l) { return byte_or_end(l.text, depth) < next; });
    high = std::partition_point(
        low, high, [&](const Literal& l) { return byte_or_end(l.text, depth) == next; });
  }
  return longest;
}

}  // namespace kvlane
