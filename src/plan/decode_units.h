// How decode attention on a GPU is cut into units of work for blocks of threads. Pure functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace kvlane {

// A unit has at least this many blocks (512 tokens) unless its sequence is shorter: its states cost
// memory traffic too, at head_dim 128 a query head's as much as two tokens of a KV head.
inline constexpr int kDecodeUnitBlocksMin = 8;

struct DecodeShape {
  int heads;     // query heads; a multiple of kv_heads
  int kv_heads;  // at least 1
  int queries;   // that a unit takes at most, of those that share a KV head; at least 1
  int units;     // that a long sequence is cut into; at least 1
  // Blocks that a unit's warps take at a time: a unit has a multiple of so many, but the last one.
  int step = 1;
  // That a unit has at most; a multiple of step.
  int most = std::numeric_limits<int>::max();
};

// Some query heads of one KV head over a range of one sequence's tokens. Query head `first_head +
// i` writes its partial state at `first_state + i`. Kernels read it in two accesses.
struct alignas(16) DecodeUnit {
  std::int32_t sequence;
  std::int32_t kv_head;
  std::int32_t first_head;
  std::int32_t queries;
  std::int32_t first_token;  // a multiple of kBlockTokens
  std::int32_t end_token;
  std::int32_t first_state;
};

struct DecodePlan {
  std::vector<DecodeUnit> units;  // longest first
  // [sequences + 1]: the states of sequence i are [splits][heads], from first_state[i] to where
  // those of the next one begin.
  std::vector<std::int32_t> first_state;
};

// Blocks of a unit of a sequence that has so many tokens: so few that the sequence alone makes as
// many units as the shape says, or more where a unit may not be as long. Nothing else decides, so a
// sequence is cut, and its result rounded, in the same way in any company.
int decode_unit_blocks(int tokens, const DecodeShape& shape);

// Of sequences with so many tokens each; one without tokens has no unit and no state. The states
// of all of them are at most 2^31 - 1.
DecodePlan plan_decode(std::span<const std::int32_t> tokens, const DecodeShape& shape);

}  // namespace kvlane
