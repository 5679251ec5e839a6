// Attention of a batch of query rows over the blocks of their sequences, one layer at a time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/page_kernel.h"
#include "cache/block_pool.h"
#include "cpu/memory.h"
#include "format/element.h"
#include "quant/kv_format.h"

namespace kvlane {

class SealedKernel;

// Blocks of one partial state: 16 blocks are 1,024 tokens. Fixed, because the places where states
// are cut decide the bits of the result.
inline constexpr int kSplitBlocks = 16;

// Consecutive rows of one sequence in the batch. K and V of all of them are already in the blocks.
struct AttentionSpan {
  const BlockTable* table;
  int position;  // of the first row
  int rows;
  int first_row;  // in `q` and `out`
};

struct AttentionBatch {
  int layer;
  int heads;  // query heads; a multiple of the KV heads that are read
  std::span<const AttentionSpan> spans;
  const std::uint16_t* q;  // [rows][heads][q_parts][head_dim], BF16, RoPE applied; see PageQuery
  int q_parts;
  ElementType out_type;  // kBf16 or kF32
  void* out;             // [rows][heads * head_dim]
  int window = 0;        // a row sees so many tokens, its own included; 0: all. At least a block
  // The KV heads that are read, where blocks have more of them than that; 0 heads: all.
  int first_kv_head = 0;
  int kv_heads = 0;
};

// Thread-compatible; keeps its scratch memory between calls.
class Attention {
 public:
  // For tables of caches in 16 bits, or of coded caches in `format`, which outlives this.
  explicit Attention(Isa isa, const KvFormat* format = nullptr);
  ~Attention();

  // Each row sees the tokens of its sequence, or of its window, up to and including its own: its
  // own block and those that the format's window names as rows, all others as sealed slabs (and the
  // own block as KvFormat::own_block() says, if that is something else). A sealed block of which it
  // sees a part is opened for it. Blocks before its own are read in runs of kSplitBlocks, its own
  // block by itself; the states merge in that order.
  void run(const AttentionBatch& batch);

  // Of the last run(), the seconds that it took to open sealed pages: the mean of its threads.
  double opening_seconds() const { return opening_seconds_; }
  // Of the last run(), the share of its threads' time in which they attended.
  double thread_use() const { return thread_use_; }

 private:
  // Most tiles of a task: their states stay in an L2 cache.
  static constexpr int kGroupTiles = 8;

  // Up to kTileRows (token, query head) pairs of one KV head whose tokens share a block.
  struct Tile {
    const BlockTable* table;
    int kv_head;
    int first_pair;  // index of (token in span, head in group) pairs
    int pairs;
    int position;     // of the span's first row
    int row;          // of the span's first row
    int block;        // that the tokens lie in
    int end;          // of the sequence, this batch included
    int first_block;  // that any row of the batch in this block sees
  };
  // Part of the work of tiles that read the same blocks: runs [first_run, last_run), of which the
  // tiles' last is their own block.
  struct Task {
    int first_tile;
    int tiles;
    int first_run;
    int last_run;
    int first_state;  // in `states_`, when tiles are split
    std::int64_t work;
    double opening_seconds = 0;
    double seconds = 0;  // all that it took
  };
  class Reading;

  void make_tiles(const AttentionBatch& batch);
  bool make_tasks(int layer);
  std::int64_t work_of(const Task& task, int layer) const;
  void attend_all(const AttentionBatch& batch, bool in_parts);
  int tiles_together(int first, int most) const;
  PageQuery make_query(const AttentionBatch& batch, const Tile& tile) const;
  bool reads_rows(const Tile& tile, int block) const;
  std::span<const std::byte> memory(const Tile& tile, int layer, int block) const;
  void attend(const AttentionBatch& batch, Task& task, std::span<StateTile> totals) const;
  void merge_parts(const AttentionBatch& batch);
  void store(const AttentionBatch& batch, const Task& task, const StateTile* totals) const;
  void store(const AttentionBatch& batch, const Tile& tile, const StateTile& total) const;

  const PageKernel kernel_;
  const KvFormat* const format_;
  const std::unique_ptr<const SealedKernel> sealed_kernel_;  // null without a format
  std::vector<Tile> tiles_;
  std::vector<Task> tasks_;
  std::vector<int> longest_first_;  // tasks, as threads take them
  double opening_seconds_ = 0;
  double thread_use_ = 1;
  std::vector<StateTile> states_;  // one for each tile of a task, when they are split over threads
};

}  // namespace kvlane
