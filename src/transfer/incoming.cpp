// The receiver's state machine.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/incoming.h"

#include <utility>

#include "transfer/slab_check.h"

namespace kvlane {

void Incoming::run(const TransferBegin& begin) {
  state = room ? State::kRunning : State::kWaiting;
  begin_ = begin;
  left_ = slab_count(begin);
  received_.assign(left_, false);
}

bool Incoming::grant() {
  room = true;
  if (state != State::kWaiting) return false;
  state = State::kRunning;
  return true;
}

bool Incoming::take(const SlabName& slab) {
  const std::uint32_t index = slab_index(slab, begin_);
  if (received_[index]) return false;
  received_[index] = true;
  --left_;
  fruitful_ = true;
  return true;
}

Result<bool> Incoming::on_end(NumberedEnd numbered) {
  if (numbered.round > round_) {
    return corrupt("the sender ended round " + std::to_string(numbered.round) +
                   ", the receiver is in round " + std::to_string(round_));
  }
  if (!end_) end_ = std::move(numbered.end);
  if (complete() || numbered.round < round_) return false;
  fruitless_rounds_ = fruitful_ || round_ == 0 ? 0 : fruitless_rounds_ + 1;
  if (fruitless_rounds_ == kFruitlessRoundsMax) {
    return unavailable(std::to_string(left_) + " of " + std::to_string(received_.size()) +
                       " slabs did not come, asked for " + std::to_string(round_) + " times");
  }
  fruitful_ = false;
  ++round_;
  return true;
}

Missing Incoming::missing() const {
  Missing missing{round_, {}};
  for (std::uint32_t i = 0; i < received_.size() && missing.slabs.size() < kMissingSlabsMax; ++i) {
    if (!received_[i]) missing.slabs.push_back(slab_at(i, begin_));
  }
  return missing;
}

}  // namespace kvlane
