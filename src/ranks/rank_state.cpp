// As an engine's own state store (engine/local_state.cpp), but that the head says what and when.
// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_state.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "model/hidden_rows.h"
#include "quant/heads_together.h"
#include "restore/hidden_room.h"

namespace kvlane {
namespace {

// All layers of the model, the KV heads that this rank's slabs have.
KvShape shape_of(const Model& model, const KvFormat* format) {
  if (format != nullptr) return format->shape();
  KvShape shape = model.whole_config().kv_shape();
  shape.kv_heads = kv_heads_of(model.whole_config(), model.part()).count;
  return shape;
}

// Of layers first ... last - 1 those that a share has.
LayerRun common(int first, int last, Share share) {
  const int begin = std::max(first, share.first);
  return {begin, std::min(last, share.first + share.count) - begin};
}

}  // namespace

RankState::RankState(RankStateParts parts, const Plan& plan, Tell tell)
    : parts_(std::move(parts)),
      tell_(std::move(tell)),
      kind_(shape_of(parts_.model, parts_.format), parts_.format) {
  const ModelPart& part = parts_.model.part();
  const Share layers = layers_of(parts_.model.whole_config(), part);
  restorer_ = std::make_unique<Restorer>(
      parts_.model, kind_, *parts_.store, parts_.forward,
      RestorerOptions{.lossy = plan.state->int8,
                      .pass_rows_max = plan.rows_max,
                      .shards = shards(),
                      .shard = shard(),
                      .ranks = part.ranks > 1 ? parts_.exchange : nullptr,
                      .layers = {layers.first, layers.count}},
      [this] {
        if (!wake_told_.exchange(true)) (void)tell_(encode_wake());
      });
}

// Reads that are under way end with the store, and each of them calls what the restorer was given:
// so that goes before what it uses does.
RankState::~RankState() {
  jobs_.clear();
  streams_.clear();
  slabs_.reset();
  hidden_.reset();
  restorer_.reset();
  parts_.store.reset();
}

int RankState::shards() const {
  const bool whole = parts_.format != nullptr && codes_heads_together(*parts_.format);
  return whole ? 1 : parts_.model.part().ranks;
}

int RankState::shard() const { return shards() == 1 ? 0 : parts_.model.part().rank; }

Result<std::unique_ptr<RankState>> RankState::open(RankStateParts parts, const Plan& plan,
                                                   Tell tell) {
  if (parts.store == nullptr) {
    return invalid_argument("the head has a state store, and this rank has no --store");
  }
  const int layers = parts.model.whole_config().layers;
  const StatePlan& state = *plan.state;
  if (state.hidden_first > state.hidden_last || state.hidden_last > layers ||
      state.slabs_first > layers) {
    return corrupt("the head saves layers that the model does not have");
  }
  if (!state.codebooks.empty() && std::ssize(state.codebooks) != std::ptrdiff_t{2} * layers) {
    return corrupt("the head has codebooks of other layers than the model");
  }
  std::unique_ptr<RankState> opened(new RankState(std::move(parts), plan, std::move(tell)));
  if (state.slabs_first > 0 && !opened->makes_slabs()) {
    return corrupt("the head leaves out slabs, of which a rank can make none that are whole");
  }
  KVLANE_TRY(opened->open_savers(state, plan.rows_max));
  return opened;
}

Status RankState::open_savers(const StatePlan& plan, int rows_max) {
  const Model& model = parts_.model;
  const ModelConfig& whole = model.whole_config();
  KVLANE_ASSIGN(const Codec* const codec, find_codec(plan.codec, model.isa()));
  const LayerRun slabs = common(plan.slabs_first, whole.layers, layers_of(whole, model.part()));
  if (slabs.count > 0) {
    // The head sees to it that no more wait than may.
    SlabSaverOptions options{.model = model.identity(),
                             .layer_first = slabs.first,
                             .layer_last = slabs.first + slabs.count,
                             .shards = shards(),
                             .shard = shard(),
                             .bytes_max = std::numeric_limits<std::size_t>::max(),
                             .codebooks = plan.codebooks};
    slabs_ = std::make_unique<SlabSaver>(parts_.cache.blocks(), kind_, *codec, *parts_.store,
                                         std::move(options), [this](BlockId id) { on_saved(id); });
  }
  const LayerRun rows =
      common(plan.hidden_first, plan.hidden_last, stored_hidden_of(whole, model.part()));
  if (rows.count > 0) {
    const auto values = plan.int8 ? HiddenFormat::Values::kInt8 : HiddenFormat::Values::kExact;
    const HiddenFormat format(values, hidden_type(model), whole.hidden);
    KVLANE_ASSIGN(hidden_,
                  HiddenGatherer::create(
                      *parts_.store, model,
                      {.format = format,
                       .layer_first = rows.first,
                       .layer_last = rows.first + rows.count,
                       .ring_bytes = HiddenRoom::of(model, rows_max, rows.count).ring_bytes,
                       .waits = plan.waits}));
  }
  return {};
}

std::uint64_t RankState::save_failures() const {
  return slabs_ ? static_cast<std::uint64_t>(slabs_->failed()) : 0;
}

std::uint64_t RankState::hidden_tokens_lost() const {
  return hidden_ ? hidden_->figures().tokens_lost : 0;
}

// The thread of orders.

Status RankState::carry_out(LetterKind kind, ByteView letter) {
  switch (kind) {
    case LetterKind::kSave: {
      KVLANE_ASSIGN(const SaveOrder order, decode_save(letter));
      return save(order);
    }
    case LetterKind::kFind: {
      KVLANE_ASSIGN(const FindOrder order, decode_find(letter));
      return find(order);
    }
    default: {
      KVLANE_ASSIGN(const FindOrder order, decode_prefetch(letter));
      restorer_->prefetch(order.names, order.first, order.tokens);
      return {};
    }
  }
}

Status RankState::save(const SaveOrder& order) {
  if (order.block.id < 0 || order.block.id >= parts_.cache.blocks().blocks_total()) {
    return corrupt("the head saves a block that this rank does not have");
  }
  if (slabs_ == nullptr) return tell_(encode_reply({order.request, {}, {}}));
  {
    const std::lock_guard lock(mutex_);
    saving_[order.block.id].push_back(order.request);
  }
  slabs_->add(order.block);
  return {};
}

// The saver's thread. Blocks are saved in the order in which they were added.
void RankState::on_saved(BlockId block) {
  std::uint64_t request = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto saving = saving_.find(block);
    request = saving->second.front();
    saving->second.pop_front();
    if (saving->second.empty()) saving_.erase(saving);
  }
  // Where the head has gone there is nobody to be told.
  (void)tell_(encode_reply({request, {}, {}}));
}

