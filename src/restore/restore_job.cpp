// The pipeline of one sequence.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "restore/hidden_extents.h"
#include "restore/restorer.h"

namespace kvlane {
// Some parts of an extent in a row, all of which are wanted.
struct RestoreJob::Read {
  PinnedExtent extent;
  RestoreSource source;
  int block;  // from the first that comes back on
  int part, parts;
  int users = 0;  // units that have not used it yet
  bool begun = false;
  std::vector<int> units;  // which wait for it

  int layer() const { return extent.head().layer + part; }
};

// A piece of one layer: what is computed at once.
struct RestoreJob::Unit {
  RestoreSource source;
  int layer;
  int block;               // the first, from the first that comes back on
  std::vector<int> reads;  // one for each block
  int missing = 0;         // that have not arrived
};

// What came from the store. It outlives the job while reads are under way, and their memory with
// it. Of `buffers` and `rooms` each read has one, when it is begun.
struct RestoreJob::Arrivals {
  std::mutex mutex;
  std::vector<std::pair<std::size_t, Status>> arrived;  // reads
  std::vector<PageBuffer> buffers;
  std::vector<DirectRooms::Room> rooms;  // of a device: nobody has checked what came there
  std::size_t under_way = 0;             // reads
  TimePoint since;                       // when the first of these was begun
  double busy = 0;                       // seconds in which there were such
  std::function<void()> wake;
};

RestoreJob::RestoreJob(Restorer& restorer, FoundState found, int first, BlockTable& table,
                       std::span<const std::int32_t> tokens)
    : restorer_(restorer),
      found_(std::move(found)),
      first_(first),
      table_(table),
      tokens_(tokens.begin(), tokens.end()),
      begun_(SteadyClock::now()),
      arrivals_(std::make_shared<Arrivals>()),
      slabs_before_(restorer.slab_landing_.given()),
      hidden_before_(restorer.hidden_landing_.given()),
      blocks_(found_.decision.blocks) {
  arrivals_->wake = restorer.wake_;
}

// Blocks of a job that is given up may be others' at once: nothing lands there any more.
RestoreJob::~RestoreJob() {
  if (!over_) (void)finish_landing();
}

Status RestoreJob::plan_reads() {
  for (int block = 0; block < std::ssize(found_.blocks); ++block) {
    add_reads(found_.blocks[block].hidden, RestoreSource::kHidden, block);
    add_reads(found_.blocks[block].slabs, RestoreSource::kSlabs, block);
  }
  found_.blocks.clear();
  std::stable_sort(reads_.begin(), reads_.end(), [](const Read& a, const Read& b) {
    return std::pair(a.layer(), a.block / kPieceBlocks) <
           std::pair(b.layer(), b.block / kPieceBlocks);
  });
  for (std::size_t i = 0; i < reads_.size(); ++i) line_of(reads_[i]).reads.push_back(i);
  add_units();
  add_shared();
  for (const Unit& unit : units_) {
    if (is_elsewhere(unit)) continue;
    if (std::find(unit.reads.begin(), unit.reads.end(), -1) != unit.reads.end()) {
      return not_found("layer " + std::to_string(unit.layer) +
                       " is to come back from what the store does not have");
    }
  }
  for (const Read& read : reads_) {
    buffer_each_ =
        std::max(buffer_each_, extent_read_bytes(read.extent.head(), read.part, read.parts));
  }
  if (buffer_each_ > 0) {
    buffers_max_ =
        std::max<std::size_t>(restorer_.options_.buffer_bytes / buffer_each_, 2 * kPieceBlocks);
  }
  arrivals_->buffers.resize(reads_.size());
  arrivals_->rooms.resize(reads_.size());
  return begin_reads(false);
}

// Those that are not computed from tokens.
LayerRun RestoreJob::layers_to_read() const {
  const LayerRun layers = restorer_.layers_;
  const int first = std::max(layers.first, found_.decision.recomputed);
  return {first, layers.first + layers.count - first};
}

// Runs of parts in an extent whose layers come from this source.
void RestoreJob::add_reads(const std::vector<PinnedExtent>& extents, RestoreSource source,
                           int block) {
  const LayerRun layers = layers_to_read();
  for (const PinnedExtent& extent : extents) {
    const ExtentHead& head = extent.head();
    const auto wanted = [&](int part) {
      const int layer = head.layer + part;
      return layer >= layers.first && layer < layers.first + layers.count &&
             found_.decision.sources[layer] == source &&
             (source == RestoreSource::kSlabs || !restorer_.rank_rows_ ||
              restorer_.rank_rows_->stores(layer));
    };
    for (int part = 0; part < head.layers(); ++part) {
      if (!wanted(part)) continue;
      int end = part + 1;
      while (end < head.layers() && wanted(end)) ++end;
      reads_.push_back({extent, source, block, part, end - part, 0, false, {}});
      part = end - 1;
    }
  }
}

// Every layer that is not computed from tokens, in pieces.
void RestoreJob::add_units() {
  const RestoreDecision& decision = found_.decision;
  const LayerRun layers = layers_to_read();
  const int pieces = (blocks_ + kPieceBlocks - 1) / kPieceBlocks;
  const auto index = [&](int layer, int piece) { return (layer - layers.first) * pieces + piece; };
  for (int layer = layers.first; layer < layers.first + layers.count; ++layer) {
    for (int piece = 0; piece < pieces; ++piece) {
      const int block = piece * kPieceBlocks;
      const int blocks = std::min(kPieceBlocks, blocks_ - block);
      units_.push_back({decision.sources[layer], layer, block, std::vector<int>(blocks, -1), 0});
    }
  }
  for (std::size_t i = 0; i < reads_.size(); ++i) {
    Read& read = reads_[i];
    for (int layer = read.layer(); layer < read.layer() + read.parts; ++layer) {
      const int unit = index(layer, read.block / kPieceBlocks);
      units_[unit].reads[read.block % kPieceBlocks] = static_cast<int>(i);
      ++units_[unit].missing;
      ++read.users;
      read.units.push_back(unit);
    }
  }
}

// Hidden states that another rank of the stage reads.
bool RestoreJob::is_elsewhere(const Unit& unit) const {
  return restorer_.rank_rows_ && unit.source == RestoreSource::kHidden &&
         !restorer_.rank_rows_->stores(unit.layer);
}

// The same list in all ranks of a stage.
void RestoreJob::add_shared() {
  if (!restorer_.rank_rows_) return;
  std::vector<int> layers;
  for (const Unit& unit : units_) {
    if (unit.source == RestoreSource::kHidden && unit.block == 0) layers.push_back(unit.layer);
  }
  for (const int layer : restorer_.rank_rows_->in_turns(layers)) {
    for (std::size_t i = 0; i < units_.size(); ++i) {
      if (units_[i].layer == layer) shared_.push_back(static_cast<int>(i));
    }
  }
}

std::size_t RestoreJob::rows_ready() const {
  std::size_t ready = shared_done_;
  while (ready < shared_.size() && units_[shared_[ready]].missing == 0) ++ready;
  return ready;
}

RestoreJob::Line& RestoreJob::line_of(const Read& read) {
  return read.source == RestoreSource::kHidden ? hidden_ : slabs_;
}

// Null: everything is begun.
RestoreJob::Line* RestoreJob::next_line() {
  if (hidden_.over()) return slabs_.over() ? nullptr : &slabs_;
  return slabs_.over() || hidden_.buffers < buffers_max_ / 2 ? &hidden_ : &slabs_;
}

// As many as there are buffers for; one more where nothing would ever move otherwise.
Status RestoreJob::begin_reads(bool beyond_budget) {
  std::vector<ExtentRead> batch;
  std::vector<std::size_t> numbers;
  while (Line* const line = next_line()) {
    const std::size_t number = line->reads[line->next];
    Read& read = reads_[number];
    // What nobody wants any more.
    if (read.block >= blocks_) {
      ++line->next;
      arrive(read);
      continue;
    }
    const std::size_t used = hidden_.buffers + slabs_.buffers;
    if (used >= buffers_max_ && !std::exchange(beyond_budget, false)) break;
    Result<ExtentRead> wanted = memory_for(number);
    if (!wanted.ok()) {
      if (under_way_ == 0) return wanted.status();
      break;  // those under way will give theirs back
    }
    times_.bytes += static_cast<double>(wanted->memory.size());
    batch.push_back(std::move(*wanted));
    numbers.push_back(number);
    read.begun = true;
    ++line->buffers;
    ++line->next;
    ++under_way_;
  }
  if (batch.empty()) return {};
  {
    const std::lock_guard lock(arrivals_->mutex);
    if (arrivals_->under_way == 0) arrivals_->since = SteadyClock::now();
    arrivals_->under_way += batch.size();
  }
  from_memory_ +=
      restorer_.store_.read(std::move(batch), [arrivals = arrivals_, numbers = std::move(numbers)](
                                                  std::size_t index, const Status& status) {
        {
          const std::lock_guard lock(arrivals->mutex);
          arrivals->arrived.emplace_back(numbers[index], status);
          if (--arrivals->under_way == 0) arrivals->busy += seconds_since(arrivals->since);
        }
        arrivals->wake();
      });
  return {};
}

// A room of the device where the read may go there directly and one is free, else a buffer.
Result<ExtentRead> RestoreJob::memory_for(std::size_t number) {
  const Read& read = reads_[number];
  const ExtentHead& head = read.extent.head();
  const std::size_t bytes = extent_read_bytes(head, read.part, read.parts);
  ExtentRead wanted{read.extent, read.part, read.parts, {}};
  DirectLanding* const direct = restorer_.direct_.get();
  if (direct != nullptr && read.source == RestoreSource::kSlabs &&
      DirectLanding::takes(restorer_.kind_, head, read.part, read.parts) &&
      restorer_.store_.reads_to_device(read.extent)) {
    arrivals_->rooms[number] = direct->rooms().take(bytes);
    wanted.memory = arrivals_->rooms[number].memory();
    wanted.unchecked_on_device = is_direct(read);
    if (wanted.unchecked_on_device) return wanted;
  }
  KVLANE_ASSIGN(PageBuffer buffer, restorer_.take_buffer(buffer_each_));
  wanted.memory = {buffer.data(), bytes};
  arrivals_->buffers[number] = std::move(buffer);
  return wanted;
}

bool RestoreJob::is_direct(const Read& read) const {
  return bool(arrivals_->rooms[&read - reads_.data()]);
}

void RestoreJob::take_arrivals() {
  std::vector<std::pair<std::size_t, Status>> arrived;
  {
    const std::lock_guard lock(arrivals_->mutex);
    std::swap(arrived, arrivals_->arrived);
  }
  for (const auto& [number, status] : arrived) {
    Read& read = reads_[number];
    --under_way_;
    if (!status.ok()) lose(read.block, status);
    arrive(read);
  }
}

// Slabs are decoded in no time, and then their buffers can be read into again.
void RestoreJob::arrive(const Read& read) {
  for (const int unit : read.units) {
    if (--units_[unit].missing > 0) continue;
    if (read.source == RestoreSource::kSlabs) {
      ready_.push_front(unit);
    } else if (!restorer_.rank_rows_) {
      ready_.push_back(unit);
    }
  }
}

// This block and those behind it do not come back.
void RestoreJob::lose(int block, const Status& why) {
  if (block >= blocks_) return;
  blocks_ = block;
  status_ = why;
}

RestoreJob::Progress RestoreJob::advance(std::size_t rows_allowed) {
  if (over_) return Progress::kOver;
  take_arrivals();
  const bool shared_over = shared_done_ == shared_.size();
  const int end = (first_ + blocks_) * kBlockTokens;
  const bool more_tokens =
      found_.decision.recomputed > 0 && first_ * kBlockTokens + recomputed_tokens_ < end;
  if (!shared_over && shared_done_ < rows_allowed) {
    // Whatever was lost here: the others take part.
    project_shared(units_[shared_[shared_done_++]]);
  } else if (!ready_.empty()) {
    const int unit = ready_.front();
    ready_.pop_front();
    compute(units_[unit]);
  } else if (more_tokens) {
    recompute_piece();
  } else if (shared_over && (blocks_ == 0 || (under_way_ == 0 && next_line() == nullptr))) {
    return this->end();
  } else if (under_way_ > 0 || rows_ready() > shared_done_) {
    return Progress::kWaiting;
  }
  // Where nothing is under way, the buffers are all with units that wait for other reads.
  const bool stuck = under_way_ == 0 && ready_.empty() && !more_tokens &&
                     (shared_over || rows_ready() == shared_done_);
  if (const Status status = begin_reads(stuck); !status.ok()) lose(0, status);
  return Progress::kWorked;
}

void RestoreJob::compute(const Unit& unit) {
  const int blocks = std::min(static_cast<int>(unit.reads.size()), blocks_ - unit.block);
  if (blocks > 0) {
    const ScopedTimer timer(unit.source == RestoreSource::kHidden ? times_.busy.project
                                                                  : times_.busy.decode);
    if (unit.source == RestoreSource::kHidden) {
      project(unit, blocks);
    } else {
      decode(unit, blocks);
    }
  }
  for (const int read : unit.reads) release(reads_[read]);
}

ByteView RestoreJob::stored_bytes(const Read& read, int layer) const {
  const ExtentHead& head = read.extent.head();
  const ExtentPart& part = head.parts[layer - head.layer];
  const std::size_t at = std::size_t{part.page - head.parts[read.part].page} * kExtentPageBytes;
  const std::size_t number = &read - reads_.data();
  const std::byte* const memory = is_direct(read) ? arrivals_->rooms[number].memory().data()
                                                  : arrivals_->buffers[number].data();
  return {memory + at, part.bytes()};
}

void RestoreJob::decode(const Unit& unit, int blocks) {
  std::vector<int> stored, arrived;
  for (int i = 0; i < blocks; ++i) {
    (is_direct(reads_[unit.reads[i]]) ? arrived : stored).push_back(i);
  }
  std::vector<Status> verdicts(blocks);
  Status status = land_stored(unit, stored, verdicts);
  if (status.ok()) status = land_arrived(unit, arrived, verdicts);
  if (!status.ok()) {
    lose(unit.block, status);
    return;
  }
  for (int i = blocks - 1; i >= 0; --i) {
    if (verdicts[i].ok()) continue;
    const Read& read = reads_[unit.reads[i]];
    if (is_direct(read)) {
      restorer_.store_.damaged(read.extent);
    } else {
      restorer_.store_.forget(read.extent);
    }
    lose(unit.block + i, verdicts[i]);
  }
}

// `which` of the unit's blocks, whose verdicts go to their places.
Status RestoreJob::land_stored(const Unit& unit, std::span<const int> which,
                               std::span<Status> verdicts) {
  std::vector<StoredSlab> slabs;
  for (const int i : which) {
    const Read& read = reads_[unit.reads[i]];
    const ExtentHead& head = read.extent.head();
    const ExtentPart& part = head.parts[unit.layer - head.layer];
    const ByteView stored = stored_bytes(read, unit.layer);
    const int block = first_ + unit.block + i;
    slabs.push_back({head.codec,
                     {stored.first(part.k_bytes), stored.subspan(part.k_bytes, part.v_bytes)},
                     block,
                     table_.id(block)});
  }
  if (slabs.empty()) return {};
  std::vector<Status> decoded(slabs.size());
  KVLANE_TRY(restorer_.slab_landing_.land(table_.pool(), unit.layer, slabs, std::span(decoded)));
  for (std::size_t i = 0; i < which.size(); ++i) verdicts[which[i]] = std::move(decoded[i]);
  return {};
}

// The same of those that nobody has checked yet.
Status RestoreJob::land_arrived(const Unit& unit, std::span<const int> which,
                                std::span<Status> verdicts) {
  std::vector<ArrivedSlab> slabs;
  for (const int i : which) {
    const Read& read = reads_[unit.reads[i]];
    const ExtentHead& head = read.extent.head();
    slabs.push_back({stored_bytes(read, unit.layer).data(), &head.parts[unit.layer - head.layer],
                     table_.id(first_ + unit.block + i)});
  }
  if (slabs.empty()) return {};
  std::vector<Status> checked(slabs.size());
  KVLANE_TRY(restorer_.direct_->land(restorer_.kind_, table_.pool(), unit.layer, slabs,
                                     std::span(checked)));
  for (std::size_t i = 0; i < which.size(); ++i) verdicts[which[i]] = std::move(checked[i]);
  return {};
}

// Rows of neighbouring blocks that are stored alike in one product.
void RestoreJob::project(const Unit& unit, int blocks) {
  const Model& model = restorer_.model_;
  const auto format_of = [&](int i) {
    return *stored_hidden_format(reads_[unit.reads[i]].extent.head(), model);
  };
  for (int i = 0; i < blocks;) {
    const HiddenFormat format = format_of(i);
    std::vector<ByteView> rows;
    const int begin = i;
    for (; i < blocks && format_of(i).exact() == format.exact(); ++i) {
      rows.push_back(stored_bytes(reads_[unit.reads[i]], unit.layer));
    }
    const int count = (i - begin) * kBlockTokens;
    const int first = (first_ + unit.block + begin) * kBlockTokens;
    const RestoreSpan span{&table_, static_cast<int>(tokens_.size()), first, count};
    if (const Status status =
            restorer_.hidden_landing_.land(span, unit.layer, format.values(), rows);
        !status.ok()) {
      lose(unit.block + begin, status);
      return;
    }
  }
}

// A piece that all ranks project, with zeros for what is lost.
void RestoreJob::project_shared(const Unit& unit) {
  const ScopedTimer timer(times_.busy.project);
  const Model& model = restorer_.model_;
  const int blocks = static_cast<int>(unit.reads.size());
  HiddenFormat::Values values = HiddenFormat::Values::kExact;
  std::vector<ByteView> stored;
  if (!is_elsewhere(unit)) {
    for (int i = 0; i < blocks; ++i) {
      const Read& read = reads_[unit.reads[i]];
      values = stored_hidden_format(read.extent.head(), model)->values();
      const bool there = read.begun && unit.block + i < blocks_;
      stored.push_back(there ? stored_bytes(read, unit.layer) : ByteView());
    }
  }
  const int count = blocks * kBlockTokens;
  const RestoreSpan span{&table_, static_cast<int>(tokens_.size()),
                         (first_ + unit.block) * kBlockTokens, count};
  const auto rows = restorer_.rank_rows_->share(unit.layer, values, stored, count);
  Status status = rows.status();
  if (status.ok()) {
    status =
        restorer_.hidden_landing_.land(span, unit.layer, HiddenFormat::Values::kExact, {&*rows, 1});
  }
  if (!status.ok()) lose(unit.block, status);
  for (const int read : unit.reads) {
    if (read >= 0) release(reads_[read]);
  }
}

void RestoreJob::release(Read& read) {
  if (--read.users > 0 || !read.begun) return;
  const std::size_t number = &read - reads_.data();
  if (is_direct(read)) {
    arrivals_->rooms[number] = {};
  } else {
    restorer_.give_back(std::move(arrivals_->buffers[number]));
  }
  --line_of(read).buffers;
}

void RestoreJob::recompute_piece() {
  const ScopedTimer timer(times_.busy.recompute);
  const int at = first_ * kBlockTokens + recomputed_tokens_;
  const bool whole = restorer_.model_.part().whole();
  const int most = whole ? restorer_.options_.pass_rows_max : kRestorePieceTokens;
  const int count = std::min(
      {kRestorePieceTokens, most, found_.decision.blocks * kBlockTokens - recomputed_tokens_});
  const std::span<const std::int32_t> tokens = std::span(tokens_).subspan(at, count);
  Status status;
  if (whole) {
    const ForwardSpan span{&table_, tokens, 0};
    PassHooks hooks;
    hooks.kv_layers = found_.decision.recomputed;
    status = restorer_.forward_.run({&span, 1}, hooks);
  } else {
    status = embed_piece(at, tokens);
  }
  if (!status.ok()) lose(recomputed_tokens_ / kBlockTokens, status);
  recomputed_tokens_ += count;
}

// Of a model that ranks compute: a pass would want all of them.
Status RestoreJob::embed_piece(int first, std::span<const std::int32_t> tokens) {
  if (found_.decision.recomputed > 1) {
    return unsupported("ranks bring no more layers back from tokens than the first");
  }
  const int count = static_cast<int>(tokens.size());
  return restorer_.hidden_landing_.land_embedded(
      {&table_, static_cast<int>(tokens_.size()), first, count}, tokens);
}

Status RestoreJob::finish_landing() {
  Status slabs, hidden;
  {
    const ScopedTimer timer(times_.busy.decode);
    slabs = restorer_.slab_landing_.finish(slabs_before_);
  }
  {
    const ScopedTimer timer(times_.busy.project);
    hidden = restorer_.hidden_landing_.finish(hidden_before_);
  }
  return slabs.ok() ? hidden : slabs;
}

RestoreJob::Progress RestoreJob::end() {
  if (const Status status = finish_landing(); !status.ok()) lose(0, status);
  const int end = (first_ + blocks_) * kBlockTokens;
  if (table_.tokens() < end) table_.set_tokens(end);
  times_.total = seconds_since(begun_);
  {
    const std::lock_guard lock(arrivals_->mutex);
    times_.busy.read = arrivals_->busy;
  }
  if (status_.ok()) restorer_.learn(*this);
  over_ = true;
  return Progress::kOver;
}

}  // namespace kvlane
