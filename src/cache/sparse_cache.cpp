// Rows to slots.
// SPDX-License-Identifier: Apache-2.0
#include "cache/sparse_cache.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "cpu/parallel.h"

namespace kvlane {
namespace {

// Values of the largest page that a format opens, K and V.
constexpr std::size_t kPageElementsMax = 2 * kBlockTokens * 256;
// Waking other threads costs more than choosing among a few thousand tokens.
constexpr std::int64_t kParallelTokensMin = 1 << 14;

}  // namespace

std::span<float> SparseCache::prompt_scores(int layer, int kv_head, int tokens) {
  std::vector<float>& scores = head(layer, kv_head).scores;
  if (static_cast<int>(scores.size()) < tokens) scores.resize(tokens);
  return {scores.data(), std::size_t(tokens)};
}

std::uint16_t* SparseCache::page(int layer, int kv_head, int i) const {
  std::byte* const slab = slots_->pool().slab_memory(slots_->id(i), layer);
  return reinterpret_cast<std::uint16_t*>(slab + layout_->page(layer, kv_head).offset);
}

void SparseCache::put(int layer, int kv_head, int slot, const std::uint16_t* k,
                      const std::uint16_t* v) {
  const HeadWidths widths = layout_->page(layer, kv_head).widths;
  std::uint16_t* const keys = page(layer, kv_head, slot / kBlockTokens);
  const int row = slot % kBlockTokens;
  std::copy_n(k, widths.k, keys + row * widths.k);
  std::copy_n(v, widths.v, keys + kBlockTokens * widths.k + row * widths.v);
}

Status SparseCache::reserve(BlockPool& pool, int prompt_tokens) {
  if (!slots_) slots_.emplace(pool);
  return slots_->grow(blocks_for_prompt(prompt_tokens) * kBlockTokens);
}

Status SparseCache::evict(BlockTable& prompt) {
  assert(!evicted() && prompt.pool().on_host());
  const int tokens = prompt.tokens();
  KVLANE_TRY(reserve(prompt.pool(), tokens));
  evicted_ = true;
  budget_ = eviction_budget(rule_, tokens);
  prompt_tokens_ = tokens_ = tokens;
  const int kv_heads = layout_->shape().kv_heads;
  const auto heads = static_cast<std::int64_t>(heads_.size());
  const ParallelScope threads(heads * tokens < kParallelTokensMin ? 1 : parallel_threads());
  parallel_for(heads, [&](std::int64_t i) {
    gather(prompt, static_cast<int>(i / kv_heads), static_cast<int>(i % kv_heads));
  });
  prompt.clear();
  return {};
}

// Of one head, what stays of the prompt.
void SparseCache::gather(const BlockTable& prompt, int layer, int kv_head) {
  HeadSlots& head = this->head(layer, kv_head);
  assert(static_cast<int>(head.scores.size()) == prompt_tokens_);
  const std::vector<int> kept = kept_tokens(head.scores, budget_);
  const int head_dim = layout_->shape().head_dim;
  const KvFormat* const format = layout_->format();
  alignas(64) std::uint16_t opened[kPageElementsMax];
  const std::uint16_t* keys = nullptr;
  int block = -1;
  HeadSlots slots;
  slots.positions.reserve(kept.size() + 1);
  slots.scores.reserve(kept.size() + 1);
  for (const int token : kept) {
    if (token / kBlockTokens != block) {
      block = token / kBlockTokens;
      if (prompt.coded() && block < prompt_tokens_ / kBlockTokens) {
        format->open_page({layer, block * kBlockTokens}, prompt.sealed(block, layer), kv_head,
                          opened);
        keys = opened;
      } else {
        keys = prompt.page(block, layer, kv_head);
      }
    }
    const std::uint16_t* const k = keys + token % kBlockTokens * head_dim;
    put(layer, kv_head, static_cast<int>(slots.positions.size()), k,
        k + layout_->shape().page_plane_elements());
    slots.positions.push_back(token);
    slots.scores.push_back(head.scores[token]);
  }
  head = std::move(slots);
}

void SparseCache::append(int layer, int kv_head, int position, const std::uint16_t* k,
                         const std::uint16_t* v) {
  HeadSlots& head = this->head(layer, kv_head);
  if (head.free == HeadSlots::kNone) {
    head.free = static_cast<int>(head.positions.size());
    head.positions.push_back(0);
    head.scores.push_back(0);
  }
  const int slot = std::exchange(head.free, HeadSlots::kNone);
  assert(slot <= budget_.tokens());
  head.positions[slot] = position;
  head.scores[slot] = 0;
  put(layer, kv_head, slot, k, v);
}

void SparseCache::discard(int layer, int kv_head, int newest) {
  HeadSlots& head = this->head(layer, kv_head);
  const int gone = discarded_token(head.scores, head.positions, budget_, newest);
  if (gone < 0) return;
  head.free = gone;
  head.positions[gone] = -1;
}

Status SparseCache::copy(const SparseCache& other) {
  assert(!evicted() && other.evicted());
  BlockPool& pool = other.slots_->pool();
  BlockTable slots(pool);
  KVLANE_TRY(slots.grow(other.slots_->blocks() * kBlockTokens));
  for (int block = 0; block < slots.blocks(); ++block) {
    KVLANE_TRY(pool.copy_block(slots.id(block), other.slots_->id(block)));
  }
  slots_ = std::move(slots);
  evicted_ = true;
  heads_ = other.heads_;
  budget_ = other.budget_;
  prompt_tokens_ = other.prompt_tokens_;
  tokens_ = other.tokens_;
  return {};
}

void SparseCache::clear() {
  slots_.reset();
  evicted_ = false;
  for (HeadSlots& head : heads_) head = {};
  budget_ = {0, 0};
  prompt_tokens_ = tokens_ = 0;
}

std::size_t SparseCache::bytes_held() const {
  if (!evicted()) return 0;
  // The heads are alike; between tokens one slot may be free.
  const HeadSlots& any = heads_.front();
  const std::size_t tokens = any.positions.size() - (any.free == HeadSlots::kNone ? 0 : 1);
  return tokens * (layout_->token_bytes() + heads_.size() * (sizeof(std::int32_t) + sizeof(float)));
}

}  // namespace kvlane