Status RankState::find(const FindOrder& order) {
  FoundState found = restorer_->find(order.names, order.first, order.tokens);
  const Bytes stored =
      encode_stored({std::move(found.layers.hidden), std::move(found.layers.slabs)});
  return tell_(encode_reply({order.request, {}, stored}));
}

// The computing thread.

Status RankState::compute(LetterKind kind, ByteView letter) {
  switch (kind) {
    case LetterKind::kRestore: {
      KVLANE_ASSIGN(RestoreOrder order, decode_restore(letter));
      return restore(std::move(order));
    }
    case LetterKind::kAdvance: {
      KVLANE_ASSIGN(const AdvanceOrder order, decode_advance(letter));
      return advance(order);
    }
    case LetterKind::kForget: {
      KVLANE_ASSIGN(const std::uint64_t job, decode_forget(letter));
      jobs_.erase(job);
      return {};
    }
    case LetterKind::kComplete: {
      KVLANE_ASSIGN(const CompleteOrder order, decode_complete(letter));
      complete(order);
      return {};
    }
    case LetterKind::kEndRows: {
      KVLANE_ASSIGN(const std::uint64_t stream, decode_end_rows(letter));
      end_rows(stream);
      return {};
    }
    default: {
      KVLANE_ASSIGN(const std::uint64_t request, decode_flush(letter));
      flush();
      return tell_(encode_reply({request, {}, {}}));
    }
  }
}

