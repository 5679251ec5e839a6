// The envelope of messages: header layout, checks and checksums. Bodies: message_body.cpp.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/message.h"

#include <algorithm>
#include <span>

#include "format/checksum.h"
#include "transfer/message_body.h"

namespace kvlane {
namespace {

constexpr std::size_t kChecksummedBytes = 40;
static_assert(kChecksummedBytes + sizeof(std::uint64_t) == kMessageHeaderBytes);

bool is_about_link(MessageType type) {
  return type == MessageType::kHello || type == MessageType::kHelloAck ||
         type == MessageType::kReject;
}

}  // namespace

std::string_view message_name(MessageType type) {
  switch (type) {
    case MessageType::kHello: return "HELLO";
    case MessageType::kHelloAck: return "HELLO_ACK";
    case MessageType::kReject: return "REJECT";
    case MessageType::kBegin: return "BEGIN";
    case MessageType::kSlab: return "SLAB";
    case MessageType::kEnd: return "END";
    case MessageType::kMissing: return "MISSING";
    case MessageType::kDone: return "DONE";
    case MessageType::kFetch: return "FETCH";
    case MessageType::kError: return "ERROR";
    case MessageType::kWait: return "WAIT";
    case MessageType::kRank: return "RANK";
    case MessageType::kJoin: return "JOIN";
    case MessageType::kFence: return "FENCE";
  }
  return "";
}

std::uint32_t body_bytes_max(MessageType type) {
  switch (type) {
    case MessageType::kSlab: return kSlabBodyBytesMax;
    case MessageType::kEnd: return kEndBodyBytesMax;
    case MessageType::kRank: return kRankBodyBytesMax;
    case MessageType::kFetch:
    case MessageType::kWait: return 0;
    case MessageType::kJoin: return 2 * sizeof(std::uint32_t);
    case MessageType::kFence: return kLinkStreamsMax * sizeof(std::uint64_t);
    default: return kControlBodyBytesMax;
  }
}

bool may_begin_message(ByteView bytes) {
  const std::size_t known = std::min(bytes.size(), kMessageMagic.size());
  return std::equal(bytes.begin(), bytes.begin() + known, kMessageMagic.begin());
}

Result<MessageHeader> parse_message_header(ByteView bytes) {
  if (!may_begin_message(bytes)) return corrupt("the peer does not speak the transfer protocol");
  ByteReader reader(bytes);
  reader.read_bytes(kMessageMagic.size());
  const auto version = reader.read<std::uint16_t>();
  if (!reader.failed() && version != kMessageVersion) {
    return unsupported("the peer speaks version " + std::to_string(version) +
                       " of the transfer protocol, this worker version " +
                       std::to_string(kMessageVersion));
  }
  MessageHeader header;
  header.type = MessageType{reader.read<std::uint8_t>()};
  const auto reserved_byte = reader.read<std::uint8_t>();
  header.body_bytes = reader.read<std::uint32_t>();
  const auto reserved_word = reader.read<std::uint32_t>();
  const ByteView id = reader.read_bytes(header.transfer.bytes.size());
  header.body_checksum = reader.read<std::uint64_t>();
  const auto header_checksum = reader.read<std::uint64_t>();
  if (reader.failed()) {
    return corrupt("a message header of " + std::to_string(bytes.size()) + " bytes, " +
                   std::to_string(kMessageHeaderBytes) + " are needed");
  }
  std::ranges::copy(id, std::as_writable_bytes(std::span(header.transfer.bytes)).begin());

  if (header_checksum != xxh3_64(bytes.first(kChecksummedBytes))) {
    return corrupt("a message header has a wrong checksum");
  }
  if (reserved_byte != 0 || reserved_word != 0) {
    return unsupported("a message header has reserved bytes that are not zero");
  }
  const std::string_view name = message_name(header.type);
  if (name.empty()) {
    return unsupported("a message of unknown type " +
                       std::to_string(static_cast<int>(header.type)));
  }
  if (header.body_bytes > body_bytes_max(header.type)) {
    return corrupt("a " + std::string(name) + " of " + std::to_string(header.body_bytes) +
                   " bytes, at most " + std::to_string(body_bytes_max(header.type)) +
                   " are allowed");
  }
  const bool has_id = header.transfer != TransferId{};
  if (header.type != MessageType::kError && has_id == is_about_link(header.type)) {
    return corrupt("a " + std::string(name) + (has_id ? " with" : " without") + " a transfer id");
  }
  return header;
}

Result<Message> parse_message(ByteView bytes) {
  KVLANE_ASSIGN(const MessageHeader header,
                parse_message_header(bytes.first(std::min(bytes.size(), kMessageHeaderBytes))));
  const Message message{header, bytes.subspan(kMessageHeaderBytes)};
  if (message.body.size() != header.body_bytes) {
    return corrupt("a " + std::string(message_name(header.type)) + " with " +
                   std::to_string(message.body.size()) + " bytes of body, its header says " +
                   std::to_string(header.body_bytes));
  }
  const bool checks_itself = header.type == MessageType::kSlab;
  if (header.body_checksum != (checks_itself ? 0 : xxh3_64(message.body))) {
    return corrupt("a " + std::string(message_name(header.type)) +
                   " has a wrong checksum of its body");
  }
  return message;
}

namespace {

ByteWriter write_header(MessageType type, const TransferId& id, std::size_t body_bytes,
                        std::uint64_t body_checksum) {
  ByteWriter writer;
  writer.write_bytes(kMessageMagic);
  writer.write(kMessageVersion);
  writer.write(static_cast<std::uint8_t>(type));
  writer.write(std::uint8_t{0});
  writer.write(static_cast<std::uint32_t>(body_bytes));
  writer.write(std::uint32_t{0});
  writer.write_bytes(std::as_bytes(std::span(id.bytes)));
  writer.write(body_checksum);
  writer.write(xxh3_64(writer.bytes()));
  return writer;
}

}  // namespace

Bytes seal_message(MessageType type, const TransferId& id, ByteView body) {
  const bool checks_itself = type == MessageType::kSlab;
  ByteWriter writer = write_header(type, id, body.size(), checks_itself ? 0 : xxh3_64(body));
  writer.write_bytes(body);
  return writer.take();
}

void begin_slab(const TransferId& id, std::size_t frame_bytes,
                std::span<std::byte, kMessageHeaderBytes> header) {
  const ByteWriter writer = write_header(MessageType::kSlab, id, frame_bytes, 0);
  std::copy(writer.bytes().begin(), writer.bytes().end(), header.begin());
}

}  // namespace kvlane
