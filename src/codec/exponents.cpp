// Counting exponents.
// SPDX-License-Identifier: Apache-2.0
#include "codec/exponents.h"

#include <algorithm>
#include <cstring>
#include <functional>

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

// Neighbours often have the same exponent and would wait for each other's store: so four tables.
template <class Word>
void count(const Place& place, ByteView values, ExponentCounts& counts) {
  std::array<ExponentCounts, 4> partial{};
  const unsigned mask = (1U << place.bits) - 1;
  for (std::size_t i = 0; i < values.size() / sizeof(Word); ++i) {
    Word value;
    std::memcpy(&value, values.data() + i * sizeof(Word), sizeof(Word));
    ++partial[i % partial.size()][value >> place.shift & mask];
  }
  for (const ExponentCounts& part : partial) {
    for (std::size_t e = 0; e < counts.size(); ++e) counts[e] += part[e];
  }
}

}  // namespace

int exponent_values(ElementType type) { return 1 << place_of(type).bits; }

int codebook_entries(ElementType type) {
  return type == ElementType::kFp8E4m3 ? 8 : static_cast<int>(Codebook::kExponentsMax);
}

void count_exponents(ElementType type, ByteView values, ExponentCounts& counts) {
  if (element_bytes(type) == 1) {
    count<std::uint8_t>(place_of(type), values, counts);
  } else {
    count<std::uint16_t>(place_of(type), values, counts);
  }
}

Codebook codebook_of(ElementType type, const ExponentCounts& counts) {
  // Greatest first: the count, then the complement of the exponent.
  std::array<std::uint64_t, 256> keys;
  const int exponents = exponent_values(type);
  for (int e = 0; e < exponents; ++e) keys[e] = counts[e] << 8 | static_cast<unsigned>(255 - e);
  const int entries = codebook_entries(type);
  std::partial_sort(keys.begin(), keys.begin() + entries, keys.begin() + exponents,
                    std::greater<>());
  Codebook book;
  std::transform(keys.begin(), keys.begin() + entries, book.exponents.begin(),
                 [](std::uint64_t key) { return static_cast<std::uint8_t>(255 - (key & 0xFFU)); });
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

}  // namespace kvlane
