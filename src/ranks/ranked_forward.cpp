// One letter to all ranks, then what they tell of it.
// SPDX-License-Identifier: Apache-2.0
#include "ranks/ranked_forward.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

namespace kvlane {
namespace {

Status check(std::span<const ForwardSpan> spans, const PassHooks& hooks) {
  if (hooks.on_input || hooks.on_queries || hooks.on_normed || hooks.on_kept ||
      hooks.before_attention || hooks.kv_layers) {
    return unsupported("a model that ranks compute shows nothing on its way");
  }
  for (const ForwardSpan& span : spans) {
    if (span.sparse != nullptr) return unsupported("ranks do not evict tokens");
  }
  return {};
}

// Of a pass that failed: ranks that lost another one know no more than that.
Status first_cause(std::span<const std::optional<Bytes>> ends) {
  Status cause;
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    if (!ends[rank]) continue;
    KVLANE_ASSIGN(const PassEnd end, decode_pass_end(*ends[rank]));
    const bool knows_more = cause.ok() || cause.code() == Code::kUnavailable;
    if (!end.status.ok() && knows_more) {
      cause = end.status.with_context("rank " + std::to_string(rank));
    }
  }
  return cause;
}

}  // namespace

std::unique_ptr<ForwardPass> RankGroup::forward(const Model& model) {
  return std::make_unique<RankedForward>(*this, model.whole_config().vocab);
}

Result<Pass> RankedForward::describe(std::span<const ForwardSpan> spans) {
  Pass pass;
  for (const ForwardSpan& span : spans) {
    BlockTable& table = *span.table;
    const int count = static_cast<int>(span.tokens.size());
    KVLANE_TRY(table.open_rows(table.tokens() + count));
    PassSpan& told = pass.spans.emplace_back();
    told.tokens_before = table.tokens();
    told.gone = table.gone();
    told.sight = table.sight();
    told.saved = span.saved;
    told.logits = span.logits;
    told.tokens.assign(span.tokens.begin(), span.tokens.end());
    for (int block = 0; block < table.blocks(); ++block) {
      told.blocks.push_back(table.id(block));
      if (table.coded()) told.rows.push_back(table.rows_id(block));
    }
  }
  return pass;
}

Status RankedForward::run(std::span<const ForwardSpan> spans, const PassHooks& hooks) {
  times_ = {};
  const ScopedTimer timer(times_.total);
  KVLANE_TRY(check(spans, hooks));
  KVLANE_ASSIGN(Pass pass, describe(spans));
  std::size_t rows = 0;
  for (const ForwardSpan& span : spans) rows += span.logits;
  {
    const std::lock_guard lock(group_.mutex_);
    KVLANE_TRY(group_.lost_);
    pass.number = group_.running_.number + 1;
    group_.running_ = {pass.number, std::vector<int>(group_.all()), {}};
    group_.running_.ends.resize(group_.all());
  }
  KVLANE_TRY(group_.send_to_all(encode_pass(pass)));
  const Status waited = await(hooks);
  KVLANE_TRY(take_ends(rows, waited));
  for (const ForwardSpan& span : spans) {
    span.table->set_tokens(span.table->tokens() + static_cast<int>(span.tokens.size()));
  }
  return {};
}

// Until all ranks have ended the pass, and tells of layers meanwhile, in their order.
Status RankedForward::await(const PassHooks& hooks) {
  std::unique_lock lock(group_.mutex_);
  for (int layer = 0; layer < group_.shape_.layers; ++layer) {
    // Ranks that fail tell of no more layers.
    KVLANE_TRY(
        group_.wait_until(lock, [&] { return group_.is_final(layer) || group_.has_ended(); }));
    if (!group_.is_final(layer)) break;
    if (!hooks.on_layer) continue;
    lock.unlock();
    hooks.on_layer(layer, nullptr);
    lock.lock();
  }
  return group_.wait_until(lock, [&] { return group_.has_ended(); });
}

// Times of stages add up; ranks of a stage work at once.
Status RankedForward::take_ends(std::size_t rows, const Status& waited) {
  std::vector<std::optional<Bytes>> ends;
  {
    const std::lock_guard lock(group_.mutex_);
    ends = std::exchange(group_.running_.ends, {});
  }
  KVLANE_TRY(first_cause(ends));
  KVLANE_TRY(waited);
  logits_.resize(rows * vocab_);
  RankGroup::StateFigures figures;
  const double share = 1.0 / group_.ranks();
  const int tells = group_.all() - group_.ranks();
  for (int rank = 0; rank < group_.all(); ++rank) {
    KVLANE_ASSIGN(const PassEnd end, decode_pass_end(*ends[rank]));
    times_.gemm += end.times.gemm * share;
    times_.attention += end.times.attention * share;
    times_.dequantise += end.times.dequantise * share;
    times_.quantise += end.times.quantise * share;
    figures.save_failures = std::max(figures.save_failures, end.save_failures);
    figures.hidden_tokens_lost = std::max(figures.hidden_tokens_lost, end.hidden_tokens_lost);
    if (rank != tells) continue;
    if (end.logits.size() != logits_.size() * sizeof(float)) {
      return corrupt("a rank sent another number of logits");
    }
    if (rows > 0) std::memcpy(logits_.data(), end.logits.data(), end.logits.size());
  }
  const std::lock_guard lock(group_.mutex_);
  group_.state_figures_ = figures;
  return {};
}

std::span<float> RankedForward::logits(int index) const {
  return {logits_.data() + index * vocab_, vocab_};
}

}  // namespace kvlane
