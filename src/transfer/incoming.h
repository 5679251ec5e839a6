// One transfer as its receiver sees it: what was announced, what has come, what to ask for. The
// receiver's half of spec/transfer.md section 7 without links, timers and locks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "transfer/message.h"

namespace kvlane {

class Session;

// Rounds in a row that bring no new slab; then the sender cannot help.
inline constexpr int kFruitlessRoundsMax = 8;

// Guarded by the endpoint's lock, apart from the constants.
class Incoming {
 public:
  enum class State {
    kExpecting,  // a push
    kFetching,   // has asked for parked frames
    kWaiting,    // BEGIN has come, there is no room for slabs yet
    kRunning,    // BEGIN has come
    kOver,       // the sink's last call was made, or is under way
  };

  Incoming(const TransferId& transfer_id, State initial, std::shared_ptr<TransferSink> into)
      : id(transfer_id), whose(into.get()), state(initial), sink(std::move(into)) {}

  const TransferId id;
  const TransferSink* const whose;  // of transfers of one id; known when `sink` is let go of, too
  State state;

  // BEGIN has come: to kRunning or, without room, to kWaiting.
  void run(const TransferBegin& begin);
  // There is room. True when the sender waits for that, now in kRunning.
  bool grant();
  // BEGIN has come and the sink's last call has not.
  bool begun() const { return state == State::kWaiting || state == State::kRunning; }
  const TransferBegin& begin() const { return begin_; }
  std::uint32_t round() const { return round_; }

  // Marks a slab as received; false when it was before.
  bool take(const SlabName& slab);
  // END has come. True when a new round begins: ask for missing(). kCorrupt for a round that was
  // not asked for, kUnavailable after too many fruitless ones.
  Result<bool> on_end(NumberedEnd end);
  // All slabs are there and END was told at least once.
  bool complete() const { return left_ == 0 && end_.has_value(); }
  const TransferEnd& end() const { return *end_; }
  // The first kMissingSlabsMax that lack, in this round.
  Missing missing() const;

  // For the endpoint.
  std::shared_ptr<TransferSink> sink;  // null when let go of
  std::shared_ptr<Session> session;    // null while expecting
  TimePoint last_heard{};              // of the sender
  TimePoint last_told{};               // something to the sender
  TimePoint last_slab{};               // that was new
  TimePoint deadline{};                // of expecting and waiting
  Seconds wait{};                      // that led to it
  bool room = true;                    // false until grant()

 private:
  TransferBegin begin_;
  std::vector<bool> received_;  // by slab_index
  std::uint32_t left_ = 0;
  std::optional<TransferEnd> end_;
  std::uint32_t round_ = 0;
  bool fruitful_ = false;  // a new slab has come in this round
  int fruitless_rounds_ = 0;
};

}  // namespace kvlane
