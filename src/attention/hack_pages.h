// What attention on codes does alike with vectors of any width: bits and axes of a shape become
// those of a template, and pages follow each other. For files of one instruction-set tier only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_page.h"
#include "attention/prefetch.h"

// Templates are instantiated with types that only one file knows, so each has code of its own.
namespace kvlane::hack_pages {

using Scores = float[kTileRows][kBlockTokens];

// The weights of a tile's rows, four bytes for each register and class of V, and what they are
// worth. Of tokens 0 ... 31 and 32 ... 63, or first of all tokens:
struct Weights {
  // Byte 16 r + 4 c + k is of value_token(r, c, k).
  alignas(64) std::uint8_t bytes[kTileRows][kBlockTokens];
  alignas(64) float keep[kTileRows];      // what the state so far is to be multiplied with
  alignas(64) float unit[kTileRows];      // of a code, beside the state's maximum
  alignas(64) float total[2][kTileRows];  // of all weights: what m is multiplied with
  // What sums of products are short of, as codes are taken from their middle.
  alignas(64) float shift[2][kTileRows];
};

template <int kBits>
struct Bits {
  static constexpr int kValue = kBits;
};

// Calls `body` with bits that are known while compiling.
template <class Body>
static inline void with_bits(int bits, const Body& body) {
  switch (bits) {
    case 2: body(Bits<2>{}); break;
    case 4: body(Bits<4>{}); break;
    default: body(Bits<8>{}); break;
  }
}

// Tier::score<kBits, kBoth>(shape, query, rows, page, prefetch, scores): of all tokens of a page.
template <class Tier>
static void score_item(const HackShape& shape, const HackItem& item, Prefetch& prefetch,
                       Scores& scores) {
  const bool both = shape.k.axis == hack::Axis::kBoth;
  const int rows = item.tile->rows;
  with_bits(shape.k.bits, [&](auto known) {
    constexpr int kBits = decltype(known)::kValue;
    both
        ? Tier::template score<kBits, true>(shape, *item.query, rows, item.page, prefetch, scores)
        : Tier::template score<kBits, false>(shape, *item.query, rows, item.page, prefetch, scores);
  });
  hide_unseen(item, scores);
}

// Tier::weigh<kBoth>(shape, item, scores, prefetch, weights): maxima and sums of the tile's states,
// too.
template <class Tier>
static void weigh_item(const HackShape& shape, const HackItem& item, Scores& scores,
                       Prefetch& prefetch, Weights& weights) {
  shape.v.axis == hack::Axis::kBoth
      ? Tier::template weigh<true>(shape, item, scores, prefetch, weights)
      : Tier::template weigh<false>(shape, item, scores, prefetch, weights);
}

// Tier::add<kBits, kBoth, kParts>(shape, weights, page, prefetch, tile): the tile's outputs. kParts
// partitions of tokens, 1 or 2.
template <class Tier>
static void add_item(const HackShape& shape, const HackItem& item, const Weights& weights,
                     Prefetch& prefetch) {
  with_bits(shape.v.bits, [&](auto known) {
    constexpr int kBits = decltype(known)::kValue;
    if (shape.v.axis == hack::Axis::kBoth) {
      Tier::template add<kBits, true, 1>(shape, weights, item.page, prefetch, *item.tile);
    } else if (shape.v.partition < kBlockTokens) {
      Tier::template add<kBits, false, 2>(shape, weights, item.page, prefetch, *item.tile);
    } else {
      Tier::template add<kBits, false, 1>(shape, weights, item.page, prefetch, *item.tile);
    }
  });
}

// Between scores and output lies a chain of steps that wait for each other. The scores of the next
// page fill that time.
template <class Tier>
static void attend(const HackShape& shape, std::span<const HackItem> items) {
  alignas(64) Scores scores[2];
  Weights weights;
  Prefetch first(items[0].next);
  score_item<Tier>(shape, items[0], first, scores[0]);
  for (std::size_t i = 0; i < items.size(); ++i) {
    // The page after the one whose scores are taken now.
    Prefetch prefetch(i + 1 < items.size() ? items[i + 1].next : std::span<const std::byte>());
    weigh_item<Tier>(shape, items[i], scores[i % 2], prefetch, weights);
    if (i + 1 < items.size()) {
      score_item<Tier>(shape, items[i + 1], prefetch, scores[(i + 1) % 2]);
    }
    add_item<Tier>(shape, items[i], weights, prefetch);
  }
}

}  // namespace kvlane::hack_pages
