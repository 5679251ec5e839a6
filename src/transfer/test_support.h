// What the tests of transfers share: frames with known contents, a sink that checks its contract,
// and the two ways to drive a network.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/test_sanitizers.h"
#include "format/frame.h"
#include "transfer/endpoint.h"
#include "transfer/message.h"

namespace kvlane::testing {

constexpr int kHeadDim = 4;

inline ModelIdentity model_named(unsigned char letter) {
  ModelIdentity model;
  model.fill(std::byte{letter});
  return model;
}

inline EndpointOptions options_for_test() {
  EndpointOptions options;
  options.model = model_named('m');
  options.idle_timeout = Seconds(2);
  return options;
}

inline TransferId id_of(std::uint32_t number) {
  TransferId id;
  id.bytes.fill(0xA5);
  std::memcpy(id.bytes.data(), &number, sizeof number);
  return id;
}

inline TransferBegin begin_of(int tokens, int layers) { return {tokens, layers, "bf16", "none"}; }

// Values of one plane, a function of the place only.
inline std::vector<std::uint16_t> plane_of(const SlabName& slab, int tokens, bool is_v,
                                           int head_dim) {
  std::vector<std::uint16_t> plane(std::size_t(tokens) * head_dim);
  for (std::size_t i = 0; i < plane.size(); ++i) {
    plane[i] = static_cast<std::uint16_t>(
        philox4x32(7, {slab.layer, slab.block, static_cast<std::uint32_t>(i), is_v})[0]);
  }
  return plane;
}

inline int tokens_of(const TransferBegin& begin, std::uint32_t block) {
  return std::min(kBlockTokens, begin.tokens - static_cast<int>(block) * kBlockTokens);
}

inline FrameHeader frame_header_of(const TransferBegin& begin, const SlabName& slab) {
  FrameHeader header;
  header.model = model_named('m');
  header.format = begin.format;
  header.codec = begin.codec;
  header.layer = static_cast<int>(slab.layer);
  header.kv_heads = 1;
  header.head_dim = kHeadDim;
  header.position = std::int64_t{slab.block} * kBlockTokens;
  header.tokens = tokens_of(begin, slab.block);
  return header;
}

inline Bytes frame_with(const FrameHeader& header, const SlabName& slab) {
  const auto k = plane_of(slab, header.tokens, false, header.head_dim);
  const auto v = plane_of(slab, header.tokens, true, header.head_dim);
  Result<Bytes> frame =
      build_frame(header, std::as_bytes(std::span(k)), std::as_bytes(std::span(v)));
  EXPECT_TRUE(frame.ok()) << frame.status().message();
  return frame.ok() ? std::move(*frame) : Bytes();
}

inline Bytes frame_of(const TransferBegin& begin, const SlabName& slab) {
  return frame_with(frame_header_of(begin, slab), slab);
}

// What such a transfer takes of the arena.
inline std::size_t bytes_for(const TransferBegin& begin) {
  return outgoing_bytes_needed(begin, frame_of(begin_of(kBlockTokens, 1), {0, 0}).size());
}

inline TransferEnd end_of(std::int32_t token) {
  TransferEnd end;
  end.first = {{token, {}, {}}};
  end.seed = 0xFEDCBA9876543210U;
  end.raw_bytes = 1000;
  end.shipped_bytes = 700;
  end.durations = {{"prefill", 0.5}, {"encode", 0.125}};
  end.since_begin = 0.75;
  return end;
}

// A frame that is whole already.
inline Status add_frame(OutgoingTransfer& outgoing, const Bytes& frame) {
  KVLANE_ASSIGN(const Frame parsed, parse_frame(frame));
  return outgoing.add_slab(parsed.header, body_of(parsed.k, parsed.v));
}

// All frames of a transfer, then its end. The first error of add_frame.
inline Status send_all(OutgoingTransfer& outgoing, const TransferBegin& begin, std::int32_t token) {
  for (int layer = 0; layer < begin.layers; ++layer) {
    for (int block = 0; block < blocks_for(begin.tokens); ++block) {
      const SlabName slab{static_cast<std::uint32_t>(layer), static_cast<std::uint32_t>(block)};
      KVLANE_TRY(add_frame(outgoing, frame_of(begin, slab)));
    }
  }
  outgoing.finish(end_of(token));
  return {};
}

// Checks order, uniqueness and contents of its calls; the outcome can be waited for.
class CheckingSink : public TransferSink {
 public:
  ~CheckingSink() override { EXPECT_FALSE(in_call_) << "destroyed within a call"; }

