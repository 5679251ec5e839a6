// Limits and arguments of endpoints, and what the destructor still does.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transfer/test_pair.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using namespace testing;  // NOLINT: the helpers of transfers

// Limits and arguments.

TEST(Endpoint, FramesOfAnotherTransferAreNotSent) {
  Pair pair;
  Journey journey(pair, 1, begin_of(100, 2));
  const SlabName slab{1, 1};
  const auto with = [&](const std::function<void(FrameHeader&)>& change) {
    FrameHeader header = frame_header_of(journey.begin, slab);
    change(header);
    return add_frame(*journey.outgoing, frame_with(header, slab));
  };
  const std::pair<Status, const char*> wrong[] = {
      {with([](FrameHeader& h) { h.model = model_named('x'); }), "a frame of model 7878"},
      {with([](FrameHeader& h) { h.codec = "zstd"; }), "codec zstd"},
      {with([](FrameHeader& h) { h.layer = 2; }), "layer 2"},
      {with([](FrameHeader& h) { h.position = 128; }), "position 128"},
      {with([](FrameHeader& h) { h.tokens = 35; }), "35 tokens"},
  };
  for (const auto& [status, sentence] : wrong) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(sentence));
  }
  ASSERT_TRUE(with([](FrameHeader&) {}).ok());
  EXPECT_THAT(with([](FrameHeader&) {}).message(), HasSubstr("twice"));
  FrameHeader longer = frame_header_of(journey.begin, {0, 0});
  longer.k_bytes = kSlabBodyBytesMax;
  EXPECT_THAT(journey.outgoing->add_slab(longer, body_of({}, {})).message(), HasSubstr("at most"));
  FrameHeader wider = frame_header_of(journey.begin, {0, 0});
  wider.head_dim = kFrameHeadDimMax + 1;
  wider.k_bytes = wider.v_bytes = 2;
  EXPECT_THAT(journey.outgoing->add_slab(wider, body_of({}, {})).message(), HasSubstr("head_dim"));
}

TEST(Endpoint, ArgumentsAreChecked) {
  Pair pair;
  const Address peer = pair.b->address();
  EXPECT_EQ(pair.a->push(peer, id_of(1), begin_of(0, 1), bytes_for(begin_of(0, 1)), nullptr)
                .status()
                .code(),
            Code::kInvalidArgument);
  EXPECT_EQ(pair.a->park(id_of(1), {1, 1, "fp16", "none"}, 0, nullptr).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(pair.a->park({}, begin_of(1, 1), bytes_for(begin_of(1, 1)), nullptr).status().code(),
            Code::kInvalidArgument);
  ASSERT_TRUE(pair.a->park(id_of(1), begin_of(1, 1), bytes_for(begin_of(1, 1)), nullptr).ok());
  EXPECT_EQ(pair.b->expect(id_of(1), Seconds(1), nullptr).code(), Code::kInvalidArgument);
  EXPECT_EQ(pair.b->expect({}, Seconds(1), std::make_shared<CheckingSink>()).code(),
            Code::kInvalidArgument);

  const auto start_with = [&](const std::function<void(EndpointOptions&)>& change) {
    EndpointOptions options = options_for_test();
    change(options);
    return Endpoint::start(*pair.network, options).status();
  };
  EXPECT_THAT(start_with([](auto& o) { o.bind.host = "0.0.0.0"; }).message(),
              HasSubstr("advertised host"));
  EXPECT_THAT(start_with([](auto& o) { o.format = "A B"; }).message(), HasSubstr("format"));
  EXPECT_THAT(start_with([](auto& o) { o.codecs = ""; }).message(), HasSubstr("codecs"));
  EXPECT_THAT(start_with([](auto& o) { o.idle_timeout = Seconds(0); }).message(),
              HasSubstr("positive"));
  EXPECT_TRUE(start_with([](auto& o) {
                o.bind.host = "0.0.0.0";
                o.advertised_host = "worker-7";
              }).code() == Code::kOk);
}

TEST(Endpoint, TransfersHaveALimit) {
  Pair pair;
  std::vector<std::shared_ptr<OutgoingTransfer>> kept;
  for (std::uint32_t i = 0; i < 4096; ++i) {
    kept.push_back(*pair.a->park(id_of(i), begin_of(1, 1), bytes_for(begin_of(1, 1)), nullptr));
    ASSERT_TRUE(pair.b->expect(id_of(i), Seconds(1), std::make_shared<CheckingSink>()).ok());
  }
  EXPECT_EQ(
      pair.a->park(id_of(9999), begin_of(1, 1), bytes_for(begin_of(1, 1)), nullptr).status().code(),
      Code::kExhausted);
  EXPECT_EQ(pair.b->expect(id_of(9999), Seconds(1), std::make_shared<CheckingSink>()).code(),
            Code::kExhausted);
}

TEST(Endpoint, PeersHaveALimit) {
  Pair pair;
  Status status;
  for (std::uint16_t i = 0; i < 257; ++i) {
    const auto pushed = pair.a->push({"127.0.0.1", static_cast<std::uint16_t>(5000 + i)}, id_of(i),
                                     begin_of(1, 1), bytes_for(begin_of(1, 1)), nullptr);
    status = pushed.status();
  }
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_THAT(status.message(), HasSubstr("256 peers"));
}

TEST(Endpoint, FullLinksAreWaitedFor) {
  auto network = TestNetwork::create({.faults = {}, .queue_bytes_max = 2000});
  auto a = std::move(*Endpoint::start(*network, options_for_test()));
  auto b = std::move(*Endpoint::start(*network, options_for_test()));
  const TransferBegin begin = begin_of(64 * 20, 3);
  std::vector<std::shared_ptr<CheckingSink>> sinks;
  std::vector<Delivery> deliveries(3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<CheckingSink>());
    ASSERT_TRUE(b->expect(id_of(i), Seconds(5), sinks.back()).ok());
    auto outgoing =
        *a->push(b->address(), id_of(i), begin, bytes_for(begin), deliveries[i].callback());
    ASSERT_TRUE(send_all(*outgoing, begin, 1).ok());
  }
  for (std::uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(network->run_until([&] { return deliveries[i].over(); }, Seconds(60)));
    EXPECT_TRUE(deliveries[i].ok()) << deliveries[i].status().message();
    EXPECT_TRUE(sinks[i]->end().has_value());
  }
}

