// Cuts a batch into tiles and runs, and puts the states together.
// SPDX-License-Identifier: Apache-2.0
#include "attention/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "attention/prefetch.h"
#include "attention/sealed_kernel.h"
#include "base/bf16.h"
#include "base/clock.h"
#include "cpu/parallel.h"

namespace kvlane {
namespace {

// Sealed blocks come in runs of kSplitBlocks; the own block is a run by itself, the last one.
int run_count(int own_block) { return (own_block + kSplitBlocks - 1) / kSplitBlocks + 1; }

// The first token that one at `position` sees.
int first_seen(int position, int window) {
  return window == 0 ? 0 : std::max(0, position - window + 1);
}

int kv_heads_read(const AttentionBatch& batch, const BlockTable& table) {
  return batch.kv_heads == 0 ? table.pool().shape().kv_heads : batch.kv_heads;
}

// Query heads of a KV head.
int group_of(const AttentionBatch& batch, const BlockTable& table) {
  return batch.heads / kv_heads_read(batch, table);
}

}  // namespace

Attention::Attention(Isa isa, const KvFormat* format)
    : kernel_(page_kernel(isa)),
      format_(format),
      sealed_kernel_(format == nullptr ? nullptr : sealed_kernel(*format, isa)) {}

Attention::~Attention() = default;

void Attention::make_tiles(const AttentionBatch& batch) {
  tiles_.clear();
  for (const AttentionSpan& span : batch.spans) {
    const int kv_heads = kv_heads_read(batch, *span.table);
    const int group = group_of(batch, *span.table);
    for (int done = 0; done < span.rows;) {
      const int block = (span.position + done) / kBlockTokens;
      const int tokens =
          std::min(span.rows - done, (block + 1) * kBlockTokens - span.position - done);
      const int first_block = first_seen(span.position + done, batch.window) / kBlockTokens;
      for (int i = 0; i < kv_heads; ++i) {
        const int kv_head = batch.first_kv_head + i;
        for (int pair = 0; pair < tokens * group; pair += kTileRows) {
          tiles_.push_back({span.table, kv_head, done * group + pair,
                            std::min(kTileRows, tokens * group - pair), span.position,
                            span.first_row, block, span.position + span.rows, first_block});
        }
      }
      done += tokens;
    }
  }
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

// What a task costs, in no unit: for each query row, what is read of the blocks. Pages of heads can
// differ in width.
std::int64_t Attention::work_of(const Task& task, int layer) const {
  const Tile& first = tiles_[task.first_tile];
  const bool own = task.last_run == run_count(first.block);
  const std::int64_t blocks = (own ? first.block + 1 : task.last_run * kSplitBlocks) -
                              std::max(task.first_run * kSplitBlocks, first.first_block);
  std::int64_t bytes = 0;
  for (int i = 0; i < task.tiles; ++i) {
    const Tile& tile = tiles_[task.first_tile + i];
    const std::size_t page = tile.table->coded() ? format_->page_place(layer, tile.kv_head).bytes
                                                 : tile.table->pool().shape().page_bytes();
    bytes += static_cast<std::int64_t>(page) * tile.pairs;
  }
  return std::max<std::int64_t>(blocks, 1) * bytes;
}

// Whether a tile's runs are more than one task.
bool Attention::make_tasks(int layer) {
  tasks_.clear();
  const int threads = parallel_threads();
  const auto tiles_all = static_cast<int>(tiles_.size());
  // Tiles enough for all threads: leave them whole and keep their states in registers and caches.
  // Else every run is a task of its own. Both ways merge the same states in the same order.
  const bool split = threads > 1 && tiles_all < kGroupTiles * threads;
  const auto first_run = [&](int tile) {
    const Tile& t = tiles_[tile];
    return t.first_block == t.block ? run_count(t.block) - 1 : t.first_block / kSplitBlocks;
  };
  const auto parts = [&](int tile) {
    const int runs = run_count(tiles_[tile].block) - first_run(tile);
    return split && runs >= 3 ? runs : 1;
  };
  int parts_all = 0;
  for (int tile = 0; tile < tiles_all; ++tile) parts_all += parts(tile);
  // Twelve tasks a thread, or one that ends late is waited for.
  const int most =
      threads == 1 ? kGroupTiles : std::clamp(parts_all / (12 * threads), 1, kGroupTiles);
  int states = 0;
  for (int tile = 0; tile < tiles_all;) {
    const int tiles = tiles_together(tile, most);
    const int runs = run_count(tiles_[tile].block);
    const int step = (runs - first_run(tile)) / parts(tile);
    for (int run = first_run(tile); run < runs; run += step) {
      Task& task = tasks_.emplace_back(Task{tile, tiles, run, run + step, states, 0});
      task.work = work_of(task, layer);
      states += tiles;
    }
    tile += tiles;
  }
  // Threads take the next task when they are free, and long ones first, so that none starts one
  // when the others are done. That is the plan of plan/work_balance.h, made while it is carried
  // out: threads of a CPU do not all get on equally fast.
  longest_first_.resize(tasks_.size());
  std::iota(longest_first_.begin(), longest_first_.end(), 0);
  std::stable_sort(longest_first_.begin(), longest_first_.end(),
                   [this](int a, int b) { return tasks_[a].work > tasks_[b].work; });
  return split;
}

// Whether the tile's rows see a block as rows, or as what is made of these.
bool Attention::reads_rows(const Tile& tile, int block) const {
  if (!tile.table->coded()) return true;
  const bool own_is_complete = block == tile.block && tile.end / kBlockTokens > block;
  if (own_is_complete && format_->own_block().sealed) return false;
  return format_->window().reads_rows(block, tile.block);
}

// What reading the tile's page of a block means: its rows, or its part of the sealed slab.
std::span<const std::byte> Attention::memory(const Tile& tile, int layer, int block) const {
  const BlockTable& table = *tile.table;
  const KvShape& shape = table.pool().shape();
  if (reads_rows(tile, block)) {
    return {reinterpret_cast<const std::byte*>(table.page(block, layer, tile.kv_head)),
            shape.page_bytes()};
  }
  const PagePlace page = format_->page_place(layer, tile.kv_head);
  return {table.sealed(block, layer) + page.offset, page.bytes};
}

PageQuery Attention::make_query(const AttentionBatch& batch, const Tile& tile) const {
  const KvShape& shape = tile.table->pool().shape();
  const int group = group_of(batch, *tile.table);
  const int first_head = (tile.kv_head - batch.first_kv_head) * group;
  PageQuery query;
  query.tokens = 0;
  for (int i = 0; i < tile.pairs; ++i) {
    const int token = (tile.first_pair + i) / group;
    const int head = first_head + (tile.first_pair + i) % group;
    query.q[i] = batch.q + (std::size_t(tile.row + token) * batch.heads + head) * batch.q_parts *
                               shape.head_dim;
    query.visible[i] = (tile.position + token) % kBlockTokens + 1;
    query.tokens = std::max(query.tokens, query.visible[i]);
  }
  query.parts = batch.q_parts;
  query.part_stride = query.key_dim = shape.head_dim;
  query.scale = static_cast<float>(1.4426950408889634 / std::sqrt(shape.head_dim));
  return query;
}

// One task under way: reads its blocks for all its tiles.
class Attention::Reading {
 public:
  // cppcheck-suppress uninitMemberVar  ; 64 KB of room for a page, written before it is read
  Reading(const Attention& attention, const AttentionBatch& batch, const Task& task)
      : attention_(attention),
        task_(task),
        tiles_(&attention.tiles_[task.first_tile]),
        table_(*tiles_->table),
        layer_(batch.layer),
        group_(group_of(batch, table_)),
        window_(batch.window),
        apart_(table_.coded() && attention.sealed_kernel_->in_own_basis()),
        codes_own_(table_.coded() && attention.format_->own_block().coded) {
    for (int i = 0; i < task.tiles; ++i) {
      past_[i].rows = own_[i] = attention.make_query(batch, tiles_[i]);
      std::fill_n(past_[i].rows.visible, tiles_[i].pairs, kBlockTokens);
      past_[i].rows.tokens = kBlockTokens;
      if (!table_.coded()) continue;
      attention.sealed_kernel_->prepare(layer_, tiles_[i].kv_head, tiles_[i].pairs, past_[i]);
    }
  }

  // Adds the tokens of a run to the states in `totals`.
  void add_run(int run, std::span<StateTile> totals) {
    const bool own = run == run_count(tiles_->block) - 1;
    const int first = own ? tiles_->block : run * kSplitBlocks;
    const int begin = std::max(first, tiles_->first_block);
    const int end = own ? begin + 1 : std::min(first + kSplitBlocks, tiles_->block);
    begun_ = false;
    if (apart_) {
      // One state of a run, whoever takes it: rows go on where sealed pages have left off.
      read(begin, end, Which::kSealed);
      for (int i = 0; i < task_.tiles && begun_; ++i) {
        attention_.sealed_kernel_->leave_own_basis(states_[i]);
      }
      read(begin, end, Which::kRows);
    } else {
      read(begin, end, Which::kAll);
    }
    for (int i = 0; i < task_.tiles; ++i) merge(states_[i], totals[i]);
  }

  double opening_seconds() const { return opening_seconds_; }

 private:
  // Those blocks that attention reads as rows, those that it reads sealed, or all.
  enum class Which : std::uint8_t { kRows, kSealed, kAll };

  void read(int begin, int end, Which which) {
    for (int block = begin; block < end; ++block) {
      const bool rows = attention_.reads_rows(*tiles_, block);
      const bool now = which == Which::kAll || rows == (which == Which::kRows);
      const bool edge = is_edge(block);
      if (!now && !(edge && which == Which::kRows)) continue;
      if (!std::exchange(begun_, true)) begin_states(which == Which::kSealed);
      if (edge) {
        read_edge(block, rows, which, now);
      } else {
        rows ? read_rows(block) : gather_sealed(block);
      }
    }
    flush();
  }

  // The first token of a block that a row sees: 0 ... kBlockTokens.
  int first_of(int tile, int pair, int block) const {
    const Tile& t = tiles_[tile];
    const int position = t.position + (t.first_pair + pair) / group_;
    return std::clamp(first_seen(position, window_) - block * kBlockTokens, 0, int{kBlockTokens});
  }
  // Whether some row's window begins behind a block's first token.
  bool is_edge(int block) const {
    for (int i = 0; window_ > 0 && i < task_.tiles; ++i) {
      if (first_of(i, tiles_[i].pairs - 1, block) > 0) return true;
    }
    return false;
  }

  // A block that does not lie in the window of every row. Rows that see all of it read it as any
  // other, since their bits must not depend on company: the rest is read with them, and forgotten.
  // Those that see a part read that part as rows, each by itself.
  void read_edge(int block, bool rows, Which which, bool now) {
    flush();
    if (now) {
      if (before_ == nullptr) before_ = std::make_unique<std::array<StateTile, kGroupTiles>>();
      std::copy_n(states_.begin(), task_.tiles, before_->begin());
      rows ? read_rows(block) : gather_sealed(block);
      flush();
    }
    for (int i = 0; i < task_.tiles; ++i) {
      const std::uint16_t* page = nullptr;
      for (int pair = 0; pair < tiles_[i].pairs; ++pair) {
        const int first = first_of(i, pair, block);
        if (first == 0) continue;
        if (now) put_row((*before_)[i], pair, states_[i], pair);
        if (first == kBlockTokens || which == Which::kSealed) continue;
        if (page == nullptr) page = page_of_rows(block, rows, tiles_[i].kv_head);
        read_part(page, first, i, pair);
      }
    }
  }

  static void put_row(const StateTile& from, int from_row, StateTile& to, int to_row) {
    to.max[to_row] = from.max[from_row];
    to.sum[to_row] = from.sum[from_row];
    std::copy_n(from.out + from_row * from.head_dim, from.head_dim, to.out + to_row * to.head_dim);
  }

  const std::uint16_t* page_of_rows(int block, bool rows, int kv_head) {
    part_first_ = -1;
    if (rows) return table_.page(block, layer_, kv_head);
    const TimePoint start = SteadyClock::now();
    attention_.format_->open_page({layer_, block * kBlockTokens}, table_.sealed(block, layer_),
                                  kv_head, opened_);
    opening_seconds_ += seconds_since(start);
    return opened_;
  }

  // The tokens of a page from `first` on, for one row: moved to the front, where kernels look.
  void read_part(const std::uint16_t* page, int first, int i, int pair) {
    const int dim = table_.pool().shape().head_dim;
    const int tokens = kBlockTokens - first;
    // The query heads of a group share a token's part.
    if (std::exchange(part_first_, first) != first) {
      for (const int half : {0, kBlockTokens}) {
        std::copy_n(page + (half + first) * dim, tokens * dim, part_ + half * dim);
      }
    }
    PageQuery query = past_[i].rows;
    query.q[0] = query.q[pair];
    query.visible[0] = query.tokens = tokens;
    query.next = {};
    one_.rows = 1;
    one_.head_dim = dim;
    put_row(states_[i], pair, one_, 0);
    attention_.kernel_(query, part_, one_);
    put_row(one_, 0, states_[i], pair);
  }

  void begin_states(bool sealed) {
    for (int i = 0; i < task_.tiles; ++i) {
      const int dim = sealed ? attention_.sealed_kernel_->value_dim(layer_, tiles_[i].kv_head)
                             : table_.pool().shape().head_dim;
      states_[i].reset(tiles_[i].pairs, dim);
    }
  }

  // Blocks are read in the order of memory, all KV heads of one before the next: a core reads a
  // whole slab faster than pages from here and there.
  void read_rows(int block) {
    flush();
    const bool own = block == tiles_->block;
    for (int i = 0; i < task_.tiles; ++i) {
      PageQuery& query = own ? own_[i] : past_[i].rows;
      query.next = memory_ahead(block, i, 1);
      if (own && codes_own_) {
        read_coded(query, i);
      } else {
        attention_.kernel_(query, table_.page(block, layer_, tiles_[i].kv_head), states_[i]);
      }
    }
  }

  // The own block as codes of its rows would have it.
  void read_coded(const PageQuery& query, int tile) {
    const TimePoint start = SteadyClock::now();
    alignas(64) std::uint16_t page[2 * kBlockTokens * kTileHeadDimMax];
    const int first = tiles_->block * kBlockTokens;
    attention_.format_->own_page({layer_, first}, table_.rows(tiles_->block, layer_),
                                 tiles_[tile].kv_head,
                                 std::min(tiles_->end - first, int{kBlockTokens}), page);
    opening_seconds_ += seconds_since(start);
    attention_.kernel_(query, page, states_[tile]);
  }

  void gather_sealed(int block) {
    if (items_count_ + task_.tiles > kSealedItemsMax) flush();
    const SealedKernel& kernel = *attention_.sealed_kernel_;
    if (!std::exchange(any_sealed_, true)) {
      // No item asks for the pages between the first one and the one that this asks for.
      for (int i = 1; i < kernel.pages_ahead(tiles_->pairs); ++i) {
        Prefetch(memory_ahead(block, 0, i)).rest();
      }
    }
    for (int i = 0; i < task_.tiles; ++i) {
      items_[items_count_++] = {{layer_, block * kBlockTokens},
                                table_.sealed(block, layer_),
                                tiles_[i].kv_head,
                                memory_ahead(block, i, kernel.pages_ahead(tiles_[i].pairs)),
                                &past_[i],
                                &states_[i],
                                block == tiles_->block ? own_[i].visible : nullptr};
    }
  }

  void flush() {
    if (items_count_ > 0) {
      opening_seconds_ += attention_.sealed_kernel_->attend(std::span(items_).first(items_count_));
    }
    items_count_ = 0;
  }

  // The memory that is read `pages` pages after this tile's page of a block. Tiles may share a
  // page.
  std::span<const std::byte> memory_ahead(int block, int tile, int pages) const {
    for (; pages > 0; --pages) {
      const int kv_head = tiles_[tile].kv_head;
      while (tile < task_.tiles && tiles_[tile].kv_head == kv_head) ++tile;
      if (tile < task_.tiles) continue;
      tile = 0;
      if (++block > tiles_->block) return {};
    }
    return attention_.memory(tiles_[tile], layer_, block);
  }

  const Attention& attention_;
  const Task& task_;
  const Tile* const tiles_;
  const BlockTable& table_;
  const int layer_;
  const int group_;  // query heads of a KV head
  const int window_;
  const bool apart_;  // states of rows and of sealed pages may not meet as they are
  const bool codes_own_;
  PageQuery own_[kGroupTiles];     // of the own block
  SealedQuery past_[kGroupTiles];  // of those before it, where every row sees every token
  std::array<StateTile, kGroupTiles> states_;      // of a run
  bool begun_ = false;                             // whether anything was added to them
  bool any_sealed_ = false;                        // whether a sealed page was gathered
  std::array<SealedItem, kSealedItemsMax> items_;  // sealed pages that are to be read
  int items_count_ = 0;
  double opening_seconds_ = 0;
  // Of blocks at the edge of a window: states before them, a page that was opened, a part of one,
  // and a row's state.
  std::unique_ptr<std::array<StateTile, kGroupTiles>> before_;
  alignas(64) std::uint16_t opened_[2 * kBlockTokens * kTileHeadDimMax];
  alignas(64) std::uint16_t part_[2 * kBlockTokens * kTileHeadDimMax];
  int part_first_ = -1;
  StateTile one_;
};

void Attention::attend(const AttentionBatch& batch, Task& task, std::span<StateTile> totals) const {
  Reading reading(*this, batch, task);
  const int head_dim = tiles_[task.first_tile].table->pool().shape().head_dim;
  for (int i = 0; i < task.tiles; ++i) {
    totals[i].reset(tiles_[task.first_tile + i].pairs, head_dim);
  }
  for (int run = task.first_run; run < task.last_run; ++run) reading.add_run(run, totals);
  task.opening_seconds = reading.opening_seconds();
}

void Attention::store(const AttentionBatch& batch, const Task& task,
                      const StateTile* totals) const {
  for (int i = 0; i < task.tiles; ++i) store(batch, tiles_[task.first_tile + i], totals[i]);
}

void Attention::store(const AttentionBatch& batch, const Tile& tile, const StateTile& total) const {
  const KvShape& shape = tile.table->pool().shape();
  const int group = group_of(batch, *tile.table);
  const int first_head = (tile.kv_head - batch.first_kv_head) * group;
  for (int i = 0; i < tile.pairs; ++i) {
    const int token = (tile.first_pair + i) / group;
    const int head = first_head + (tile.first_pair + i) % group;
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
  const TimePoint start = SteadyClock::now();
  make_tiles(batch);
  const bool in_parts = make_tasks(batch.layer);
  attend_all(batch, in_parts);
  if (in_parts) merge_parts(batch);
  const double seconds = seconds_since(start);
  double opening = 0;
  double working = 0;
  for (const Task& task : tasks_) {
    opening += task.opening_seconds;
    working += task.seconds;
  }
  opening_seconds_ = opening / parallel_threads();
  thread_use_ = seconds > 0 ? working / (seconds * parallel_threads()) : 1;
}

void Attention::attend_all(const AttentionBatch& batch, bool in_parts) {
  if (in_parts) {
    const std::size_t states = tasks_.back().first_state + tasks_.back().tiles;
    if (states_.size() < states) states_.resize(states);
  }
  parallel_for(static_cast<std::int64_t>(tasks_.size()), [&](std::int64_t i) {
    const TimePoint start = SteadyClock::now();
    Task& task = tasks_[longest_first_[i]];
    if (in_parts) {
      attend(batch, task, {&states_[task.first_state], std::size_t(task.tiles)});
    } else {
      StateTile totals[kGroupTiles];
      attend(batch, task, totals);
      store(batch, task, totals);
    }
    task.seconds = seconds_since(start);
  });
}

// Tiles that are several tasks: each has left states, which merge in the order of blocks.
void Attention::merge_parts(const AttentionBatch& batch) {
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
