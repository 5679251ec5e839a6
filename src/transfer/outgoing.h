// One transfer as its sender sees it: the frames kept, and what is to be posted next. The sender's
// half of spec/transfer.md section 6 without links, timers and locks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "transfer/message.h"

namespace kvlane {

class Session;

// Guarded by the endpoint's lock, apart from the constants.
class Outgoing {
 public:
  // Its messages may take `bytes_set_aside`.
  Outgoing(const TransferId& transfer_id, const TransferBegin& transfer_begin,
           std::size_t bytes_set_aside);

  const TransferId id;
  const TransferBegin begin;

  // Keeps the message of one slab; it is queued at once when the transfer has started and is not
  // held. kInvalidArgument when that slab came before, or after finish(), or does not fit into what
  // is set aside.
  Status add(const SlabName& slab, std::shared_ptr<const Bytes> message);
  // kInvalidArgument when slabs lack, when the first tokens are not as they should be, or when it
  // was called before. What was set aside beyond the messages kept is given back.
  Status finish(TransferEnd end, TimePoint now);
  bool finished() const { return end_.has_value(); }

  // The peer is there: queues BEGIN and all that was added so far.
  void start(TimePoint now);
  bool started() const { return started_.has_value(); }
  // The receiver may not have got the last messages: queues BEGIN and, once finished and unless
  // held, END again.
  void repeat();
  // WAIT has come: nothing but BEGIN is queued until the receiver has room. False when it has said
  // before that it has, or that it has not.
  bool hold();
  bool held() const { return held_; }
  // Queues what the receiver asks for; that it asks means that it has room. kCorrupt when it may
  // not ask for that.
  Status answer(const Missing& missing, TimePoint now);

  // The next message to post; null when there is none.
  std::shared_ptr<const Bytes> next() const { return queue_.empty() ? nullptr : queue_.front(); }
  void pop() { queue_.pop_front(); }

  // Bytes that this transfer takes of the arena.
  std::size_t set_aside() const { return set_aside_; }
  // Nothing is kept, queued or set aside any more.
  void release();

  // For the endpoint.
  std::shared_ptr<Session> session;  // null while parked
  bool parked = false;               // waits for FETCH
  bool ready = false;                // in its session's list of transfers with something to post
  OnDelivered on_delivered;          // null once called
  std::optional<Result<Durations>> outcome;  // set when the transfer is over
  TimePoint last_heard{};                    // of the receiver
  TimePoint last_repeat{};
  TimePoint lease_start{};  // while parked or held

 private:
  void resume(TimePoint now);
  void queue_all();
  void queue_end();
  TransferEnd measured_end() const;

  std::vector<std::shared_ptr<const Bytes>> slabs_;  // by slab_index; null until added
  std::size_t added_ = 0;
  std::size_t kept_bytes_ = 0;
  std::size_t set_aside_;
  std::optional<TransferEnd> end_;  // as the caller told it
  std::uint32_t round_ = 0;
  bool held_ = false;
  bool room_ = false;  // the receiver has said so
  std::optional<TimePoint> started_;
  std::optional<TimePoint> finished_;
  std::optional<TimePoint> resumed_;  // after it was held
  std::deque<std::shared_ptr<const Bytes>> queue_;
};

}  // namespace kvlane
