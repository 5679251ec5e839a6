// A ring of rows between two threads. Rows are counted as they go in and out; who is where follows
// from the counts.
// SPDX-License-Identifier: Apache-2.0
#include "restore/hidden_gatherer.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/clock.h"
#include "cpu/background.h"
#include "restore/hidden_extents.h"
#include "restore/missing_layers.h"

namespace kvlane {
namespace {

// One block's extents on their way to the disk.
struct Puts {
  explicit Puts(std::size_t count) : left(count) {}
  std::atomic<std::size_t> left;
  std::atomic<bool> failed = false;
};

// The pieces of a pass lie side by side where all of its sequences are saved.
void append_copy(std::byte* to, const std::byte* from, std::size_t bytes,
                 std::vector<RowsCopy>& copies) {
  if (!copies.empty()) {
    RowsCopy& last = copies.back();
    if (last.to + last.bytes == to && last.from + last.bytes == from) {
      last.bytes += bytes;
      return;
    }
  }
  copies.push_back({to, 0, from, 0, bytes, 1});
}

// Pieces that are alike and equally far apart are one copy: those of all layers of a pass.
std::vector<RowsCopy> joined(const std::vector<RowsCopy>& copies) {
  std::vector<RowsCopy> all;
  for (const RowsCopy& copy : copies) {
    if (!all.empty() && all.back().bytes == copy.bytes && copy.to > all.back().to &&
        copy.from > all.back().from) {
      RowsCopy& last = all.back();
      const auto to = static_cast<std::size_t>(copy.to - last.to);
      const auto from = static_cast<std::size_t>(copy.from - last.from);
      const bool second = last.rows == 1 && to >= copy.bytes && from >= copy.bytes;
      if (second || (to == last.rows * last.to_stride && from == last.rows * last.from_stride)) {
        if (second) {
          last.to_stride = to;
          last.from_stride = from;
        }
        ++last.rows;
        continue;
      }
    }
    all.push_back(copy);
  }
  return all;
}

}  // namespace

// Adds up seconds of the engine's thread.
class HiddenGatherer::CopyTimer {
 public:
  explicit CopyTimer(Counters& counters) : counters_(counters) {}
  CopyTimer(const CopyTimer&) = delete;
  CopyTimer& operator=(const CopyTimer&) = delete;
  ~CopyTimer() {
    counters_.copy_nanoseconds +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(SteadyClock::now() - start_).count();
  }

