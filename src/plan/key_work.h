// What attention to a KV head costs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "format/head_widths.h"

namespace kvlane {

// Work of a query row and a visible key: a product with K, one with V, and one for the weight of
// the key between them. Widths are at least 1.
constexpr int key_work(const HeadWidths& head) { return head.k + head.v + 1; }

}  // namespace kvlane
