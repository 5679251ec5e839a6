// The receiving side of KV: decodes frames straight into a sequence's reserved blocks, rows into
// rows and sealed slabs into sealed slabs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "cache/block_pool.h"
#include "cpu/isa.h"
#include "engine/engine.h"
#include "model/slab_lane.h"
#include "quant/kv_format.h"
#include "quant/slab_reader.h"
#include "transfer/endpoint.h"

namespace kvlane {

// Everything a decode worker learns from a complete transfer.
struct ReceivedKv {
  TransferEnd end;
  KvBytes kv;
  double transfer = 0;      // seconds nothing else hid
  double decode_codec = 0;  // seconds of decoding that came after the sender had finished
};

// One sequence on its way in. Called by the endpoint; the engine keeps the blocks until the
// transfer has ended or was cancelled. Until then nobody else touches their rows.
class KvReceiver final : public TransferSink {
 public:
  using OnReceived = std::function<void(Result<ReceivedKv>)>;

  // `table` has room for `tokens` tokens once grant() was called. `prompt` is theirs; without one,
  // K and V of any prompt of that length are taken. `lane` leads to the table's blocks and outlives
  // this; `isa` is the tier of the decoders. `format`, null without one: of a coded table.
  KvReceiver(const BlockTable& table, SlabLane& lane, int tokens,
             const std::optional<PromptDigest>& prompt, Isa isa,
             std::shared_ptr<const KvFormat> format, OnReceived on_received);

  // The table has its blocks now, and rows for those that arrive as rows. From any thread.
  void grant() { granted_ = true; }
  bool granted() const { return granted_; }

  Status on_begin(const TransferBegin& begin) override;
  Status on_slab(const Frame& frame) override;
  Durations on_end(const TransferEnd& end) override;
  void on_failed(const Status& why) override;

 private:
  struct Decoding {
    TimePoint start, end;
  };

  Status check(const FrameHeader& header, int block) const;
  Status decode(const Codec& codec, const Frame& frame, int block);
  Status unpack(const Codec& codec, const Frame& frame, int block);
  Status decode_and_seal(const Codec& codec, const Frame& frame, int block);

  const BlockTable& table_;
  SlabLane& lane_;
  const int tokens_;
  const std::optional<PromptDigest> prompt_;
  const Isa isa_;
  const std::shared_ptr<const KvFormat> format_;
  const OnReceived on_received_;
  const bool past_caches_;  // rows of a sequence so long go to its blocks that way
  std::atomic<bool> granted_ = false;
  TimePoint begun_;
  std::vector<Decoding> decodings_;
  KvBytes kv_;
  std::optional<SealedReader> sealed_;  // if there is a format
};

}  // namespace kvlane
