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

// Tiles from `first` on that go over their blocks together: those that share the reading of sealed
// pages, and `most` of several KV heads, whose pages lie one after the other in memory.
int Attention::tiles_together(int first, int most) const {
  const Tile& tile = tiles_[first];
  int count = 1;
  for (int i = first + 1; i < static_cast<int>(tiles_.size()) && count < kGroupTiles; ++i) {
    const Tile& next = tiles_[i];
    if (next.table != tile.table || next.block != tile.block) break;
    const bool shares_page = tile.table->coded() && next.kv_head == tile.kv_head;
    if (!shares_page && count >= most) break;
    ++count;
  }
  return count;
}

// Whether a tile's runs are more than one task.
bool Attention::make_tasks() {
  tasks_.clear();
  const int threads = parallel_threads();
  const auto tiles_all = static_cast<int>(tiles_.size());
  // Tiles enough for all threads: leave them whole and keep their states in registers and caches.
  // Else every run is a task of its own. Both ways merge the same states in the same order.
  const bool split = threads > 1 && tiles_all < kGroupTiles * threads;
  const auto parts = [&](int tile) {
    const int runs = run_count(tiles_[tile].block);
    return split && runs >= 3 ? runs : 1;
  };
  int parts_all = 0;
  for (int tile = 0; tile < tiles_all; ++tile) parts_all += parts(tile);
  // Four tasks a thread, or one that ends late is waited for.
  const int most =
      threads == 1 ? kGroupTiles : std::clamp(parts_all / (4 * threads), 1, kGroupTiles);
  int states = 0;
  for (int tile = 0; tile < tiles_all;) {
    const int tiles = tiles_together(tile, most);
    const int runs = run_count(tiles_[tile].block);
    const int step = runs / parts(tile);
    for (int run = 0; run < runs; run += step) {
      tasks_.push_back({tile, tiles, run, run + step, states});
      states += tiles;
    }
    tile += tiles;
  }
  return split;
}

// Whether the tile's rows see a block in 16 bits.
bool Attention::reads_rows(const Tile& tile, int block) const {
  return !tile.table->coded() || format_->window().reads_rows(block, tile.block);
}

// What reading the tile's page of a block means: its rows, or its part of the sealed slab.
std::span<const std::byte> Attention::memory(const Tile& tile, int layer, int block) const {
  const BlockTable& table = *tile.table;
  const KvShape& shape = table.pool().shape();
  if (reads_rows(tile, block)) {
    return {reinterpret_cast<const std::byte*>(table.page(block, layer, tile.kv_head)),
            shape.page_bytes()};
  }
  const std::size_t bytes = format_->slab_bytes() / shape.kv_heads;
  return {table.sealed(block, layer) + bytes * tile.kv_head, bytes};
}

PageQuery Attention::make_query(const AttentionBatch& batch, const Tile& tile) const {
  const KvShape& shape = tile.table->pool().shape();
  const int group = batch.heads / shape.kv_heads;
  PageQuery query;
  query.tokens = 0;
  for (int i = 0; i < tile.pairs; ++i) {
    const int token = (tile.first_pair + i) / group;
    const int head = tile.kv_head * group + (tile.first_pair + i) % group;
    query.q[i] = batch.q + (std::size_t(tile.row + token) * batch.heads + head) * batch.q_parts *
                               shape.head_dim;
    query.visible[i] = (tile.position + token) % kBlockTokens + 1;
    query.tokens = std::max(query.tokens, query.visible[i]);
  }
  query.parts = batch.q_parts;
  query.scale = static_cast<float>(1.4426950408889634 / std::sqrt(shape.head_dim));
  return query;
}