TEST(Endpoint, ALinkThatWasFullOfWhatIsOverTakesTheNext) {
  auto network =
      TestNetwork::create({.faults = {.bytes_per_second = 1e6}, .queue_bytes_max = 2000});
  Workers workers{std::move(*Endpoint::start(*network, options_for_test())),
                  std::move(*Endpoint::start(*network, options_for_test()))};
  const TransferBegin begin = begin_of(64 * 20, 3);
  Journey first(workers, 1, begin);
  ASSERT_TRUE(first.send().ok());
  ASSERT_TRUE(network->run_until([&] { return first.sink->slabs() >= 3; }, Seconds(60)));
  workers.b->cancel(first.id, *first.sink);
  ASSERT_TRUE(network->run_until([&] { return first.delivery.over(); }, Seconds(60)));
  EXPECT_FALSE(first.delivery.ok());
  network->run_for(Seconds(0.1));  // what was on its way has arrived
  Journey second(workers, 2, begin);
  ASSERT_TRUE(second.send().ok());
  ASSERT_TRUE(network->run_until([&] { return second.delivery.over(); }, Seconds(60)));
  second.expect_success();
}

TEST(Endpoint, IdleLinksAreClosedAndDialledAgain) {
  Pair pair;
  Journey first(pair, 1, begin_of(10, 1));
  ASSERT_TRUE(first.send().ok());
  ASSERT_TRUE(pair.run(*first.sink, first.delivery));
  const std::uint64_t before = pair.network->messages();
  pair.network->run_for(Seconds(400));
  EXPECT_EQ(pair.network->messages(), before) << "an idle link is silent";
  Journey second(pair, 2, begin_of(10, 1));
  ASSERT_TRUE(second.send().ok());
  ASSERT_TRUE(pair.run(*second.sink, second.delivery));
  second.expect_success();
  EXPECT_EQ(pair.network->messages(), 2 * before) << "with a new handshake";
}

TEST(Endpoint, TheDestructorMakesTheLastCalls) {
  Pair pair;
  Journey pushed(pair, 1, begin_of(100, 2));
  Journey parked(pair, 2, begin_of(100, 2), /*parked=*/true);
  Journey failed(pair, 3, begin_of(100, 2));
  failed.outgoing->fail(internal_error("just before"));
  pair.network->run_for(Seconds(0));  // its callback may still be on the way
  pair.a.reset();
  pair.b.reset();
  EXPECT_EQ(pushed.delivery.status().code(), Code::kAborted);
  EXPECT_EQ(parked.delivery.status().code(), Code::kAborted);
  EXPECT_EQ(failed.delivery.status().code(), Code::kInternal);
  EXPECT_EQ(pushed.sink->failure().code(), Code::kAborted);
  EXPECT_EQ(pushed.sink.use_count(), 1);
  pair.network->run_for(Seconds(100));
  EXPECT_EQ(pushed.outgoing->add_slab({}, body_of({}, {})).code(), Code::kAborted);
  pushed.outgoing->finish({});
  parked.outgoing->fail(aborted("late"));
}

}  // namespace
}  // namespace kvlane
