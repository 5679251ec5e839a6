// ZACK's ablation OE: a prompt's K and V in axes of its own, found when the prompt is complete.
//
// Nobody folded such axes into weights or turns queries into them, so attention wants rows: all of
// them are made again in every pass. What that costs is what this is for (lab/zack_online); rows
// stay where they are, so memory is not saved.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "cache/block_pool.h"
#include "kvlane/status.h"
#include "ops/rotation.h"

namespace kvlane {

// The first `width` coefficients of each row of one prompt, along the axes in which that leaves out
// least, of each layer and KV head its own for K and for V. Immutable, thread-safe.
class OnlineAxes {
 public:
  // Of the rows that a table of a cache in 16 bits has. head_dim is a multiple of 16, `keep` above
  // 0 and at most 1: the share of its dimensions, rounded up to a multiple of 16. kInternal for
  // rows that are not finite.
  static Result<OnlineAxes> decompose(const BlockTable& table, double keep, Isa isa);

  // Writes the rows of one layer again, where decompose() read them or where the table's blocks
  // were copied to: the same ones each time.
  void restore_rows(const BlockTable& table, int layer) const;

 private:
  // K or V of a head.
  struct Plane {
    std::vector<float> axes;                  // [width][head_dim]
    std::vector<std::uint16_t> coefficients;  // [tokens][width] in BF16
  };

  OnlineAxes(const KvShape& shape, int tokens, int width, Isa isa);
  Status find(const BlockTable& table, int plane);
  // Where rows of a block lie, [kBlockTokens][head_dim].
  std::uint16_t* rows(const BlockTable& table, int plane, int block) const;
  int rows_of(int block) const;

  KvShape shape_;
  int tokens_;
  int width_;
  RotationKernel multiply_;
  std::vector<Plane> planes_;  // [layers][kv_heads][K, V]
};

}  // namespace kvlane