void Attention::attend(const AttentionBatch& batch, const Task& task,
                       std::span<StateTile> totals) const {
  const Tile* tiles = &tiles_[task.first_tile];
  const BlockTable& table = *tiles->table;
  const int head_dim = table.pool().shape().head_dim;
  PageQuery own[kGroupTiles];     // of the own block
  SealedQuery past[kGroupTiles];  // of those before it, where every row sees every token
  StateTile states[kGroupTiles];
  for (int i = 0; i < task.tiles; ++i) {
    past[i].rows = own[i] = make_query(batch, tiles[i]);
    std::fill_n(past[i].rows.visible, tiles[i].pairs, kBlockTokens);
    past[i].rows.tokens = kBlockTokens;
    if (table.coded()) sealed_kernel_->prepare(past[i], tiles[i].pairs);
    totals[i].reset(tiles[i].pairs, head_dim);
  }
  // The page that is read after those of the tiles before `tile`.
  const auto next = [&](int block, int tile) -> std::span<const std::byte> {
    if (tile < task.tiles) return memory(tiles[tile], batch.layer, block);
    if (block < tiles->block) return memory(*tiles, batch.layer, block + 1);
    return {};
  };
  // Of tiles [first, end), which are of one KV head.
  const auto read_page = [&](int block, int first, int end) {
    const int kv_head = tiles[first].kv_head;
    if (block < tiles->block && !reads_rows(*tiles, block)) {
      sealed_kernel_->attend({{batch.layer, block * kBlockTokens},
                              table.sealed(block, batch.layer),
                              kv_head,
                              next(block, end)},
                             std::span(past).subspan(first, end - first),
                             std::span(states).subspan(first, end - first));
      return;
    }
    for (int i = first; i < end; ++i) {
      PageQuery& query = block < tiles->block ? past[i].rows : own[i];
      query.next = next(block, end);
      kernel_(query, table.page(block, batch.layer, kv_head), states[i]);
    }
  };
  // In the order of memory: a core reads a whole slab faster than pages from here and there.
  const auto read = [&](int block) {
    for (int first = 0, end = 0; first < task.tiles; first = end) {
      while (end < task.tiles && tiles[end].kv_head == tiles[first].kv_head) ++end;
      read_page(block, first, end);
    }
  };
  const bool apart = table.coded() && sealed_kernel_->in_own_basis();
  // Those blocks of a run that attention reads as rows, those that it reads sealed, or all.
  enum class Which : std::uint8_t { kRows, kSealed, kAll };
  const auto add = [&](int begin, int end, Which which) {
    bool some = false;
    for (int block = begin; block < end; ++block) {
      if (which != Which::kAll && reads_rows(*tiles, block) != (which == Which::kRows)) continue;
      for (int i = 0; i < task.tiles && !some; ++i) states[i].reset(tiles[i].pairs, head_dim);
      some = true;
      read(block);
    }
    for (int i = 0; i < task.tiles && some; ++i) {
      if (which == Which::kSealed) sealed_kernel_->leave_own_basis(states[i]);
      merge(states[i], totals[i]);
    }
  };
  const int own_run = run_count(tiles->block) - 1;
  for (int run = task.first_run; run < task.last_run; ++run) {
    const int begin = run == own_run ? tiles->block : run * kSplitBlocks;
    const int end = run == own_run ? begin + 1 : std::min(begin + kSplitBlocks, tiles->block);
    if (apart) {
      add(begin, end, Which::kRows);
      add(begin, end, Which::kSealed);
    } else {
      add(begin, end, Which::kAll);
    }
  }
}

void Attention::store(const AttentionBatch& batch, const Task& task,
                      const StateTile* totals) const {
  for (int i = 0; i < task.tiles; ++i) store(batch, tiles_[task.first_tile + i], totals[i]);
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
  const bool split = make_tasks();
  const auto task_count = static_cast<std::int64_t>(tasks_.size());
  if (!split) {
    parallel_for(task_count, [&](std::int64_t i) {
      StateTile totals[kGroupTiles];
      attend(batch, tasks_[i], totals);
      store(batch, tasks_[i], totals);
    });
    return;
  }
  const std::size_t states = tasks_.back().first_state + tasks_.back().tiles;
  if (states_.size() < states) states_.resize(states);
  parallel_for(task_count, [&](std::int64_t i) {
    attend(batch, tasks_[i], {&states_[tasks_[i].first_state], std::size_t(tasks_[i].tiles)});
  });
  for (std::size_t i = 0; i < tasks_.size();) {
    const Task& task = tasks_[i];
    StateTile* totals = &states_[task.first_state];
    for (++i; i < tasks_.size() && tasks_[i].first_tile == task.first_tile; ++i) {
      for (int tile = 0; tile < task.tiles; ++tile) {
        merge(states_[tasks_[i].first_state + tile], totals[tile]);
      }
    }
    store(batch, task, totals);
  }
}

}  // namespace kvlane
