// Any bytes as a message, and any bytes as the body of each type: refused with a sentence or read;
// what was read is written and read again without a change.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "transfer/message.h"
#include "transfer/message_body.h"

namespace kvlane {
namespace {

void require(bool holds) {
  if (!holds) std::abort();  // libFuzzer's way to be told
}

// Everything that can be read can be written, and is then read the same.
template <class Decode, class Encode>
void round_trip(ByteView body, Decode decode, Encode encode) {
  const auto value = decode(body);
  if (!value.ok()) return require(!value.status().message().empty());
  const Bytes written = encode(*value);
  const Result<Message> message = parse_message(written);
  require(message.ok());
  const auto again = decode(message->body);
  require(again.ok());
  require(encode(*again) == written);
}

void read_body(ByteView body) {
  TransferId id;
  id.bytes.fill(1);
  round_trip(body, decode_hello,
             [](const Hello& h) { return encode_hello(MessageType::kHello, h); });
  round_trip(body, decode_begin, [&](const TransferBegin& b) { return encode_begin(id, b); });
  round_trip(body, decode_end, [&](const NumberedEnd& e) { return encode_end(id, e); });
  round_trip(body, decode_missing, [&](const Missing& m) { return encode_missing(id, m); });
  round_trip(body, decode_done, [&](const Durations& d) { return encode_done(id, d); });
  round_trip(body, decode_fence, [&](const Fence& f) { return encode_fence(id, f); });
  const auto join_of = [&](ByteView bytes) {
    return decode_stream_join({{.transfer = id}, bytes});
  };
  round_trip(body, join_of, [](const StreamJoin& j) { return encode_stream_join(j); });
  Status reported;
  if (decode_error(body, &reported).ok()) {
    require(!reported.ok());
    require(parse_message(encode_error(id, reported)).ok());
  }
}

}  // namespace
}  // namespace kvlane

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvlane;  // NOLINT: the entry point has no namespace of its own
  const ByteView bytes = std::as_bytes(std::span(data, size));
  if (const Result<Message> message = parse_message(bytes); message.ok()) {
    require(message->body.size() <= body_bytes_max(message->header.type));
    require(may_begin_message(bytes));
    read_body(message->body);
  }
  read_body(bytes);
  return 0;
}