bool RankState::begin_pass(const Pass& pass) {
  saved_rows_.clear();
  if (hidden_ == nullptr) return false;
  int row = 0;
  for (const PassSpan& span : pass.spans) {
    const int count = static_cast<int>(span.tokens.size());
    if (span.saved != 0) {
      auto& stream = streams_[span.saved];
      if (stream == nullptr) stream = hidden_->begin();
      saved_rows_.push_back({stream.get(), span.tokens_before, row, count});
    }
    row += count;
  }
  return !saved_rows_.empty();
}

void RankState::copy(int layer, ByteView normed) { hidden_->copy(layer, saved_rows_, normed); }

void RankState::complete(const CompleteOrder& order) {
  const auto stream = streams_.find(order.stream);
  if (stream == streams_.end()) return;  // this rank saves none
  hidden_->complete(*stream->second, order.block, order.name, order.first);
}

void RankState::end_rows(std::uint64_t stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return;
  hidden_->end(*found->second);
  streams_.erase(found);
}

void RankState::flush() {
  if (slabs_) slabs_->flush();
  if (hidden_) hidden_->flush();
  parts_.store->flush();
}

// What cannot begin is told when it is to advance.
Status RankState::restore(RestoreOrder order) {
  const std::uint64_t number = order.job;
  KVLANE_ASSIGN(std::unique_ptr<Job> job, begin(std::move(order)));
  if (!jobs_.emplace(number, std::move(job)).second) {
    return corrupt("the head begins a restore twice");
  }
  return {};
}

Result<std::unique_ptr<RankState::Job>> RankState::begin(RestoreOrder order) {
  const int end = order.first + order.count;
  if (std::ssize(order.sources) != kind_.shape().layers || order.count < 1 ||
      end > std::ssize(order.names) || end > std::ssize(order.blocks) ||
      std::ssize(order.tokens) != std::ptrdiff_t{end} * kBlockTokens ||
      end * kBlockTokens > parts_.model.context()) {
    return corrupt("the head orders a restore of blocks that there cannot be");
  }
  if (order.embedded && !makes_slabs()) {
    return corrupt("the head orders slabs of all heads from tokens");
  }
  KVLANE_ASSIGN(BlockTable table,
                parts_.cache.arriving_table(order.blocks, order.gone, order.first));
  RestoreDecision decision;
  decision.blocks = order.count;
  decision.recomputed = order.embedded ? 1 : 0;
  decision.sources = std::move(order.sources);
  auto job = std::make_unique<Job>(Job{std::move(table), nullptr, {}});
  FoundState found = restorer_->find_ordered(order.names, order.first, end * kBlockTokens + 1,
                                             std::move(decision));
  auto begun = restorer_->begin(std::move(found), order.first, job->table, order.tokens);
  if (begun.ok()) {
    job->job = std::move(*begun);
  } else {
    job->failed = begun.status();
  }
  return job;
}

Status RankState::advance(const AdvanceOrder& order) {
  const auto found = jobs_.find(order.job);
  if (found == jobs_.end()) return corrupt("the head goes on with a restore that has not begun");
  RestoreJob* const job = found->second->job.get();
  if (job == nullptr) return tell_(encode_reply({order.request, found->second->failed, {}}));
  wake_told_ = false;
  Advanced advanced;
  advanced.progress = job->advance(order.rows_allowed);
  advanced.rows_ready = job->rows_ready();
  advanced.blocks = job->blocks();
  advanced.status = job->status();
  advanced.busy = job->times().busy;
  advanced.bytes = job->times().bytes;
  return tell_(encode_reply({order.request, {}, encode_advanced(advanced)}));
}

}  // namespace kvlane