  Status on_begin(const TransferBegin& begin) override {
    const Call call(*this);
    {
      const std::lock_guard lock(mutex_);
      EXPECT_FALSE(begin_.has_value());
      begin_ = begin;
    }
    return hook ? hook("begin") : Status();
  }
  Status on_slab(const Frame& frame) override {
    const Call call(*this);
    const SlabName slab{static_cast<std::uint32_t>(frame.header.layer),
                        static_cast<std::uint32_t>(frame.header.position / kBlockTokens)};
    {
      const std::lock_guard lock(mutex_);
      EXPECT_TRUE(begin_.has_value());
      EXPECT_TRUE(slabs_.emplace(slab, true).second) << "slab twice";
    }
    for (const bool is_v : {false, true}) {
      const auto plane = plane_of(slab, frame.header.tokens, is_v, frame.header.head_dim);
      const ByteView expected = std::as_bytes(std::span(plane));
      EXPECT_TRUE(std::ranges::equal(is_v ? frame.v : frame.k, expected));
    }
    return hook ? hook("slab") : Status();
  }
  Durations on_end(const TransferEnd& end) override {
    const Call call(*this);
    EXPECT_TRUE(begin_ && slabs_.size() == std::size_t(begin_->layers) *
                                               std::size_t(blocks_for(begin_->tokens)));
    if (hook) (void)hook("end");
    set(end, {});
    return {{"decode_codec", 0.25}};
  }
  void on_failed(const Status& why) override {
    const Call call(*this);
    EXPECT_FALSE(why.ok());
    if (hook) (void)hook("failed");
    set({}, why);
  }

  // Asked in each call, before it returns; the argument says which.
  std::function<Status(const char*)> hook;

  bool over() const {
    const std::lock_guard lock(mutex_);
    return end_.has_value() || !failure_.ok();
  }
  std::optional<TransferEnd> end() const {
    const std::lock_guard lock(mutex_);
    return end_;
  }
  Status failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  bool wait(double seconds = 10) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, Seconds(seconds),
                             [this] { return end_.has_value() || !failure_.ok(); });
  }
  bool begun() const {
    const std::lock_guard lock(mutex_);
    return begin_.has_value();
  }
  std::size_t slabs() const {
    const std::lock_guard lock(mutex_);
    return slabs_.size();
  }

 private:
  struct Call {
    explicit Call(CheckingSink& sink) : sink_(sink) {
      EXPECT_FALSE(sink.in_call_) << "two calls at once";
      EXPECT_FALSE(sink.over()) << "a call after the last";
      sink.in_call_ = true;
    }
    ~Call() { sink_.in_call_ = false; }
    CheckingSink& sink_;
  };
  void set(std::optional<TransferEnd> end, Status failure) {
    const std::lock_guard lock(mutex_);
    end_ = std::move(end);
    failure_ = std::move(failure);
    changed_.notify_all();
  }

  bool in_call_ = false;
  std::optional<TransferBegin> begin_;
  std::map<SlabName, bool> slabs_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<TransferEnd> end_;
  Status failure_;
};

// Receives the one call of an OnDelivered.
class Delivery {
 public:
  OnDelivered callback() {
    return [state = state_](Result<Durations> result) {
      const std::lock_guard lock(state->mutex);
      EXPECT_FALSE(state->result.has_value()) << "delivered twice";
      state->result = std::move(result);
      state->changed.notify_all();
    };
  }
  bool over() const {
    const std::lock_guard lock(state_->mutex);
    return state_->result.has_value();
  }
  bool wait(double seconds = 10) {
    std::unique_lock lock(state_->mutex);
    return state_->changed.wait_for(lock, Seconds(seconds),
                                    [this] { return state_->result.has_value(); });
  }
  // Precondition of both: over().
  bool ok() const { return state_->result->ok(); }
  const Status& status() const { return state_->result->status(); }
  const Durations& durations() const { return **state_->result; }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Result<Durations>> result;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Remembers what a link told.
class RecordingEvents : public LinkEvents {
 public:
  void on_message(ByteView message) override {
    const std::lock_guard lock(mutex_);
    messages_.emplace_back(message.begin(), message.end());
    changed_.notify_all();
  }
  void on_writable() override {
    const std::lock_guard lock(mutex_);
    ++writable_;
    changed_.notify_all();
  }
  void on_closed(Status why) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(closed_.has_value()) << "closed twice";
    closed_ = std::move(why);
    changed_.notify_all();
  }

  std::vector<Bytes> messages() const {
    const std::lock_guard lock(mutex_);
    return messages_;
  }
  int writable() const {
    const std::lock_guard lock(mutex_);
    return writable_;
  }
  std::optional<Status> closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  bool wait_messages(std::size_t count, double seconds = 10) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, Seconds(seconds), [&] { return messages_.size() >= count; });
  }
  bool wait_writable(int count, double seconds = 10) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, Seconds(seconds), [&] { return writable_ >= count; });
  }
  bool wait_closed(double seconds = 10) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, Seconds(seconds), [&] { return closed_.has_value(); });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Bytes> messages_;
  int writable_ = 0;
  std::optional<Status> closed_;
};

// Opens more connections of a link, as the handshake would, and waits for them.
inline void widen(Link& connector, Link& acceptor, int streams) {
  auto key = acceptor.stream_key();
  ASSERT_TRUE(key.has_value());
  key->streams_max = static_cast<std::uint32_t>(streams);
  connector.add_streams(*key);
  const TimePoint start = SteadyClock::now();
  while (connector.streams() < streams || acceptor.streams() < streams) {
    ASSERT_LT(seconds_since(start), 10) << connector.streams() << " connections";
    std::this_thread::yield();
  }
}

}  // namespace kvlane::testing
