// Counting exponents.
// SPDX-License-Identifier: Apache-2.0
#include "codec/exponents.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace kvlane {
namespace {

// Where a value's exponent lies.
struct Place {
  int shift;
  int bits;
};

constexpr Place place_of(ElementType type) {
  switch (type) {
    case ElementType::kFp16: return {10, 5};
    case ElementType::kFp8E4m3: return {3, 4};
    case ElementType::kFp8E5m2: return {2, 5};
    case ElementType::kBf16:
    case ElementType::kF32: break;
  }
  return {7, 8};
}

}  // namespace

int exponent_values(ElementType type) { return 1 << place_of(type).bits; }

int codebook_entries(ElementType type) {
  return type == ElementType::kFp8E4m3 ? 8 : static_cast<int>(Codebook::kExponentsMax);
}

void count_exponents(ElementType type, ByteView values, ExponentCounts& counts) {
  const Place place = place_of(type);
  const std::size_t width = element_bytes(type);
  const unsigned mask = (1U << place.bits) - 1;
  // Neighbours are often equal: two tables keep one addition from waiting for the other.
  std::array<std::array<std::uint64_t, 256>, 2> tables{};
  for (std::size_t i = 0; i + width <= values.size(); i += width) {
    unsigned value = std::to_integer<unsigned>(values[i]);
    if (width == 2) value |= std::to_integer<unsigned>(values[i + 1]) << 8;
    ++tables[i / width % 2][value >> place.shift & mask];
  }
  for (std::size_t e = 0; e < counts.size(); ++e) counts[e] += tables[0][e] + tables[1][e];
}

Codebook codebook_of(ElementType type, const ExponentCounts& counts) {
  std::array<std::uint8_t, 256> order{};
  std::iota(order.begin(), order.end(), std::uint8_t{0});
  const auto end = order.begin() + exponent_values(type);
  std::sort(order.begin(), end, [&](std::uint8_t a, std::uint8_t b) {
    return counts[a] != counts[b] ? counts[a] > counts[b] : a < b;
  });
  Codebook book;
  const int entries = codebook_entries(type);
  std::copy_n(order.begin(), entries, book.exponents.begin());
  std::sort(book.exponents.begin(), book.exponents.begin() + entries);
  return book;
}

double coverage(ElementType type, const Codebook& book, const ExponentCounts& counts) {
  std::uint64_t total = 0;
  for (const std::uint64_t count : counts) total += count;
  std::uint64_t covered = 0;
  for (int i = 0; i < codebook_entries(type); ++i) covered += counts[book.exponents[i]];
  return total == 0 ? 1 : static_cast<double>(covered) / static_cast<double>(total);
}

std::optional<WrittenCodebook> written_codebook(const PlaneShape& shape, ByteView body) {
  constexpr std::size_t kModeOffset = 1;
  constexpr std::size_t kTableWordsOffset = 8;
  constexpr std::size_t kCodebookOffset = 16;
  constexpr std::byte kCoded{1};
  WrittenCodebook written;
  const std::size_t exponents = written.book.exponents.size();
  if (body.size() < kCodebookOffset + exponents || body[kModeOffset] != kCoded) return std::nullopt;
  std::uint32_t words = 0;  // one for each escape; in chunks of many, one for two values
  std::memcpy(&words, body.data() + kTableWordsOffset, sizeof words);
  written.escapes = static_cast<double>(words) / static_cast<double>(shape.elements());
  std::memcpy(written.book.exponents.data(), body.data() + kCodebookOffset, exponents);
  return written;
}

}  // namespace kvlane
