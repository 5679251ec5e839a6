// The sender's state machine.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/outgoing.h"

#include <algorithm>
#include <utility>

#include "transfer/slab_check.h"

namespace kvlane {
namespace {

std::shared_ptr<const Bytes> share(Bytes message) {
  return std::make_shared<const Bytes>(std::move(message));
}

std::string name_of(const SlabName& slab) {
  return "the slab of layer " + std::to_string(slab.layer) + ", block " +
         std::to_string(slab.block);
}

}  // namespace

Outgoing::Outgoing(const TransferId& transfer_id, const TransferBegin& transfer_begin)
    : id(transfer_id), begin(transfer_begin), slabs_(slab_count(transfer_begin)) {}

Status Outgoing::add(const SlabName& slab, std::shared_ptr<const Bytes> message) {
  if (finished()) return invalid_argument("a frame was added after the end of the transfer");
  std::shared_ptr<const Bytes>& place = slabs_[slab_index(slab, begin)];
  if (place) return invalid_argument(name_of(slab) + " was added twice");
  place = std::move(message);
  ++added_;
  kept_bytes_ += place->size();
  if (started()) queue_.push_back(place);
  return {};
}

Status Outgoing::finish(TransferEnd end, TimePoint now) {
  if (finished()) return invalid_argument("the end of a transfer was told twice");
  if (added_ != slabs_.size()) {
    return invalid_argument("the transfer ended after " + std::to_string(added_) + " of " +
                            std::to_string(slabs_.size()) + " slabs");
  }
  end_ = std::move(end);
  finished_ = now;
  if (!started()) return {};
  measure();
  queue_end();
  return {};
}

// When both the first BEGIN and the end are known: what the receiver needs to tell the network's
// time from the prefill worker's. A link that came up after everything was there has kept all
// waiting.
void Outgoing::measure() {
  end_->since_begin = std::max(0.0, seconds_between(*started_, *finished_));
  const double late = seconds_between(*finished_, *started_);
  if (late > 0 && !parked) end_->durations["transfer"] += late;
}

void Outgoing::start(TimePoint now) {
  started_ = now;
  if (finished()) measure();
  queue_.push_back(share(encode_begin(id, begin)));
  for (const auto& slab : slabs_) {
    if (slab) queue_.push_back(slab);
  }
  if (finished()) queue_end();
}

void Outgoing::repeat() {
  queue_.push_back(share(encode_begin(id, begin)));
  if (finished()) queue_end();
}

Status Outgoing::answer(const Missing& missing) {
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
  round_ = missing.round;
  for (const SlabName& slab : missing.slabs) queue_.push_back(slabs_[slab_index(slab, begin)]);
  queue_end();
  return {};
}

void Outgoing::release() {
  slabs_.clear();
  queue_.clear();
  kept_bytes_ = 0;
}

void Outgoing::queue_end() { queue_.push_back(share(encode_end(id, {round_, *end_}))); }

}  // namespace kvlane
