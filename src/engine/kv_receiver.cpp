// Frames to blocks, and what the transfer cost.
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

KvReceiver::KvReceiver(const BlockTable& table, SlabLane& lane, int tokens,
                       const std::optional<PromptDigest>& prompt, Isa isa,
                       std::shared_ptr<const KvFormat> format, OnReceived on_received)
    : table_(table),
      lane_(lane),
      tokens_(tokens),
      prompt_(prompt),
      isa_(isa),
      format_(std::move(format)),
      on_received_(std::move(on_received)),
      // Rows of a coded cache are few, and sealed at once.
      past_caches_(table.pool().on_host() && !table.coded() &&
                   sequence_bytes(table.pool().shape(), tokens) >= kStreamingBytes) {
  if (format_) sealed_.emplace(*format_);
  decodings_.reserve(std::size_t(table.pool().shape().layers) * blocks_for(tokens));
}

Status KvReceiver::on_begin(const TransferBegin& begin) {
  begun_ = SteadyClock::now();
  if (begin.tokens != tokens_) {
    return invalid_argument("the prefill worker sends " + std::to_string(begin.tokens) +
                            " tokens of KV, this request's prompt has " + std::to_string(tokens_));
  }
  if (prompt_ && begin.prompt != prompt_) {
    return invalid_argument(begin.prompt
                                ? "the prefill worker sends KV of another prompt than this "
                                  "request's"
                                : "the prefill worker does not say of which prompt its KV is");
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
  const int block = static_cast<int>(header.position / kBlockTokens);
  KVLANE_TRY(check(header, block));
  KVLANE_ASSIGN(const Codec* codec, find_codec(header.codec, isa_));
  const TimePoint start = SteadyClock::now();
  if (header.sealed) {
    KVLANE_TRY(unpack(*codec, frame, block));
  } else {
    KVLANE_TRY(format_ ? decode_and_seal(*codec, frame, block) : decode(*codec, frame, block));
  }
  decodings_.push_back({start, SteadyClock::now()});
  kv_.add_codec(header.codec);
  kv_.raw += header.raw_bytes();
  kv_.shipped += kFrameHeaderBytes + header.body_bytes();
  return {};
}

// That the frame is of this model's KV, and comes in the way in which this block does.
Status KvReceiver::check(const FrameHeader& header, int block) const {
  const KvShape& shape = table_.pool().shape();
  const std::string slab =
      "slab " + std::to_string(block) + " of layer " + std::to_string(header.layer);
  const bool rope_applied = header.sealed && format_ ? format_->rope_applied() : true;
  if (header.kv_heads != shape.kv_heads || header.head_dim != shape.head_dim ||
      header.type != shape.type ||
      header.tokens != std::min(kBlockTokens, tokens_ - block * kBlockTokens) ||
      header.rope_applied != rope_applied) {
    return corrupt(slab + " does not have the shape of this model's KV");
  }
  if (header.sealed == table_.arrives_as_rows(block, tokens_)) {
    return corrupt(slab + (header.sealed ? " came sealed and should be rows of 16 bits"
                                         : " came as rows of 16 bits and should be sealed"));
  }
  if (header.sealed && !header.packed() && format_->planes() == nullptr) {
    return corrupt(slab + " came in codec " + header.codec + ", which sealed slabs of format " +
                   format_->slab_name() + " never have");
  }
  if (header.sealed && header.tables != format_->tables()) {
    return invalid_argument(slab + " was sealed with other tables than this worker's: give all " +
                            "workers the same --kv-tables");
  }
  return {};
}

Status KvReceiver::decode(const Codec& codec, const Frame& frame, int block) {
  const FrameHeader& header = frame.header;
  const KvShape& shape = table_.pool().shape();
  const BlockId id = table_.id(block);
  if (SlabCoder* const coder = lane_.coder_of(codec)) {
    auto* const slab = reinterpret_cast<std::byte*>(table_.pool().slab(id, header.layer));
    const ComingSlab coming{{frame.k, frame.v}, header.tokens, slab};
    Status verdict;
    KVLANE_TRY(coder->decode(codec, {&coming, 1}, {&verdict, 1}));
    return verdict;
  }
  std::byte* const slab = lane_.room(table_.pool(), id, header.layer, header.tokens);
  KVLANE_TRY(read_rows(codec, shape, header.tokens, {frame.k, frame.v}, slab, past_caches_));
  return lane_.store(table_.pool(), id, header.layer);
}

Status KvReceiver::unpack(const Codec& codec, const Frame& frame, int block) {
  const int layer = frame.header.layer;
  const BlockId id = table_.id(block);
  std::byte* const slab = lane_.room(table_.pool(), id, layer);
  KVLANE_TRY(sealed_->read(codec, {layer, block * kBlockTokens}, {frame.k, frame.v}, slab));
  return lane_.store(table_.pool(), id, layer);
}

// Rows of a coded cache, by the host's codecs. A complete block has its sealed slab, too, which has
// the same bytes wherever it is made.
Status KvReceiver::decode_and_seal(const Codec& codec, const Frame& frame, int block) {
  const FrameHeader& header = frame.header;
  const BlockPool& pool = table_.rows_pool();
  const BlockId id = table_.rows_id(block);
  std::byte* const rows = lane_.room(pool, id, header.layer, header.tokens);
  KVLANE_TRY(read_rows(codec, pool.shape(), header.tokens, {frame.k, frame.v}, rows));
  KVLANE_TRY(lane_.store(pool, id, header.layer));
  if (header.tokens < kBlockTokens) return {};
  const BlockId sealed = table_.id(block);
  std::byte* const slab = lane_.room(table_.pool(), sealed, header.layer, kBlockTokens, 1);
  KVLANE_TRY(format_->seal({header.layer, block * kBlockTokens},
                           reinterpret_cast<const std::uint16_t*>(rows), slab));
  return lane_.store(table_.pool(), sealed, header.layer, 1);
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
