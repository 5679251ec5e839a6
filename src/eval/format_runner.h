// One sequence after another through a model whose KV cache is in one format.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "cache/block_pool.h"
#include "cache/sparse_cache.h"
#include "eval/eval_format.h"
#include "kvlane/status.h"
#include "model/forward.h"
#include "model/model.h"

namespace kvlane {

// Bytes of KV of one sequence, as they are at one moment.
struct CacheBytes {
  double sealed = 0;    // used by sealed slabs that attention reads as such
  double elements = 0;  // values of K and V in them
  // Where tokens were evicted: used by those that are left, and values of all tokens there were.
  double all = 0;  // those, and the rows of all other tokens
  double tokens = 0;

  CacheBytes& operator+=(const CacheBytes& other);
  // Of a value that is sealed, and of any; all metadata included. 0 without values.
  double bits_sealed() const { return elements > 0 ? 8 * sealed / elements : 0; }
  double bytes_per_token() const { return tokens > 0 ? all / tokens : 0; }
};

// Thread-compatible. The model outlives it.
class FormatRunner {
 public:
  // Sequences have at most `tokens_max` tokens.
  static Result<FormatRunner> create(const Model& model, EvalFormat format, int tokens_max);
  FormatRunner(FormatRunner&&) = default;

  // Most tokens of one append().
  static constexpr int kAppendMax = 512;

  // "bf16", or the format's name.
  const std::string& name() const { return name_; }
  int tokens() const { return is_sparse() ? sparse_->tokens() : table_->tokens(); }

  // The sequence's blocks, for who looks at what is in them.
  const BlockTable& table() const { return *table_; }

  // Forgets the sequence.
  void clear();
  // Says that the prompt is complete: where tokens are evicted, now is when. Not twice.
  Status end_prompt();
  // Appends at most kAppendMax tokens; logits(i) is then that of the i-th of the last `logits`
  // tokens. An error is about this sequence in this format, and leaves it as it was.
  Status append(std::span<const std::int32_t> tokens, int logits);
  std::span<const float> logits(int index) const { return forward_->logits(index); }

  CacheBytes bytes() const;

 private:
  FormatRunner() = default;
  bool is_sparse() const { return sparse_ && sparse_->evicted(); }

  std::string name_;
  std::shared_ptr<const KvFormat> format_;
  // Pools stay where they are when this moves: the table refers to them.
  std::unique_ptr<BlockPool> rows_;
  std::unique_ptr<BlockPool> sealed_;
  std::optional<BlockTable> table_;
  std::unique_ptr<SparseLayout> layout_;
  std::optional<SparseCache> sparse_;  // where tokens are evicted
  std::unique_ptr<Forward> forward_;
};

}  // namespace kvlane
