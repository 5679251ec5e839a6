// Attention of sequences that keep some tokens of their prompt only (cache/sparse_cache.h), and the
// scores by which these are chosen.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "attention/attention.h"
#include "attention/token_scores.h"
#include "cache/sparse_cache.h"

namespace kvlane {

// Consecutive rows of one such sequence in the batch.
struct SparseSpan {
  SparseCache* cache;
  const BlockTable* table;  // of the prompt; not read once that is over
  int position;             // of the first row
  int rows;
  int first_row;  // in `q` and `out`
};

// Immutable, thread-safe, but for the caches.
class SparseAttention {
 public:
  explicit SparseAttention(Isa isa) : kernel_(page_kernel(isa)), kernels_(score_kernels(isa)) {}

  // Adds to the scores of prompts how much these rows read every token. K of all of them is in the
  // blocks, and complete blocks of coded caches are sealed: a token is scored as attention reads
  // it. Query after query, so the bits of scores do not depend on chunks.
  void score(const AttentionBatch& batch, std::span<const SparseSpan> spans) const;

  // Attention of tokens behind prompts. kv: their rows [rows of the batch][kv_heads][K,
  // V][head_dim] in BF16, rotated as the cache has it. One token after the other enters each head's
  // slots, reads what is there, adds to scores, and one goes.
  void run(const AttentionBatch& batch, std::span<const SparseSpan> spans,
           const std::uint16_t* kv) const;

 private:
  void score_head(const AttentionBatch& batch, const SparseSpan& span, int kv_head) const;
  void run_head(const AttentionBatch& batch, const SparseSpan& span, int kv_head,
                const std::uint16_t* kv) const;
  void attend(const AttentionBatch& batch, const SparseSpan& span, int kv_head, int row) const;

  const PageKernel kernel_;
  const ScoreKernels& kernels_;
};

}  // namespace kvlane
