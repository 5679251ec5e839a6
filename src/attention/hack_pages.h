// What attention on codes does alike with vectors of any width: bits and axes of a shape become
// those of a template, and pages follow each other. For files of one instruction-set tier only.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/hack_page.h"
#include "attention/prefetch.h"

// Templates are instantiated with types that only one file knows, so each has code of its own.
namespace kvlane::hack_pages {

using Scores = float[kTileRows][kBlockTokens];

// The weights of a batch's rows, four bytes for each register and class of V, and what they are
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

// Pages that are weighed together, and where the rows of each begin among those of all.
struct Batch {
  const HackItem* items;
  int pages;
  int first_row[kTileRows + 1];
};

// The first of the items up to `end`: one, or as many as have at most `most` rows together.
static inline Batch next_batch(const HackItem* items, const HackItem* end, int most) {
  Batch batch{items, 0, {0}};
  for (const HackItem* item = items; item != end; ++item) {
    const int rows = batch.first_row[batch.pages] + item->tile->rows;
    if (batch.pages > 0 && rows > most) break;
    batch.first_row[++batch.pages] = rows;
  }
  return batch;
}

// Tier::score<kBits, kBoth>(shape, query, rows, page, prefetch, scores): of all tokens of a page.
template <class Tier>
static void score_item(const HackShape& shape, const HackItem& item, Prefetch& prefetch,
                       float (*scores)[kBlockTokens]) {
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

// Tier::weigh<kBoth>(shape, batch, scores, prefetch, weights): maxima and sums of the tiles'
// states, too.
template <class Tier>
static void weigh_batch(const HackShape& shape, const Batch& batch, Scores& scores,
                        Prefetch& prefetch, Weights& weights) {
  shape.v.axis == hack::Axis::kBoth
      ? Tier::template weigh<true>(shape, batch, scores, prefetch, weights)
      : Tier::template weigh<false>(shape, batch, scores, prefetch, weights);
}

// Tier::add<kBits, kBoth, kParts>(shape, weights, first_row, page, prefetch, tile): the tile's
// outputs, whose weights begin with those of first_row. kParts partitions of tokens, 1 or 2.
template <class Tier>
static void add_item(const HackShape& shape, const HackItem& item, const Weights& weights,
                     int first_row, Prefetch& prefetch) {
  StateTile& tile = *item.tile;
  with_bits(shape.v.bits, [&](auto known) {
    constexpr int kBits = decltype(known)::kValue;
    if (shape.v.axis == hack::Axis::kBoth) {
      Tier::template add<kBits, true, 1>(shape, weights, first_row, item.page, prefetch, tile);
    } else if (shape.v.partition < kBlockTokens) {
      Tier::template add<kBits, false, 2>(shape, weights, first_row, item.page, prefetch, tile);
    } else {
      Tier::template add<kBits, false, 1>(shape, weights, first_row, item.page, prefetch, tile);
    }
  });
}

// Between scores and output lies a chain of steps that wait for each other, as long for
// Tier::kBatchRows rows as for one: pages of fewer rows go through it together. The scores of the
// next batch are taken beside the output of this one, page by page, so that memory is asked for
// evenly.
template <class Tier>
static void attend(const HackShape& shape, std::span<const HackItem> items) {
  const HackItem* const end = items.data() + items.size();
  alignas(64) Scores scores = {};  // rows that no page has are computed on, too: with numbers
  Weights weights;
  Batch batch = next_batch(items.data(), end, Tier::kBatchRows);
  for (int i = 0; i < batch.pages; ++i) {
    Prefetch prefetch(batch.items[i].next);
    score_item<Tier>(shape, batch.items[i], prefetch, &scores[batch.first_row[i]]);
    prefetch.rest();
  }
  while (batch.pages > 0) {
    const Batch next = next_batch(batch.items + batch.pages, end, Tier::kBatchRows);
    Prefetch prefetch(next.pages > 0 ? next.items[0].next : std::span<const std::byte>());
    weigh_batch<Tier>(shape, batch, scores, prefetch, weights);
    for (int i = 0; i < batch.pages || i < next.pages; ++i) {
      if (i < next.pages) {
        if (i > 0) prefetch = Prefetch(next.items[i].next);
        score_item<Tier>(shape, next.items[i], prefetch, &scores[next.first_row[i]]);
      }
      if (i < batch.pages) {
        add_item<Tier>(shape, batch.items[i], weights, batch.first_row[i], prefetch);
      }
      prefetch.rest();
    }
    batch = next;
  }
}

}  // namespace kvlane::hack_pages
