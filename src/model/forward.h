// The forward pass on the CPU.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "attention/sparse_attention.h"
#include "cache/block_pool.h"
#include "cpu/memory.h"
#include "kvlane/status.h"
#include "model/format_heads.h"
#include "model/forward_pass.h"
#include "model/key_rows.h"
#include "model/model.h"
#include "model/rank_exchange.h"
#include "ops/rotation.h"

namespace kvlane {

// Buffers of one engine for up to `rows_max` tokens a pass, and the pass itself. Thread-compatible.
// A sequence's rows have the same bits whatever else is in the batch and however its tokens are cut
// into passes.
class Forward final : public ForwardPass {
 public:
  // For tables of caches in 16 bits, or of coded caches in `format`, which outlives this. A model
  // that is a part of one is computed with the other ranks: `ranks`, which outlives this. Then
  // tables have this part's layers alone, and in these, as the format in all layers, this part's KV
  // heads, or all heads (make_rank_format(), quant/heads_together.h); layers have the numbers that
  // they have in the model. Spans are the same for all ranks, and logits are there (all of them) on
  // the ranks of the last stage. kInternal for a format of other heads.
  static Result<std::unique_ptr<Forward>> create(const Model& model, int rows_max, int logits_max,
                                                 const KvFormat* format = nullptr,
                                                 RankExchange* ranks = nullptr);

  Status run(std::span<const ForwardSpan> spans, const PassHooks& hooks) override;

  std::span<float> logits(int index) const override;
  const ForwardTimes& times() const override { return times_; }
  // Whether the ranks are still in step: the last pass has exchanged everything, even if it failed
  // (slabs that cannot be sealed are told at its end).
  bool in_step() const { return in_step_; }

 private:
  Forward(const Model& model, int rows_max, int logits_max, const KvFormat* format,
          RankExchange* ranks)
      : model_(model),
        format_(format),
        ranks_(ranks),
        first_layer_(layers_of(model.whole_config(), model.part()).first),
        whole_slabs_(has_heads_of_others(model, format)),
        first_head_(first_head_in_slabs(model, format)),
        attention_(model.isa(), format),
        sparse_attention_(model.isa()),
        rotate_rows_(rotation_kernel(model.isa())),
        key_rows_(model, format),
        rows_max_(rows_max),
        logits_max_(logits_max) {}

  Status allocate();
  Status place_rows(std::span<const ForwardSpan> spans);
  Status seal(int layer);
  Status enter(std::span<const ForwardSpan> spans);
  void embed(std::span<const ForwardSpan> spans);
  Status leave();
  Status project_qkv(const LayerWeights& layer, int index, const PassHooks& hooks);
  Status attention_block(const LayerWeights& layer, int index);
  Status ffn_block(const LayerWeights& layer);
  Status ffn_rows(const LayerWeights& layer, int first, int count);
  void norm(const NormWeights& weights, ElementType type);
  void add_product(float* residual, int rows);
  void activate(float* values, int ffn) const;
  Status project_logits();
  void write_qkv(const LayerWeights& layer, int index, int first_row, int count);
  Status gather_rows(int layer);
  void attend(int layer, ElementType out_type);
  struct RowMemory {
    std::uint16_t* k;
    std::uint16_t* v;
  };
  RowMemory row_memory(int row, int layer, int kv_head);
  void turn_queries(float* queries, int layer, int tokens, std::size_t stride);
  void store_query(float* head, std::uint16_t* parts) const;
  Status multiply(const Linear& linear, const void* x, float* y, int rows);
  Status multiply_and_gather(const Linear& linear, const void* x, float* y, int rows, int outputs);
  Status gather_wide(int rows, int own, int all, ElementType type);

  const Model& model_;
  const KvFormat* const format_;
  RankExchange* const ranks_;  // null: nobody else computes this model
  const int first_layer_;      // of the model, that is here
  const bool whole_slabs_;     // slabs have the heads of all ranks of the stage
  const int first_head_;       // of this part's KV heads in slabs
  Attention attention_;
  const SparseAttention sparse_attention_;
  const RotationKernel rotate_rows_;
  const KeyRows key_rows_;
  const int rows_max_;
  const int logits_max_;
  int q_parts_ = 1;          // see PageQuery
  int wide_rows_ = 0;        // that go through the widest products together
  double work_per_row_ = 0;  // multiplications in products of a layer
  int threads_ = 1;          // that a pass may use
  int rows_ = 0;
  ForwardTimes times_;

  // One entry a row: where it lies in its sequence. Without a table K and V go to `sparse_rows_`.
  struct Row {
    const BlockTable* table;
    int position;
  };
  std::vector<Row> row_places_;
  std::vector<AttentionSpan> attention_spans_;
  std::vector<SparseSpan> scored_spans_;  // of prompts whose tokens are scored
  std::vector<SparseSpan> sparse_spans_;  // behind such prompts
  // Where there are any, [rows of the pass][kv_heads][K, V][head_dim] in BF16.
  std::vector<std::uint16_t> sparse_rows_;
  std::vector<int> logits_rows_;  // those of the pass whose logits are wanted
  // Blocks of coded caches that this pass completes, and what sealing their slab of a layer gave.
  struct Seal {
    const BlockTable* table;
    int block;
    Status status;
  };
  std::vector<Seal> seals_;
  Status not_sealed_;  // of this pass, where ranks go on for the others' sake
  bool in_step_ = true;

  PageBuffer memory_;            // all that follows
  float* residual_ = nullptr;    // [rows][hidden]
  std::byte* normed_ = nullptr;  // [rows][hidden], input type of the products
  float* product_ = nullptr;     // [rows][hidden], [wide_rows_][widest product]; logits
  std::uint16_t* q_ = nullptr;   // [rows][heads][head_dim], BF16
  std::byte* wide_ = nullptr;  // [rows][heads * head_dim] or [wide_rows_][ffn], as `normed_`; K and
                               // V of all heads, like `sparse_rows_`, on their way to slabs
  // Where ranks compute together, what this one has of `wide_`, and of products' outputs.
  std::byte* own_wide_ = nullptr;
  float* own_product_ = nullptr;
};

}  // namespace kvlane
