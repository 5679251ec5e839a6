// Pools, a table and a forward pass for one sequence.
// SPDX-License-Identifier: Apache-2.0
#include "eval/format_runner.h"

#include <utility>

namespace kvlane {

CacheBytes& CacheBytes::operator+=(const CacheBytes& other) {
  sealed += other.sealed;
  elements += other.elements;
  all += other.all;
  tokens += other.tokens;
  return *this;
}

Result<FormatRunner> FormatRunner::create(const Model& model, EvalFormat evaluated,
                                          int tokens_max) {
  if (tokens_max > model.context()) {
    return invalid_argument("the model has a context of " + std::to_string(model.context()) +
                            " tokens, not " + std::to_string(tokens_max));
  }
  FormatRunner runner;
  const KvShape shape = model.config().kv_shape();
  const std::shared_ptr<const KvFormat>& format = evaluated.kv;
  int blocks = blocks_for(tokens_max);
  if (evaluated.eviction) {
    KVLANE_ASSIGN(SparseLayout layout, SparseLayout::create(shape, format.get()));
    runner.layout_ = std::make_unique<SparseLayout>(std::move(layout));
    runner.sparse_.emplace(*runner.layout_, *evaluated.eviction);
    // There is a moment when the prompt and what stays of it are both there.
    blocks += runner.sparse_->blocks_for_prompt(tokens_max);
  }
  const auto pool = [](Result<BlockPool> made, std::unique_ptr<BlockPool>& place) {
    if (made.ok()) place = std::make_unique<BlockPool>(std::move(*made));
    return made.status();
  };
  runner.name_ = evaluated.name();
  if (format) {
    // Rows of one append, of the open block, and of the window.
    const KvWindow window = format->window();
    const int rows = std::min(blocks, kAppendMax / kBlockTokens + 1 + window.sink + window.recent);
    KVLANE_TRY(pool(BlockPool::create(shape, rows * shape.block_bytes()), runner.rows_));
    const SlabSizes& sizes = format->slab_sizes();
    KVLANE_TRY(
        pool(BlockPool::create_sealed(shape, sizes, blocks * sizes.block_bytes()), runner.sealed_));
    runner.table_.emplace(*runner.sealed_, *runner.rows_, window);
  } else {
    KVLANE_TRY(pool(BlockPool::create(shape, blocks * shape.block_bytes()), runner.rows_));
    runner.table_.emplace(*runner.rows_);
  }
  KVLANE_ASSIGN(runner.forward_, Forward::create(model, kAppendMax, kAppendMax, format.get()));
  runner.format_ = format;
  return runner;
}

void FormatRunner::clear() {
  table_->clear();
  if (sparse_) sparse_->clear();
}

Status FormatRunner::end_prompt() { return sparse_ ? sparse_->evict(*table_) : Status(); }

Status FormatRunner::append(std::span<const std::int32_t> tokens, int logits) {
  if (!is_sparse()) {
    KVLANE_TRY(table_->grow(table_->tokens() + static_cast<int>(tokens.size())));
  }
  const ForwardSpan span{&*table_, tokens, logits, false, sparse_ ? &*sparse_ : nullptr};
  if (Status done = forward_->run({&span, 1}, {}); !done.ok()) return done.with_context(name_);
  return {};
}

CacheBytes FormatRunner::bytes() const {
  const KvShape& shape = table_->pool().shape();
  const double token_bytes = static_cast<double>(shape.block_bytes()) / kBlockTokens;
  CacheBytes bytes;
  bytes.tokens = tokens();
  if (is_sparse()) {
    bytes.sealed = bytes.all = static_cast<double>(sparse_->bytes_held());
    bytes.elements = bytes.tokens * token_bytes / 2;
    return bytes;
  }
  const int own = table_->tokens() / kBlockTokens;
  int sealed_blocks = 0;
  for (int block = 0; format_ && block < own; ++block) {
    if (format_->window().reads_rows(block, own)) continue;
    ++sealed_blocks;
    for (int layer = 0; layer < shape.layers; ++layer) {
      bytes.sealed += static_cast<double>(
          format_->used_bytes({layer, block * kBlockTokens}, table_->sealed(block, layer)));
    }
  }
  bytes.elements = sealed_blocks * static_cast<double>(shape.block_bytes()) / 2;
  bytes.all = bytes.sealed + token_bytes * (bytes.tokens - sealed_blocks * kBlockTokens);
  return bytes;
}

}  // namespace kvlane
