// Joining, and orders that are answered. Passes: ranked_forward.cpp; slabs: rank_lane.cpp.
// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_group.h"

#include <sys/mman.h>

#include <algorithm>
#include <string>

#include "quant/heads_together.h"

namespace kvlane {
namespace {

// Without a word of any rank while one is asked for something. Layers of the largest models take
// minutes on slow machines; where nothing at all comes for so long, somebody hangs.
constexpr Seconds kSilenceMax{600};

}  // namespace

Result<PlaceRange> PlaceRange::reserve(std::size_t bytes) {
  PlaceRange places;
  if (bytes == 0) return places;
  void* const at =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    return exhausted("the system gives no addresses for " + std::to_string(bytes) +
                     " bytes of KV cache");
  }
  places.range_ = {static_cast<std::byte*>(at), bytes};
  return places;
}

PlaceRange::~PlaceRange() {
  if (!range_.empty()) ::munmap(range_.data(), range_.size());
}

Result<std::unique_ptr<RankGroup>> RankGroup::listen(std::unique_ptr<Network> network,
                                                     RankGroupOptions options) {
  std::unique_ptr<RankGroup> group(new RankGroup(std::move(options)));
  group->network_ = std::move(network);
  KVLANE_ASSIGN(group->address_,
                group->network_->listen(group->options_.bind,
                                        [raw = group.get()](std::shared_ptr<Link> link) {
                                          return raw->accept(std::move(link));
                                        }));
  return group;
}

// Ranks see their links end in order, and end.
RankGroup::~RankGroup() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
}

std::shared_ptr<LinkEvents> RankGroup::accept(std::shared_ptr<Link> link) {
  return RankLink::accept(
      *network_, options_.key, std::move(link),
      [this](RankLink& from, Bytes letter) { return on_letter(from, std::move(letter)); },
      [this](RankLink& from, const Status& why) { on_gone(from, why); });
}

// The network's thread.

Result<int> RankGroup::number_of(const RankLink& link) const {
  for (int rank = 0; rank < all(); ++rank) {
    if (members_[rank].link.get() == &link) return rank;
  }
  return corrupt("a rank sent something before it joined");
}

Status RankGroup::on_letter(RankLink& link, Bytes letter) {
  KVLANE_ASSIGN(const LetterKind kind, kind_of(letter));
  std::function<void()> then;
  std::unique_lock lock(mutex_);
  if (kind == LetterKind::kJoin) return on_join(link, letter);
  KVLANE_ASSIGN(const int rank, number_of(link));
  switch (kind) {
    case LetterKind::kReady: members_[rank].ready = true; break;
    case LetterKind::kLayer: {
      KVLANE_ASSIGN(const LayerDone done, decode_layer(letter));
      KVLANE_TRY(on_layer(rank, done));
      break;
    }
    case LetterKind::kEnd: {
      KVLANE_ASSIGN(const PassEnd end, decode_pass_end(letter));
      if (end.pass != running_.number || running_.ends.empty() || running_.ends[rank]) {
        return corrupt("a rank ended a pass that it does not compute");
      }
      running_.ends[rank] = std::move(letter);
      break;
    }
    case LetterKind::kReply: KVLANE_TRY(on_reply(std::move(letter), then)); break;
    case LetterKind::kWake: then = on_wake_; break;
    default: return corrupt("a rank sent a letter that is not for the head");
  }
  ++news_;
  changed_.notify_all();
  lock.unlock();
  if (then) then();
  return {};
}

// `then`: what is to be done without the lock.
Status RankGroup::on_reply(Bytes letter, std::function<void()>& then) {
  KVLANE_ASSIGN(const Reply reply, decode_reply(letter));
  const auto asked = answers_.find(reply.request);
  if (asked == answers_.end()) return corrupt("a rank answered what nobody asked");
  if (asked->second.later == nullptr) {
    asked->second = {true, std::move(letter)};
    return {};
  }
  const std::shared_ptr<Later> later = std::move(asked->second.later);
  answers_.erase(asked);
  if (later->first.ok()) later->first = reply.status;
  if (--later->left == 0) then = [later] { later->done(later->first); };
  return {};
}

// Each rank tells of its layers in order.
Status RankGroup::on_layer(int rank, const LayerDone& done) {
  const Share own = share_of(shape_.layers, stages(), rank / ranks());
  if (done.pass != running_.number || running_.ends.empty() || running_.ends[rank] ||
      running_.layers[rank] == own.count || done.layer != own.first + running_.layers[rank]) {
    return corrupt("a rank told of a layer that it does not compute");
  }
  ++running_.layers[rank];
  return {};
}

