// The sender's state machine.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/outgoing.h"

#include <algorithm>
#include <utility>

#include "transfer/slab_check.h"

namespace kvlane {
namespace {

std::string name_of(const SlabName& slab) {
  return "the slab of layer " + std::to_string(slab.layer) + ", block " +
         std::to_string(slab.block);
}

}  // namespace

Outgoing::Outgoing(const TransferId& transfer_id, const TransferBegin& transfer_begin,
                   std::size_t bytes_set_aside)
    : id(transfer_id),
      begin(transfer_begin),
      slabs_(slab_count(transfer_begin)),
      set_aside_(bytes_set_aside) {}

Status Outgoing::add(const SlabName& slab, std::shared_ptr<const Bytes> message) {
  if (finished()) return invalid_argument("a frame was added after the end of the transfer");
  std::shared_ptr<const Bytes>& place = slabs_[slab_index(slab, begin)];
  if (place) return invalid_argument(name_of(slab) + " was added twice");
  if (message->size() > set_aside_ - kept_bytes_) {
    return invalid_argument(name_of(slab) + " needs " + std::to_string(message->size()) +
                            " bytes, " + std::to_string(set_aside_ - kept_bytes_) + " of " +
                            std::to_string(set_aside_) + " set aside are left");
  }
  kept_bytes_ += message->size();
  place = std::move(message);
  ++added_;
  if (started() && !held_) queue_.push_back(place);
  return {};
}

Status Outgoing::finish(TransferEnd end, TimePoint now) {
  if (finished()) return invalid_argument("the end of a transfer was told twice");
  if (added_ != slabs_.size()) {
    return invalid_argument("the transfer ended after " + std::to_string(added_) + " of " +
                            std::to_string(slabs_.size()) + " slabs");
  }
  KVLANE_TRY(check_first(end.first));
  end_ = std::move(end);
  finished_ = now;
  set_aside_ = kept_bytes_;
  if (started() && !held_) queue_end();
  return {};
}

// What the sequence waited for, once it was complete, and what the receiver needs to tell the
// network's time from all that: spec/transfer.md section 6.
TransferEnd Outgoing::measured_end() const {
  TransferEnd end = *end_;
  const TimePoint linked = std::max(*started_, *finished_);
  const TimePoint wanted = std::max(linked, resumed_.value_or(linked));
  const auto add = [&](const char* name, double seconds) {
    if (seconds > 0) end.durations[name] += seconds;
  };
  // A router's time is not the network's.
  if (!parked) add("transfer", seconds_between(*finished_, linked));
  add("wait_for_memory", seconds_between(linked, wanted));
  end.since_begin = seconds_between(*started_, wanted);
  return end;
}

void Outgoing::start(TimePoint now) {
  started_ = now;
  queue_.push_back(share(encode_begin(id, begin)));
  queue_all();
}

void Outgoing::repeat() {
  queue_.push_back(share(encode_begin(id, begin)));
  if (finished() && !held_) queue_end();
}

bool Outgoing::hold() {
  if (held_ || room_) return false;
  held_ = true;
  queue_.clear();
  return true;
}

void Outgoing::resume(TimePoint now) {
  room_ = true;
  if (!std::exchange(held_, false)) return;
  resumed_ = now;
  queue_.clear();
  queue_all();
}

void Outgoing::queue_all() {
  for (const auto& slab : slabs_) {
    if (slab) queue_.push_back(slab);
  }
  if (finished()) queue_end();
}

Status Outgoing::answer(const Missing& missing, TimePoint now) {
  resume(now);
  if (missing.slabs.empty() && missing.round <= round_) return {};  // "I am here"
  if (!finished() || missing.round == 0 || missing.round > std::uint64_t{round_} + 1) {
    return corrupt("the receiver asked for slabs in round " + std::to_string(missing.round) +
                   ", the sender is in round " + std::to_string(round_));
  }
  if (missing.round < round_) return {};
  // Asked again while the answer has not even left.
  if (missing.round == round_ && !queue_.empty()) return {};
  const auto blocks = static_cast<std::uint32_t>(blocks_for(begin.tokens));
  for (const SlabName& slab : missing.slabs) {
    if (slab.layer >= static_cast<std::uint32_t>(begin.layers) || slab.block >= blocks) {
      return corrupt("the receiver asked for " + name_of(slab) + ", which was not announced");
    }
  }
  // What lacks is named, so nothing older needs to go.
  queue_.clear();
  round_ = missing.round;
  for (const SlabName& slab : missing.slabs) queue_.push_back(slabs_[slab_index(slab, begin)]);
  queue_end();
  return {};
}

void Outgoing::release() {
  slabs_.clear();
  queue_.clear();
  kept_bytes_ = 0;
  set_aside_ = 0;
}

void Outgoing::queue_end() { queue_.push_back(share(encode_end(id, {round_, measured_end()}))); }

}  // namespace kvlane