 private:
  Counters& counters_;
  const TimePoint start_ = SteadyClock::now();
};

HiddenGatherer::HiddenGatherer(Store& store, const Model& model,
                               const HiddenGathererOptions& options)
    : store_(store),
      model_(model),
      options_(options),
      row_bytes_(options.format.row_bytes()),
      ring_rows_(options.ring_bytes / row_bytes_),
      directories_(store.directories()) {}

Result<std::unique_ptr<HiddenGatherer>> HiddenGatherer::create(
    Store& store, const Model& model, const HiddenGathererOptions& options) {
  const int layers = model.whole_config().layers;
  if (options.layer_first < 0 || options.layer_first >= options.layer_last ||
      options.layer_last > layers) {
    return invalid_argument(
        "hidden states cannot be saved of layers " + std::to_string(options.layer_first) + " to " +
        std::to_string(options.layer_last - 1) + " of a model with " + std::to_string(layers));
  }
  std::unique_ptr<HiddenGatherer> gatherer(new HiddenGatherer(store, model, options));
  if (gatherer->ring_rows_ == 0) {
    return invalid_argument("a ring of " + std::to_string(options.ring_bytes) +
                            " bytes has no room for a row of hidden states of " +
                            std::to_string(gatherer->row_bytes_));
  }
  KVLANE_TRY(gatherer->cut_extents());
  KVLANE_TRY(gatherer->open_ring());
  gatherer->thread_ = std::thread([self = gatherer.get()] {
    work_in_background();
    self->run();
  });
  return gatherer;
}

Status HiddenGatherer::open_ring() {
  const std::size_t bytes = ring_rows_ * row_bytes_;
  Accelerator* const device = model_.device();
  if (device == nullptr) {
    KVLANE_ASSIGN(host_ring_, PageBuffer::allocate(bytes));
    ring_ = host_ring_.data();
    return {};
  }
  KVLANE_ASSIGN(pinned_ring_, device->allocate_host(bytes));
  ring_ = pinned_ring_.get();
  KVLANE_ASSIGN(lane_, device->lane());
  return {};
}

HiddenGatherer::~HiddenGatherer() {
  if (lane_ != nullptr) (void)lane_->finish();  // into the ring
  if (!thread_.joinable()) return;
  {
    const std::lock_guard guard(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

// Of each block the same.
Status HiddenGatherer::cut_extents() {
  const std::size_t part_bytes = kBlockTokens * options_.format.stored_bytes();
  if (part_bytes > kExtentBytesMax) {
    return invalid_argument("hidden states of " + std::to_string(part_bytes) +
                            " bytes a layer and block are larger than an extent");
  }
  const ExtentPart part{.k_bytes = static_cast<std::uint32_t>(part_bytes)};
  const std::vector<std::size_t> bytes(
      static_cast<std::size_t>(options_.layer_last - options_.layer_first), part.padded_bytes());
  for (const LayerRun& run : layer_runs(options_.layer_first, bytes, options_.extent_bytes_min)) {
    ExtentHead head{.model = model_.identity(), .layer = run.first};
    describe_hidden(options_.format, head);
    head.parts.assign(static_cast<std::size_t>(run.count), part);
    KVLANE_TRY(place_parts(head));
    KVLANE_TRY(build_extent_head(head).status());
    extents_.push_back(std::move(head));
  }
  return {};
}

std::shared_ptr<SavedRows> HiddenGatherer::begin() {
  return std::shared_ptr<SavedRows>(new SavedRows());
}

void HiddenGatherer::copy(int layer, std::span<const PassRows> rows, ByteView normed) {
  if (layer < options_.layer_first || layer >= options_.layer_last) return;
  const CopyTimer timer(*counters_);
  take(layer, rows, normed.data());
  send();
}

std::shared_ptr<const DeviceMark> HiddenGatherer::fetch(std::span<const PassRows> rows,
                                                        const KeptRows& kept) {
  const CopyTimer timer(*counters_);
  last_sent_ = nullptr;
  waited_ = lane_->wait(*kept.there);
  for (int i = 0; i < kept.layers; ++i) {
    const int layer = kept.layer + i;
    if (layer < options_.layer_first || layer >= options_.layer_last) continue;
    take(layer, rows, kept.rows + i * kept.layer_bytes);
  }
  send();
  return std::move(last_sent_);
}

void HiddenGatherer::take(int layer, std::span<const PassRows> rows, const std::byte* normed) {
  for (const PassRows& each : rows) {
    if (each.saved->lost() || each.count == 0) continue;
    if (!take_slots(layer, each, normed)) {
      each.saved->lost_ = true;
      told_.emplace_back(Drop{each.saved->shared_from_this()});
    }
  }
}

// False when the ring has no room for them, and will not have or is not to be waited for.
bool HiddenGatherer::take_slots(int layer, const PassRows& rows, const std::byte* normed) {
  const auto count = static_cast<std::uint64_t>(rows.count);
  if (count > ring_rows_) return false;
  std::uint64_t given_back = given_back_.load(std::memory_order_acquire);
  while (count > ring_rows_ - (taken_ - given_back)) {
    if (!options_.waits) return false;
    send();
    post();
    given_back_.wait(given_back, std::memory_order_acquire);
    given_back = given_back_.load(std::memory_order_acquire);
  }
  const std::uint64_t used = taken_ - given_back;
  const std::byte* from = normed + rows.row * row_bytes_;
  // In two pieces where the ring ends in between.
  for (int done = 0; done < rows.count;) {
    const std::size_t slot = taken_ % ring_rows_;
    const auto piece =
        static_cast<int>(std::min(static_cast<std::size_t>(rows.count - done), ring_rows_ - slot));
    append_copy(ring_ + slot * row_bytes_, from, piece * row_bytes_, copies_);
    told_.emplace_back(
        Rows{rows.saved->shared_from_this(), layer, rows.position + done, piece, slot, nullptr});
    taken_ += static_cast<std::uint64_t>(piece);
    from += piece * row_bytes_;
    done += piece;
  }
  counters_->rows += count;
  // Nobody else writes it.
  if (used + count > counters_->ring_rows_max) counters_->ring_rows_max = used + count;
  return true;
}

// To the ring, or on the way there.
Status HiddenGatherer::move() {
  if (lane_ == nullptr) {
    for (const RowsCopy& copy : copies_) std::memcpy(copy.to, copy.from, copy.bytes);
    return {};
  }
  KVLANE_TRY(waited_);
  for (const RowsCopy& copy : joined(copies_)) {
    KVLANE_TRY(copy.rows == 1 ? lane_->copy(copy.to, copy.from, copy.bytes)
                              : lane_->copy_rows(copy));
  }
  KVLANE_ASSIGN(last_sent_, lane_->mark());
  for (std::size_t i = sent_; i < told_.size(); ++i) {
    if (auto* const rows = std::get_if<Rows>(&told_[i])) rows->there = last_sent_;
  }
  return {};
}

void HiddenGatherer::send() {
  if (!copies_.empty() && !move().ok()) {
    (void)lane_->finish();  // what is on its way goes to slots that will be others'
    std::vector<Work> drops;
    for (std::size_t i = sent_; i < told_.size(); ++i) {
      const auto* const rows = std::get_if<Rows>(&told_[i]);
      if (rows == nullptr) continue;
      rows->saved->lost_ = true;
      drops.emplace_back(Drop{rows->saved});
    }
    told_.insert(told_.begin() + static_cast<std::ptrdiff_t>(sent_),
                 std::make_move_iterator(drops.begin()), std::make_move_iterator(drops.end()));
  }
  copies_.clear();
  sent_ = told_.size();
  // Rows of few tokens wait for more: waking the thread takes longer than copying them.
  if (taken_ - posted_ >= ring_rows_ / 16) post();
}

void HiddenGatherer::complete(SavedRows& saved, int block, const BlockName& name,
                              const BlockName& first_name) {
  if (saved.lost()) {
    counters_->tokens_lost += kBlockTokens;
    return;
  }
  told_.emplace_back(Complete{saved.shared_from_this(), block, name, first_name});
  post();
}

void HiddenGatherer::end(SavedRows& saved) {
  told_.emplace_back(Drop{saved.shared_from_this()});
  post();
}

void HiddenGatherer::post() {
  if (told_.empty()) return;
  {
    const std::lock_guard guard(mutex_);
    std::move(told_.begin(), told_.end(), std::back_inserter(queue_));
  }
  told_.clear();
  sent_ = 0;
  posted_ = taken_;
  changed_.notify_one();
}

void HiddenGatherer::flush() {
  std::unique_lock guard(mutex_);
  idle_.wait(guard, [this] { return queue_.empty() && !working_; });
}

void HiddenGatherer::run() {
  std::vector<Work> all;
  std::unique_lock guard(mutex_);
  for (;;) {
    changed_.wait(guard, [this] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) return;
    all.swap(queue_);
    working_ = true;
    guard.unlock();
    for (Work& work : all) perform(work);
    all.clear();
    guard.lock();
    working_ = false;
    idle_.notify_all();
  }
}

void HiddenGatherer::perform(Work& work) {
  if (const auto* const rows = std::get_if<Rows>(&work)) {
    gather(*rows);
    given_back_.fetch_add(static_cast<std::uint64_t>(rows->count), std::memory_order_release);
    if (options_.waits) given_back_.notify_one();
  } else if (const auto* const complete = std::get_if<Complete>(&work)) {
    put(*complete);
  } else {
    drop(*std::get<Drop>(work).saved);
  }
}

void HiddenGatherer::gather(const Rows& rows) {
  if (rows.there != nullptr && !rows.saved->dropped_ && !rows.there->reach().ok()) {
    rows.saved->lost_ = true;
    drop(*rows.saved);
  }
  for (int done = 0; done < rows.count && !rows.saved->dropped_;) {
    const int room = kBlockTokens - (rows.position + done) % kBlockTokens;
    const int count = std::min(room, rows.count - done);
    // No draft, or a row that 8 bits cannot hold.
    if (!gather_part(rows, done, count).ok()) {
      rows.saved->lost_ = true;
      drop(*rows.saved);
    }
    done += count;
  }
}

Result<ExtentDraft> HiddenGatherer::draft(const ExtentHead& head) {
  return options_.waits ? store_.wait_for_draft(head) : store_.draft(head);
}

// Rows of one block, to their places in its draft.
Status HiddenGatherer::gather_part(const Rows& rows, int done, int count) {
  const int position = rows.position + done;
  const int block = position / kBlockTokens;
  const int row = position % kBlockTokens;
  SavedRows::OpenBlock& open = rows.saved->open_[block];
  if (open.rows.empty()) {
    open.drafts.resize(extents_.size());
    open.rows.resize(static_cast<std::size_t>(options_.layer_last - options_.layer_first));
  }
  // Behind a gap the layer never becomes whole.
  int& gathered = open.rows[static_cast<std::size_t>(rows.layer - options_.layer_first)];
  if (gathered != row) return {};
  std::size_t extent = 0;
  while (!extents_[extent].holds(rows.layer)) ++extent;
  std::optional<ExtentDraft>& draft = open.drafts[extent];
  if (!draft) {
    ExtentHead head = extents_[extent];
    head.position = std::int64_t{block} * kBlockTokens;
    KVLANE_ASSIGN(draft, this->draft(head));
  }
  const std::span<std::byte> part = draft->part(rows.layer - extents_[extent].layer);
  const ByteView from(ring_ + (rows.slot + done) * row_bytes_, count * row_bytes_);
  KVLANE_TRY(
      options_.format.encode(from, count, part.data() + row * options_.format.stored_bytes()));
  gathered += count;
  return {};
}

// The drafts of a block; of one that the store has in part, with the layers that it lacks alone.
Result<std::vector<ExtentDraft>> HiddenGatherer::lacking(SavedRows::OpenBlock& block,
                                                         const BlockName& name) {
  std::vector<ExtentDraft> drafts;
  for (std::optional<ExtentDraft>& draft : block.drafts) {
    draft->set_name(name);
    const ExtentHead& head = draft->head();
    const auto missing = missing_layers(store_, head.key, {head.layer, head.layers()});
    const bool in_part =
        missing.size() > 1 || (missing.size() == 1 && missing[0].count < head.layers());
    if (!in_part) drafts.push_back(std::move(*draft));
    for (std::size_t i = 0; in_part && i < missing.size(); ++i) {
      KVLANE_ASSIGN(ExtentDraft part, part_of(*draft, missing[i]));
      drafts.push_back(std::move(part));
    }
  }
  return drafts;
}

Result<ExtentDraft> HiddenGatherer::part_of(const ExtentDraft& whole, LayerRun layers) {
  ExtentHead head = whole.head();
  const int skipped = layers.first - head.layer;
  const auto begin = head.parts.begin() + skipped;
  head.parts = {begin, begin + layers.count};
  head.layer = layers.first;
  KVLANE_ASSIGN(ExtentDraft draft, this->draft(head));
  for (int part = 0; part < layers.count; ++part) {
    const auto from = whole.part(skipped + part);
    std::memcpy(draft.part(part).data(), from.data(), from.size());
  }
  return draft;
}

void HiddenGatherer::put(const Complete& complete) {
  const auto found = complete.saved->open_.find(complete.block);
  const bool whole = found != complete.saved->open_.end() &&
                     std::all_of(found->second.rows.begin(), found->second.rows.end(),
                                 [](int rows) { return rows == kBlockTokens; });
  if (!whole) {
    counters_->tokens_lost += kBlockTokens;
  } else if (auto drafts = lacking(found->second, complete.name); !drafts.ok()) {
    counters_->tokens_lost += kBlockTokens;
  } else {
    const auto puts = std::make_shared<Puts>(drafts->size());
    for (ExtentDraft& draft : *drafts) {
      const int directory = extent_directory(complete.first_name, draft.head().layer,
                                             draft.head().position, directories_);
      store_.put(std::move(draft), directory, [puts, counters = counters_](const Status& status) {
        if (!status.ok()) puts->failed = true;
        if (--puts->left > 0) return;
        if (puts->failed) {
          counters->tokens_lost += kBlockTokens;
        } else {
          counters->blocks += 1;
        }
      });
    }
  }
  if (found != complete.saved->open_.end()) complete.saved->open_.erase(found);
}

void HiddenGatherer::drop(SavedRows& saved) {
  saved.dropped_ = true;
  saved.open_.clear();
}

HiddenGathererFigures HiddenGatherer::figures() const {
  return {.rows = counters_->rows,
          .bytes = counters_->rows * row_bytes_,
          .blocks = counters_->blocks,
          .tokens_lost = counters_->tokens_lost,
          .ring_bytes_used_max = counters_->ring_rows_max * row_bytes_,
          .copy_seconds = static_cast<double>(counters_->copy_nanoseconds) * 1e-9};
}

}  // namespace kvlane
