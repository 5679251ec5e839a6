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
  Outgoing(const TransferId& transfer_id, const TransferBegin& transfer_begin);

  const TransferId id;
  const TransferBegin begin;

  // Keeps the message of one slab; it is queued at once when the transfer has started.
  // kInvalidArgument when that slab came before, or after finish().
  Status add(const SlabName& slab, std::shared_ptr<const Bytes> message);
  // kInvalidArgument when slabs lack or when it was called before.
  Status finish(TransferEnd end, TimePoint now);
  bool finished() const { return end_.has_value(); }

  // The peer is there: queues BEGIN and all that was added so far.
  void start(TimePoint now);
  bool started() const { return started_.has_value(); }
  // The receiver may not have got the last messages: queues BEGIN and, once finished, END again.
  void repeat();
  // Queues what the receiver asks for. kCorrupt when it may not ask for that.
  Status answer(const Missing& missing);

  // The next message to post; null when there is none.
  std::shared_ptr<const Bytes> next() const { return queue_.empty() ? nullptr : queue_.front(); }
  void pop() { queue_.pop_front(); }

  // Bytes of the messages kept.
  std::size_t kept_bytes() const { return kept_bytes_; }
  // Nothing is kept or queued any more.
  void release();

  // For the endpoint.
  std::shared_ptr<Session> session;  // null while parked
  bool parked = false;               // waits for FETCH
  bool ready = false;                // in its session's list of transfers with something to post
  OnDelivered on_delivered;          // null once called
  std::optional<Result<Durations>> outcome;  // set when the transfer is over
  TimePoint last_heard{};                    // of the receiver
  TimePoint last_repeat{};
  TimePoint lease_start{};

 private:
  void queue_end();
  void measure();

  std::vector<std::shared_ptr<const Bytes>> slabs_;  // by slab_index; null until added
  std::size_t added_ = 0;
  std::size_t kept_bytes_ = 0;
  std::optional<TransferEnd> end_;
  std::uint32_t round_ = 0;
  std::optional<TimePoint> started_;
  std::optional<TimePoint> finished_;
  std::deque<std::shared_ptr<const Bytes>> queue_;
};

}  // namespace kvlane
