// Messages of the transfer protocol and their bytes: spec/transfer.md sections 2 and 3.
//
// A message is one buffer, header and body. Encoding cannot fail; what the spec does not allow in a
// list (a name too long, a duration that is no number) is left out or becomes zero. Decoding takes
// untrusted bytes; every error is one sentence, kCorrupt unless stated otherwise. Pure functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "format/shape.h"
#include "kvlane/status.h"
#include "transfer/endpoint.h"

namespace kvlane {

inline constexpr std::array<std::byte, 4> kMessageMagic = {std::byte{0x8B}, std::byte{'K'},
                                                           std::byte{'V'}, std::byte{'M'}};
inline constexpr std::uint16_t kMessageVersion = 1;
inline constexpr std::size_t kMessageHeaderBytes = 48;

// A slab of 128 KV heads of 256 channels in 16 bits has 8 MiB.
inline constexpr std::uint32_t kSlabBodyBytesMax = 64U << 20;
// First tokens of 128 answers with 20 log probabilities each.
inline constexpr std::uint32_t kEndBodyBytesMax = 256U << 10;
// May come from a stranger, before the handshake.
inline constexpr std::uint32_t kControlBodyBytesMax = 64U << 10;
// A piece of a letter between ranks, spec/ranks.md.
inline constexpr std::uint32_t kRankBodyBytesMax = (4U << 20) + 16;
// So that one MISSING fits a control body.
inline constexpr std::uint32_t kMissingSlabsMax = 8000;
static_assert(8 + 8 * kMissingSlabsMax <= kControlBodyBytesMax);

inline constexpr int kTransferTokensMax = 1 << 22;
inline constexpr int kTransferLayersMax = 4096;
// The receiver's map of them takes 512 KiB.
inline constexpr std::uint32_t kTransferSlabsMax = 1U << 22;

// The values are part of the protocol: never change or reuse one.
enum class MessageType : std::uint8_t {
  kHello = 1,
  kHelloAck = 2,
  kReject = 3,
  kBegin = 4,
  kSlab = 5,
  kEnd = 6,
  kMissing = 7,
  kDone = 8,
  kFetch = 9,
  kError = 10,
  kWait = 11,
  kRank = 12,  // of spec/ranks.md
  kJoin = 13,  // of section 10, as the next
  kFence = 14,
};
std::string_view message_name(MessageType type);  // "HELLO"

// The most bytes the body of such a message can have.
std::uint32_t body_bytes_max(MessageType type);

struct MessageHeader {
  MessageType type = MessageType::kError;
  std::uint32_t body_bytes = 0;
  TransferId transfer;
  std::uint64_t body_checksum = 0;
};

struct Message {
  MessageHeader header;
  ByteView body;  // owned by whoever holds the buffer
};

// Whether the bytes that have come so far, any number of them, can begin a message.
bool may_begin_message(ByteView bytes);

// Steps 1 to 4 of section 2 on the first kMessageHeaderBytes bytes. Unknown versions and types are
// kUnsupported.
Result<MessageHeader> parse_message_header(ByteView bytes);

// Steps 1 to 5; `bytes` must hold exactly one message. The body points into `bytes`.
Result<Message> parse_message(ByteView bytes);

// What workers tell each other in the handshake.
struct Hello {
  std::string engine;
  Address address;  // where it listens
  ModelIdentity model{};
  std::string format;
  std::vector<std::string> codecs;
  std::uint64_t tables = 0;  // of the format, 0 without any
  // Connections that the link may have. In a HELLO_ACK with more than one, `join` is the id that
  // further ones show; else it is zero.
  std::uint32_t streams = 1;
  TransferId join{};
};

// "This connection is number `stream` of the link that has this id", and the answer to it.
struct StreamJoin {
  TransferId link;
  std::uint32_t stream = 0;  // 1 ... kLinkStreamsMax - 1
};

// Messages that come first: so many on each connection of the link, by its number.
using Fence = std::vector<std::uint64_t>;  // 1 ... kLinkStreamsMax

// One slab of a transfer: (layer, block).
struct SlabName {
  std::uint32_t layer = 0;
  std::uint32_t block = 0;
  auto operator<=>(const SlabName&) const = default;
};

struct Missing {
  std::uint32_t round = 0;
  std::vector<SlabName> slabs;  // at most kMissingSlabsMax
};

struct NumberedEnd {
  std::uint32_t round = 0;
  TransferEnd end;
};

Bytes encode_hello(MessageType type, const Hello& hello);  // kHello or kHelloAck
Bytes encode_reject(const Status& why);
Bytes encode_error(const TransferId& id, const Status& why);  // id zero: about the link
Bytes encode_begin(const TransferId& id, const TransferBegin& begin);
Bytes encode_slab(const TransferId& id, ByteView frame);
// The header of a SLAB behind which the caller puts a frame of `frame_bytes`.
void begin_slab(const TransferId& id, std::size_t frame_bytes,
                std::span<std::byte, kMessageHeaderBytes> header);
Bytes encode_end(const TransferId& id, const NumberedEnd& end);
Bytes encode_missing(const TransferId& id, const Missing& missing);
Bytes encode_done(const TransferId& id, const Durations& durations);
Bytes encode_fetch(const TransferId& id);
Bytes encode_wait(const TransferId& id);
Bytes encode_rank(const TransferId& group, ByteView piece);
Bytes encode_stream_join(const StreamJoin& join);
Bytes encode_fence(const TransferId& link, const Fence& fence);

Result<Hello> decode_hello(ByteView body);
// The error that the peer reports, in *reported. Unknown codes become kInternal.
Status decode_error(ByteView body, Status* reported);
Result<TransferBegin> decode_begin(ByteView body);
Result<NumberedEnd> decode_end(ByteView body);
Result<Missing> decode_missing(ByteView body);
Result<Durations> decode_done(ByteView body);
Result<StreamJoin> decode_stream_join(const Message& message);
Result<Fence> decode_fence(ByteView body);

// The ranges of section 3, for what a caller announces and for what a peer does. kInvalidArgument.
Status check_begin(const TransferBegin& begin);
Status check_first(const std::vector<FirstToken>& first);

// "none, splitzip" as a list.
std::vector<std::string> split_names(std::string_view names);

}  // namespace kvlane
