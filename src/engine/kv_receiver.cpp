// Frames to rows in blocks, and what the transfer cost.
// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_receiver.h"

#include <algorithm>
#include <utility>

#include "codec/codec.h"
#include "cpu/streaming_copy.h"

namespace kvlane {
namespace {

std::size_t sequence_bytes(const KvShape& shape, int tokens) {
  return blocks_for(tokens) * shape.block_bytes();
}

}  // namespace

KvReceiver::KvReceiver(const BlockTable& table, SlabLane& lane, int tokens, Isa isa,
                       OnReceived on_received)
    : table_(table),
      lane_(lane),
      tokens_(tokens),
      isa_(isa),
      on_received_(std::move(on_received)),
      past_caches_(table.pool().on_host() &&
                   sequence_bytes(table.pool().shape(), tokens) >= kStreamingBytes) {
  decodings_.reserve(std::size_t(table.pool().shape().layers) * blocks_for(tokens));
}

Status KvReceiver::on_begin(const TransferBegin& begin) {
  begun_ = SteadyClock::now();
  if (begin.tokens != tokens_) {
    return invalid_argument("the prefill worker sends " + std::to_string(begin.tokens) +
                            " tokens of KV, this request's prompt has " + std::to_string(tokens_));
  }
  if (begin.layers != table_.pool().shape().layers) {
    return invalid_argument("the prefill worker sends " + std::to_string(begin.layers) +
                            " layers of KV, this model has " +
                            std::to_string(table_.pool().shape().layers));
  }
  return find_codec(begin.codec).status();
}

Status KvReceiver::on_slab(const Frame& frame) {
  if (!granted_) return exhausted("the decode worker has no room for it yet");
  const FrameHeader& header = frame.header;
  const KvShape& shape = table_.pool().shape();
  const int block = static_cast<int>(header.position / kBlockTokens);
  const int rows = std::min(kBlockTokens, tokens_ - block * kBlockTokens);
  if (header.kv_heads != shape.kv_heads || header.head_dim != shape.head_dim ||
      header.type != shape.type || header.tokens != rows || !header.rope_applied) {
    return corrupt("slab " + std::to_string(block) + " of layer " + std::to_string(header.layer) +
                   " does not have the shape of this model's KV");
  }
  KVLANE_ASSIGN(const Codec* codec, find_codec(header.codec, isa_));

  const TimePoint start = SteadyClock::now();
  const BlockId id = table_.id(block);
  const PlaneShape plane = plane_shape(shape, rows);
  if (SlabCoder* const coder = lane_.coder_of(*codec)) {
    auto* const slab = reinterpret_cast<std::byte*>(table_.pool().slab(id, header.layer));
    KVLANE_TRY(coder->decode(*codec, {frame.k, frame.v}, rows, slab));
  } else {
    std::byte* const slab = lane_.room(table_.pool(), id, header.layer, rows);
    const std::size_t stride = shape.page_bytes();
    KVLANE_TRY(codec->decode(plane, frame.k, PlaneSpan{slab, stride, past_caches_}));
    KVLANE_TRY(codec->decode(plane, frame.v, PlaneSpan{slab + stride / 2, stride, past_caches_}));
    KVLANE_TRY(lane_.store(table_.pool(), id, header.layer));
  }
  decodings_.push_back({start, SteadyClock::now()});
  kv_.add_codec(header.codec);
  kv_.raw += header.raw_bytes();
  kv_.shipped += kFrameHeaderBytes + header.body_bytes();
  return {};
}

Durations KvReceiver::on_end(const TransferEnd& end) {
  // By this clock the sender was done `exposed` seconds ago. Decoding inside that window was
  // exposed, the rest of the window was the network's.
  const TimePoint now = SteadyClock::now();
  const double exposed = std::max(0.0, seconds_between(begun_, now) - end.since_begin);
  const TimePoint window =
      now - std::chrono::duration_cast<SteadyClock::duration>(Seconds(exposed));
  ReceivedKv received{.end = end, .kv = kv_};
  for (const Decoding& decoding : decodings_) {
    received.decode_codec +=
        std::max(0.0, seconds_between(std::max(decoding.start, window), decoding.end));
  }
  received.transfer = std::max(0.0, exposed - received.decode_codec);
  const auto waited = end.durations.find("transfer");
  const double waited_seconds = waited == end.durations.end() ? 0 : waited->second;
  const Durations told = {{"decode_codec", received.decode_codec},
                          {"transfer", received.transfer + waited_seconds}};
  on_received_(std::move(received));
  return told;
}

void KvReceiver::on_failed(const Status& why) { on_received_(why); }

}  // namespace kvlane
