// Cuts a batch into tiles and runs, and puts the states together.
// SPDX-License-Identifier: Apache-2.0
#include "attention/attention.h"

#include <algorithm>
#include <cmath>

#include "base/bf16.h"
#include "cpu/parallel.h"

namespace kvlane {
namespace {

// Sealed blocks come in runs of kSplitBlocks; the own block is a run by itself, the last one.
int run_count(int own_block) { return (own_block + kSplitBlocks - 1) / kSplitBlocks + 1; }

}  // namespace

void Attention::make_tiles(const AttentionBatch& batch) {
  tiles_.clear();
  for (const AttentionSpan& span : batch.spans) {
    const int kv_heads = span.table->pool().shape().kv_heads;
    const int group = batch.heads / kv_heads;
    for (int done = 0; done < span.rows;) {
      const int block = (span.position + done) / kBlockTokens;
      const int tokens =
          std::min(span.rows - done, (block + 1) * kBlockTokens - span.position - done);
      for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
        for (int pair = 0; pair < tokens * group; pair += kTileRows) {
          tiles_.push_back({span.table, kv_head, done * group + pair,
                            std::min(kTileRows, tokens * group - pair), span.position,
                            span.first_row, block});
        }
      }
      done += tokens;
    }
  }
  // Long ones first, so that no thread starts one when the others are done.
  std::stable_sort(tiles_.begin(), tiles_.end(),
                   [](const Tile& a, const Tile& b) { return a.block > b.block; });
}

void Attention::make_tasks() {
  tasks_.clear();
  // A tile for every thread and some to spare: leave tiles whole and keep their states in registers
  // and caches. Else every run is a task of its own. Both ways merge the same states in the same
  // order.
  const bool split = static_cast<int>(tiles_.size()) < 4 * parallel_threads();
  for (int tile = 0; tile < static_cast<int>(tiles_.size()); ++tile) {
    const int runs = run_count(tiles_[tile].block);
    if (!split || runs < 3) {
      tasks_.push_back({tile, 0, runs});
      continue;
    }
    for (int run = 0; run < runs; ++run) tasks_.push_back({tile, run, run + 1});
  }
}

void Attention::attend(const AttentionBatch& batch, const Task& task, StateTile& total) const {
  const Tile& tile = tiles_[task.tile];
  const KvShape& shape = tile.table->pool().shape();
  const int group = batch.heads / shape.kv_heads;

  PageQuery query;
  int own_visible[kTileRows];
  int own_tokens = 0;
  for (int i = 0; i < tile.pairs; ++i) {
    const int token = (tile.first_pair + i) / group;
    const int head = tile.kv_head * group + (tile.first_pair + i) % group;
    query.q[i] = batch.q + (std::size_t(tile.row + token) * batch.heads + head) * batch.q_parts *
                               shape.head_dim;
    query.visible[i] = kBlockTokens;
    own_visible[i] = (tile.position + token) % kBlockTokens + 1;
    own_tokens = std::max(own_tokens, own_visible[i]);
  }
  query.parts = batch.q_parts;
  query.tokens = kBlockTokens;
  query.scale = static_cast<float>(1.4426950408889634 / std::sqrt(shape.head_dim));

  const auto page = [&](int block) {
    return tile.table->pool().page(tile.table->id(block), batch.layer, tile.kv_head);
  };
  total.reset(tile.pairs, shape.head_dim);
  StateTile run_state;
  const int own_run = run_count(tile.block) - 1;
  for (int run = task.first_run; run < task.last_run; ++run) {
    run_state.reset(tile.pairs, shape.head_dim);
    if (run == own_run) {
      std::copy_n(own_visible, tile.pairs, query.visible);
      query.tokens = own_tokens;
      kernel_(query, page(tile.block), run_state);
    } else {
      const int end = std::min((run + 1) * kSplitBlocks, tile.block);
      for (int block = run * kSplitBlocks; block < end; ++block) {
        kernel_(query, page(block), run_state);
      }
    }
    merge(run_state, total);
  }
}

void Attention::store(const AttentionBatch& batch, const Tile& tile, const StateTile& total) const {
  const KvShape& shape = tile.table->pool().shape();
  const int group = batch.heads / shape.kv_heads;
  for (int i = 0; i < tile.pairs; ++i) {
    const int token = (tile.first_pair + i) / group;
    const int head = tile.kv_head * group + (tile.first_pair + i) % group;
    const std::size_t at = (std::size_t(tile.row + token) * batch.heads + head) * shape.head_dim;
    const float* row = total.out + i * shape.head_dim;
    const float scale = 1.0F / total.sum[i];
    if (batch.out_type == ElementType::kF32) {
      float* out = static_cast<float*>(batch.out) + at;
      for (int j = 0; j < shape.head_dim; ++j) out[j] = row[j] * scale;
    } else {
      bf16* out = static_cast<bf16*>(batch.out) + at;
      for (int j = 0; j < shape.head_dim; ++j) out[j] = to_bf16(row[j] * scale);
    }
  }
}

void Attention::run(const AttentionBatch& batch) {
  make_tiles(batch);
  make_tasks();
  if (tasks_.size() == tiles_.size()) {
    parallel_for(static_cast<std::int64_t>(tasks_.size()), [&](std::int64_t i) {
      StateTile total;
      attend(batch, tasks_[i], total);
      store(batch, tiles_[tasks_[i].tile], total);
    });
    return;
  }
  if (states_.size() < tasks_.size()) states_.resize(tasks_.size());
  parallel_for(static_cast<std::int64_t>(tasks_.size()),
               [&](std::int64_t i) { attend(batch, tasks_[i], states_[i]); });
  for (std::size_t i = 0; i < tasks_.size();) {
    const int tile = tasks_[i].tile;
    StateTile& total = states_[i];
    for (++i; i < tasks_.size() && tasks_[i].tile == tile; ++i) merge(states_[i], total);
    store(batch, tiles_[tile], total);
  }
}

}  // namespace kvlane
