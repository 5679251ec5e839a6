// The KV of one sequence that keeps some tokens of its prompt only, each KV head its own.
//
// Such a cache breaks the grid of blocks, so nobody shares it and it has no names. While the prompt
// is computed it lies in a BlockTable as ever, and scores of its tokens add up here. evict() then
// copies the rows that stay into slots, 64 of which are a block of the same pool, and gives the
// prompt's blocks back. All heads keep equally many tokens, so blocks are full for all of them.
// There is one slot more than tokens that stay: a later token takes it, is read and scored, and
// then one token's slot is free for the next. K keeps the rotation of its position wherever it
// lies.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/block_pool.h"
#include "cache/eviction.h"
#include "cache/sparse_layout.h"
#include "kvlane/status.h"

namespace kvlane {

// What is known of the tokens that one head holds, by slot. Between tokens one slot may be free:
// then `free` says which, and what stands there means nothing.
struct HeadSlots {
  static constexpr int kNone = -1;

  std::vector<std::int32_t> positions;
  std::vector<float> scores;
  int free = kNone;
};

// Thread-compatible; calls about different heads may be made at once.
class SparseCache {
 public:
  // The layout outlives this.
  SparseCache(const SparseLayout& layout, const EvictionRule& rule)
      : layout_(&layout),
        rule_(rule),
        heads_(std::size_t(layout.shape().layers) * layout.shape().kv_heads) {}
  SparseCache(SparseCache&&) = default;
  SparseCache& operator=(SparseCache&&) = default;

  const SparseLayout& layout() const { return *layout_; }
  const EvictionRule& rule() const { return rule_; }
  // Whether the prompt is over and its blocks are gone.
  bool evicted() const { return evicted_; }

  // Takes the blocks that evict() will want for a prompt of so many tokens, so that it will have
  // them. All or none (kExhausted).
  Status reserve(BlockPool& pool, int prompt_tokens);

  // While the prompt is computed: scores of its first `tokens` tokens, those that are new being 0.
  std::span<float> prompt_scores(int layer, int kv_head, int tokens);

  // Ends the prompt, whose tokens have all been scored: takes blocks of its pool for what stays,
  // unless it has them, and clears its table. All of it or nothing (kExhausted).
  Status evict(BlockTable& prompt);
  // Blocks that evict() will take for a prompt of so many tokens.
  int blocks_for_prompt(int tokens) const { return eviction_blocks(rule_, tokens); }

  // From here on of a sequence whose prompt is over.

  int prompt_tokens() const { return prompt_tokens_; }
  EvictionBudget budget() const { return budget_; }
  // Tokens of the sequence, those that went included: the position of the next one.
  int tokens() const { return tokens_; }
  // Says that tokens before that position were appended in all heads.
  void set_tokens(int tokens) { tokens_ = tokens; }

  // Puts a token's rows, [head_dim] each, into the free slot: of them the channels that are kept.
  void append(int layer, int kv_head, int position, const std::uint16_t* k, const std::uint16_t* v);
  // Frees a slot if the head holds more than its budget: once the newest token's query has added to
  // scores.
  void discard(int layer, int kv_head, int newest);

  HeadSlots& head(int layer, int kv_head) { return heads_[index(layer, kv_head)]; }
  const HeadSlots& head(int layer, int kv_head) const { return heads_[index(layer, kv_head)]; }
  // Slots 64 i to 64 i + 63 of a head: K[64][k], then V[64][v].
  std::uint16_t* page(int layer, int kv_head, int i) const;

  // Fills an empty cache, which then has blocks of its own, with the sequence of `other`. All of it
  // or nothing (kExhausted).
  Status copy(const SparseCache& other);

  // Gives all blocks back and forgets the sequence.
  void clear();

  // Of the tokens that are held: rows, positions, scores.
  std::size_t bytes_held() const;
  int blocks() const { return slots_ ? slots_->blocks() : 0; }

 private:
  std::size_t index(int layer, int kv_head) const {
    return std::size_t(layer) * layout_->shape().kv_heads + kv_head;
  }
  void put(int layer, int kv_head, int slot, const std::uint16_t* k, const std::uint16_t* v);
  void gather(const BlockTable& prompt, int layer, int kv_head);

  const SparseLayout* layout_;
  EvictionRule rule_;
  std::vector<HeadSlots> heads_;     // [layers][kv_heads]
  std::optional<BlockTable> slots_;  // owner of the blocks; nothing in it is a position
  bool evicted_ = false;
  EvictionBudget budget_{0, 0};
  int prompt_tokens_ = 0;
  int tokens_ = 0;
};

}  // namespace kvlane
