// How many channels a KV head keeps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvlane {

struct HeadWidths {
  int k;  // of K, and of the queries that meet it
  int v;

  friend bool operator==(const HeadWidths&, const HeadWidths&) = default;
};

}  // namespace kvlane