bool RankGroup::is_final(int layer) const {
  const int stage = stage_of(shape_.layers, stages(), layer);
  const int before = layer - share_of(shape_.layers, stages(), stage).first;
  const auto first = running_.layers.begin() + stage * ranks();
  return std::all_of(first, first + ranks(), [&](int told) { return told > before; });
}

bool RankGroup::has_ended() const {
  return std::ranges::all_of(running_.ends, [](const auto& end) { return end.has_value(); });
}

Status RankGroup::wait_until(std::unique_lock<std::mutex>& lock,
                             const std::function<bool()>& done) {
  const auto settled = [&] { return done() || !lost_.ok(); };
  for (;;) {
    const std::uint64_t heard = news_;
    if (changed_.wait_for(lock, kSilenceMax, settled)) return done() ? Status() : lost_;
    if (news_ != heard) continue;
    lock.unlock();
    lose(timed_out("no rank has said anything for " +
                   std::to_string(static_cast<int>(kSilenceMax.count())) + " seconds"));
    lock.lock();
  }
}

Status RankGroup::on_join(RankLink& link, ByteView letter) {
  KVLANE_ASSIGN(Join join, decode_join(letter));
  if (join.stages != options_.stages || join.ranks != options_.ranks || join.rank >= all()) {
    return invalid_argument("a rank of another layout came");
  }
  Member& member = members_[join.rank];
  if (member.link != nullptr) {
    return invalid_argument("rank " + std::to_string(join.rank) + " came twice");
  }
  member = {link.shared_from_this(), std::move(join), false};
  changed_.notify_all();
  return {};
}

void RankGroup::on_gone(const RankLink& link, const Status& why) {
  int rank = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto number = number_of(link);
    if (!number.ok()) return;  // a stranger, who was told
    rank = *number;
  }
  lose(unavailable("rank " + std::to_string(rank) + " has gone: " + why.message()));
}

void RankGroup::lose(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    if (ending_ || !lost_.ok()) return;
    lost_ = why;
    changed_.notify_all();
  }
  if (options_.on_lost) options_.on_lost(why);
}

// The engine's side.

template <class Done>
Status RankGroup::wait_while_alive(const Done& done, const char* what) {
  constexpr Seconds kPause{0.2};
  const TimePoint start = SteadyClock::now();
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kPause, [&] { return !lost_.ok() || done(); })) {
    lock.unlock();
    if (options_.alive) KVLANE_TRY(options_.alive());
    if (seconds_since(start) > options_.join_patience.count()) return timed_out(what);
    lock.lock();
  }
  return lost_;
}

Status RankGroup::wait_for_ranks(const Model& model) {
  KVLANE_TRY(wait_while_alive(
      [&] {
        return std::ranges::all_of(members_, [](const Member& m) { return m.link != nullptr; });
      },
      "not all ranks have joined in time"));
  for (const Member& member : members_) {
    if (member.join.model != model.identity()) {
      return invalid_argument("rank " + std::to_string(member.join.rank) +
                              " has another model than the head");
    }
  }
  return {};
}

Status RankGroup::prepare(const KvShape& shape, const KvFormat* format, Plan plan) {
  shape_ = shape;
  format_ = format;
  whole_slabs_ = format != nullptr && codes_heads_together(*format);
  sizes_ = format != nullptr ? format->slab_sizes() : SlabSizes(shape.layers, shape.slab_bytes());
  const SlabSizes& sizes = *sizes_;
  KVLANE_ASSIGN(blocks_, PlaceRange::reserve(plan.blocks * sizes.block_bytes()));
  KVLANE_ASSIGN(rows_, PlaceRange::reserve(plan.row_blocks * shape.block_bytes()));
  KVLANE_ASSIGN(arena_, PlaceRange::reserve(plan.arena_blocks * sizes.block_bytes()));
  for (const Member& member : members_) plan.ranks.push_back(member.join.address);
  KVLANE_TRY(send_to_all(encode_plan(plan)));
  return wait_while_alive(
      [&] { return std::ranges::all_of(members_, [](const Member& m) { return m.ready; }); },
      "not all ranks were ready in time");
}

Status RankGroup::send_to_all(ByteView letter) {
  for (const Member& member : members_) KVLANE_TRY(member.link->send(letter));
  return {};
}

Result<std::uint64_t> RankGroup::ask(int rank,
                                     const std::function<Bytes(std::uint64_t request)>& encode,
                                     std::shared_ptr<Later> later) {
  std::uint64_t request = 0;
  {
    const std::lock_guard lock(mutex_);
    KVLANE_TRY(lost_);
    request = next_request_++;
    answers_[request] = {false, {}, std::move(later)};
  }
  KVLANE_TRY(members_[rank].link->send(encode(request)));
  return request;
}

