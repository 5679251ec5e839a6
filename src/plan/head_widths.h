// How wide the rows of K and V of a KV head are when it keeps only part of its dimensions, and what
// attention over them costs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace kvlane {

// Dimensions that a KV head of a layer keeps, of K (and of its queries) and of V: at least 1, and
// at most head_dim.
struct HeadWidths {
  std::int32_t qk;
  std::int32_t v;
};

// Work of a query row and a visible key: a product with K, one with V, and one for the weight of
// the key between them.
constexpr int key_work(const HeadWidths& head) { return head.qk + head.v + 1; }

}  // namespace kvlane
