// Which blocks attention reads as rows of 16 bits though the cache's format is a coded one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvlane {

// A query reads the first `sink` blocks of its sequence and the `recent` blocks before its own as
// rows, and its own; those between as sealed slabs. A rule of block indices alone, so that it does
// not matter when a block was computed.
struct KvWindow {
  int sink = 0;
  int recent = 0;

  // Whether a query of block `own` reads block `block` <= own as rows.
  bool reads_rows(int block, int own) const { return block < sink || block >= own - recent; }

  friend bool operator==(const KvWindow&, const KvWindow&) = default;
};

}  // namespace kvlane