Result<Bytes> RankGroup::answer(std::uint64_t request) {
  std::unique_lock lock(mutex_);
  const Status waited = wait_until(lock, [&] { return answers_[request].there; });
  const Answer answer = std::move(answers_.extract(request).mapped());
  KVLANE_TRY(waited);
  KVLANE_ASSIGN(const Reply reply, decode_reply(answer.letter));
  KVLANE_TRY(reply.status);
  return answer.letter;
}

Result<std::vector<Bytes>> RankGroup::ask_all(const Encode& encode) {
  std::vector<std::uint64_t> requests;
  for (int rank = 0; rank < all(); ++rank) {
    KVLANE_ASSIGN(const std::uint64_t request,
                  ask(rank, [&](std::uint64_t number) { return encode(rank, number); }));
    requests.push_back(request);
  }
  std::vector<Bytes> brought;
  Status first;
  for (const std::uint64_t request : requests) {
    const auto letter = answer(request);
    if (!letter.ok()) {
      if (first.ok()) first = letter.status();
      continue;
    }
    const ByteView bytes = decode_reply(*letter)->bytes;
    brought.emplace_back(bytes.begin(), bytes.end());
  }
  KVLANE_TRY(first);
  return brought;
}

Status RankGroup::ask_all_later(const Encode& encode, std::function<void(const Status&)> done) {
  const auto later = std::make_shared<Later>(Later{all(), {}, std::move(done)});
  for (int rank = 0; rank < all(); ++rank) {
    KVLANE_TRY(ask(
                   rank, [&](std::uint64_t number) { return encode(rank, number); }, later)
                   .status());
  }
  return {};
}

void RankGroup::set_on_wake(std::function<void()> on_wake) {
  const std::lock_guard lock(mutex_);
  on_wake_ = std::move(on_wake);
}

RankGroup::StateFigures RankGroup::state_figures() const {
  const std::lock_guard lock(mutex_);
  return state_figures_;
}

std::span<std::byte> RankGroup::places(RankMemory memory) const {
  switch (memory) {
    case RankMemory::kBlocks: return blocks_.bytes();
    case RankMemory::kRows: return rows_.bytes();
    case RankMemory::kArena: return arena_.bytes();
  }
  return {};
}

Result<RankGroup::Place> RankGroup::place_of(const std::byte* at) const {
  const SlabSizes of_rows(shape_.layers, shape_.slab_bytes());
  for (const RankMemory memory : {RankMemory::kBlocks, RankMemory::kRows, RankMemory::kArena}) {
    const std::span<std::byte> range = places(memory);
    if (at < range.data() || at >= range.data() + range.size()) continue;
    const SlabSizes& sizes = memory == RankMemory::kRows ? of_rows : *sizes_;
    const std::size_t offset = at - range.data();
    const std::size_t in_block = offset % sizes.block_bytes();
    int layer = 0;
    while (sizes.offset(layer) < in_block) ++layer;
    if (sizes.offset(layer) != in_block) break;
    return Place{{memory, static_cast<BlockId>(offset / sizes.block_bytes())}, layer};
  }
  return internal_error("an address is no place of a slab");
}

PagePlace RankGroup::part_of(const Place& place, int rank) const {
  const Share heads =
      whole_slabs_ ? Share{0, shape_.kv_heads} : share_of(shape_.kv_heads, ranks(), rank);
  if (format_ == nullptr || place.block.memory == RankMemory::kRows) {
    return {heads.first * shape_.page_bytes(), heads.count * shape_.page_bytes()};
  }
  if (heads.count == shape_.kv_heads) return {0, format_->slab_bytes(place.layer)};
  const PagePlace first = format_->page_place(place.layer, heads.first);
  const PagePlace last = format_->page_place(place.layer, heads.first + heads.count - 1);
  return {first.offset, last.offset + last.bytes - first.offset};
}

// Where all have all, they take turns.
bool RankGroup::is_read(const Place& place, int rank) const {
  return !whole_slabs_ || place.block.block % ranks() == rank;
}

MemoryCopy RankGroup::copies() {
  return [this](std::byte* to, const std::byte* from, std::size_t bytes) {
    return copy(to, from, bytes);
  };
}

Status RankGroup::copy(std::byte* to, const std::byte* from, std::size_t /*bytes*/) {
  KVLANE_ASSIGN(const Place target, place_of(to));
  KVLANE_ASSIGN(const Place source, place_of(from));
  std::vector<std::uint64_t> requests;
  for (int rank = 0; rank < all(); ++rank) {
    KVLANE_ASSIGN(const std::uint64_t request, ask(rank, [&](std::uint64_t number) {
                    return encode_copy({number, target.block, source.block});
                  }));
    requests.push_back(request);
  }
  for (const std::uint64_t request : requests) KVLANE_TRY(answer(request).status());
  return {};
}

}  // namespace kvlane
