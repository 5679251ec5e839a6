// A peer that sends any messages in any order to an endpoint that sends, parks, expects with
// and without room, and fetches: no promise to the user is broken, every transfer ends, and nothing
// is left behind.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <optional>

#include "transfer/message.h"
#include "transfer/message_body.h"
#include "transfer/test_link.h"

namespace kvlane {
namespace {

void require(bool holds) {
  if (!holds) std::abort();  // libFuzzer's way to be told
}

struct Sink : TransferSink {
  explicit Sink(bool has_room) : room(has_room) {}
  Status on_begin(const TransferBegin&) override {
    require(!over && !begun);
    begun = true;
    return {};
  }
  Status on_slab(const Frame&) override {
    require(!over && begun && room);
    return {};
  }
  Durations on_end(const TransferEnd&) override {
    require(!over && begun && room);
    over = true;
    return {};
  }
  void on_failed(const Status& why) override {
    require(!over && !why.ok());
    over = true;
  }
  bool room;
  bool begun = false;
  bool over = false;
};

// The peer: remembers nothing, its messages come from the input.
struct Silent : LinkEvents {
  void on_message(ByteView) override {}
  void on_closed(Status) override {}
};

TransferId id_of(std::uint8_t number) {
  TransferId id;
  id.bytes.fill(number);
  return id;
}

FrameHeader header_at(std::uint8_t layer, std::uint8_t block) {
  FrameHeader header;
  header.layer = layer;
  header.kv_heads = header.head_dim = header.tokens = 1;
  header.position = std::int64_t{block} * kBlockTokens;
  header.k_bytes = header.v_bytes = 2;
  return header;
}

Bytes frame_at(std::uint8_t layer, std::uint8_t block) {
  const Bytes plane(2);
  Result<Bytes> frame = build_frame(header_at(layer, block), plane, plane);
  return frame.ok() ? std::move(*frame) : Bytes();
}

TransferEnd end_of_test() {
  TransferEnd end;
  end.first = {{1, {}, {}}};
  return end;
}

// One message as two bytes of the input choose, or with a body from the input.
Bytes message_of(std::uint8_t kind, std::uint8_t argument, ByteView body) {
  const TransferId id = id_of(static_cast<std::uint8_t>(argument % 5 + 1));
  const TransferBegin begin{1, 2, "bf16", "none"};
  const std::uint32_t round = argument / 16U;
  switch (kind % 13) {
    case 0: return encode_begin(id, begin);
    case 1: return encode_slab(id, frame_at(argument / 4 % 2, 0));
    case 2: return encode_end(id, {round, end_of_test()});
    case 3: return encode_missing(id, {round, {{argument / 4U % 2U, 0}}});
    case 4: return encode_missing(id, {round, {}});
    case 5: return encode_done(id, {});
    case 6: return encode_fetch(id);
    case 7: return encode_error(id, aborted("no"));
    case 8: return encode_hello(MessageType::kHelloAck, {"f", {}, {}, "bf16", {"none"}});
    case 9: return encode_hello(MessageType::kHello, {"f", {}, {}, "bf16", {"none"}});
    case 10: return encode_wait(id);
    case 11: return seal_message(MessageType{static_cast<std::uint8_t>(argument % 13)}, id, body);
    default: return Bytes(body.begin(), body.end());
  }
}

void run(ByteReader input) {
  const auto network = TestNetwork::create({});
  EndpointOptions options;
  options.idle_timeout = Seconds(1);
  options.lease = Seconds(1);
  auto endpoint = std::move(*Endpoint::start(*network, options));
  // Links that the endpoint opens, and one that this side opens.
  std::vector<std::shared_ptr<Link>> links;
  const auto silent = std::make_shared<Silent>();
  const Address here = *network->listen({"fuzz", 0}, [&](std::shared_ptr<Link> link) {
    links.push_back(std::move(link));
    return silent;
  });
  links.push_back(*network->connect(endpoint->address(), silent));

  const TransferBegin begin{1, 2, "bf16", "none"};
  int delivered = 0;
  const auto count = [&](const Result<Durations>&) { ++delivered; };
  const auto expected = std::make_shared<Sink>(true);
  const auto fetched = std::make_shared<Sink>(true);
  const auto waiting = std::make_shared<Sink>(false);
  (void)endpoint->expect(id_of(1), Seconds(3), expected);
  (void)endpoint->fetch(here, id_of(2), fetched);
  (void)endpoint->expect_waiting(id_of(5), Seconds(3), waiting);
  auto pushed = *endpoint->push(here, id_of(3), begin,
                                outgoing_bytes_needed(begin, frame_at(0, 0).size()), count);
  auto parked =
      *endpoint->park(id_of(4), begin, outgoing_bytes_needed(begin, frame_at(0, 0).size()), count);
  for (const auto& outgoing : {pushed, parked}) {
    for (std::uint8_t layer = 0; layer < 2; ++layer) {
      const Bytes plane(2);
      require(outgoing->add_slab(header_at(layer, 0), body_of(plane, plane)).ok());
    }
    outgoing->finish(end_of_test());
  }
  while (input.remaining() >= 3) {
    const auto where = input.read<std::uint8_t>();
    const auto kind = input.read<std::uint8_t>();
    const auto argument = input.read<std::uint8_t>();
    if (kind == 255) {
      waiting->room = true;
      (void)endpoint->grant(id_of(5), *waiting);
    }
    const bool has_body = kind % 13 >= 11;
    const ByteView body = has_body
                              ? input.read_bytes(std::min<std::size_t>(argument, input.remaining()))
                              : ByteView();
    Bytes message = message_of(kind, argument, body);
    (void)links[where % links.size()]->post(std::make_shared<const Bytes>(std::move(message)));
    network->run_for(Seconds(where >= 128 ? 0.1 : 0.002));
  }
  // Nobody says anything any more: all limits pass.
  network->run_for(Seconds(10));
  require(delivered == 2);
  for (const auto& sink : {expected, fetched, waiting}) require(sink->over);
  require(expected.use_count() == 1 && fetched.use_count() == 1 && waiting.use_count() == 1);
  require(endpoint->outgoing_bytes_free() == options.outgoing_bytes_max);
}

}  // namespace
}  // namespace kvlane

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvlane::run(kvlane::ByteReader(std::as_bytes(std::span(data, size))));
  return 0;
}
