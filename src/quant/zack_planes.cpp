// Words of two values to rows and back: of K two channels of a token, of V two tokens of a channel.
// SPDX-License-Identifier: Apache-2.0
#include "quant/zack_planes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "format/shape.h"

namespace kvlane {
namespace {

// Channels of K that are moved together: their words are read side by side, a line of a row written
// at once.
constexpr int kKeyTile = 32;

// One head's K in a slab, words [k / 2][64], and as columns of rows that lie `stride` values apart.
// move(word, two_of_a_row) moves one word.
template <class Word, class Row, class Move>
void for_each_key_word(int k, Word* words, Row* rows, std::size_t stride, const Move& move) {
  for (int first = 0; first < k; first += kKeyTile) {
    const int end = std::min(k, first + kKeyTile);
    for (int token = 0; token < kBlockTokens; ++token) {
      for (int i = first; i < end; i += 2) {
        move(words + std::size_t{kBlockTokens} * i + 2 * token, rows + stride * token + i);
      }
    }
  }
}

// The same of V, words [32][v]; move(words, row, next_row) moves all words of two tokens.
template <class Word, class Row, class Move>
void for_each_value_pair(int v, Word* words, Row* rows, std::size_t stride, const Move& move) {
  for (int token = 0; token < kBlockTokens; token += 2) {
    move(words + std::size_t(token) * v, rows + stride * token, rows + stride * (token + 1));
  }
}

// Calls visit(widths, offset of the head's page in the slab, its first column of K and of V).
template <class Visit>
void for_each_head(std::span<const HeadWidths> heads, const Visit& visit) {
  std::size_t offset = 0;
  HeadWidths column{0, 0};
  for (const HeadWidths& head : heads) {
    visit(head, offset, column);
    offset += std::size_t{kBlockTokens} * (head.k + head.v);
    column.k += head.k;
    column.v += head.v;
  }
}

}  // namespace

ZackPlanes::ZackPlanes(int kv_heads, std::vector<HeadWidths> heads)
    : kv_heads_(static_cast<std::size_t>(kv_heads)), heads_(std::move(heads)) {}

HeadWidths ZackPlanes::widths(int layer) const {
  HeadWidths sum{0, 0};
  for (const HeadWidths& head : heads(layer)) {
    sum.k += head.k;
    sum.v += head.v;
  }
  return sum;
}

void ZackPlanes::to_rows(int layer, const std::byte* slab, std::uint16_t* rows) const {
  const HeadWidths sum = widths(layer);
  std::uint16_t* const value_rows = rows + std::size_t{kBlockTokens} * sum.k;
  const auto* const pages = reinterpret_cast<const std::uint16_t*>(slab);
  for_each_head(heads(layer), [&](HeadWidths head, std::size_t offset, HeadWidths column) {
    const std::uint16_t* const page = pages + offset;
    for_each_key_word(head.k, page, rows + column.k, static_cast<std::size_t>(sum.k),
                      [](const std::uint16_t* word, std::uint16_t* row) {
                        std::memcpy(row, word, 2 * sizeof(*word));
                      });
    for_each_value_pair(head.v, page + std::size_t{kBlockTokens} * head.k, value_rows + column.v,
                        static_cast<std::size_t>(sum.v),
                        [&](const std::uint16_t* words, std::uint16_t* row, std::uint16_t* next) {
                          for (int i = 0; i < head.v; ++i) {
                            row[i] = words[2 * i];
                            next[i] = words[2 * i + 1];
                          }
                        });
  });
}

void ZackPlanes::from_rows(int layer, const std::uint16_t* rows, std::byte* slab) const {
  const HeadWidths sum = widths(layer);
  const std::uint16_t* const value_rows = rows + std::size_t{kBlockTokens} * sum.k;
  auto* const pages = reinterpret_cast<std::uint16_t*>(slab);
  for_each_head(heads(layer), [&](HeadWidths head, std::size_t offset, HeadWidths column) {
    std::uint16_t* const page = pages + offset;
    for_each_key_word(head.k, page, rows + column.k, static_cast<std::size_t>(sum.k),
                      [](std::uint16_t* word, const std::uint16_t* row) {
                        std::memcpy(word, row, 2 * sizeof(*word));
                      });
    for_each_value_pair(
        head.v, page + std::size_t{kBlockTokens} * head.k, value_rows + column.v,
        static_cast<std::size_t>(sum.v),
        [&](std::uint16_t* words, const std::uint16_t* row, const std::uint16_t* next) {
          for (int i = 0; i < head.v; ++i) {
            words[2 * i] = row[i];
            words[2 * i + 1] = next[i];
          }
        });
  });
}

}  // namespace kvlane
