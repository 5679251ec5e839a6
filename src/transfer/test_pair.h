// Two endpoints and a transfer between them, for the tests of endpoints.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "transfer/test_link.h"
#include "transfer/test_support.h"

namespace kvlane::testing {

// `a` sends, `b` receives.
struct Workers {
  std::unique_ptr<Endpoint> a;
  std::unique_ptr<Endpoint> b;
};

// On one test network.
struct Pair : Workers {
  explicit Pair(const TestFaults& faults = {}, EndpointOptions for_a = options_for_test(),
                EndpointOptions for_b = options_for_test(),
                std::size_t queue_bytes_max = std::size_t{8} << 20)
      : network(TestNetwork::create({.drive = TestNetwork::Drive::kManual,
                                     .faults = faults,
                                     .queue_bytes_max = queue_bytes_max})) {
    a = std::move(*Endpoint::start(*network, std::move(for_a)));
    b = std::move(*Endpoint::start(*network, std::move(for_b)));
  }

  // Until the sink, the callback or both are over; false when they take longer than a minute.
  bool run(const CheckingSink& sink) {
    return network->run_until([&] { return sink.over(); }, Seconds(60));
  }
  bool run(const Delivery& delivery) {
    return network->run_until([&] { return delivery.over(); }, Seconds(60));
  }
  bool run(const CheckingSink& sink, const Delivery& delivery) {
    return run(sink) && run(delivery);
  }

  ~Pair() {
    a.reset();
    b.reset();
  }

  std::unique_ptr<TestNetwork> network;
};

// A transfer that was offered and is expected.
struct Journey {
  Journey(const TransferId& transfer, const TransferBegin& what) : id(transfer), begin(what) {}
  // `hook`: the sink's, which may be called at once.
  Journey(Workers& of, std::uint32_t number, const TransferBegin& what, bool parked = false,
          std::function<Status(const char*)> hook = nullptr)
      : Journey(id_of(number), what) {
    sink->hook = std::move(hook);
    if (parked) {
      outgoing = *of.a->park(id, begin, bytes_for(begin), delivery.callback());
    } else {
      EXPECT_TRUE(of.b->expect(id, Seconds(30), sink).ok());
      outgoing = *of.a->push(of.b->address(), id, begin, bytes_for(begin), delivery.callback());
    }
  }
  Status send() { return send_all(*outgoing, begin, 17); }
  void expect_success() const {
    ASSERT_TRUE(sink->end().has_value()) << sink->failure().message();
    EXPECT_EQ(sink->end()->first.at(0).token, 17);
    EXPECT_EQ(sink->end()->seed, end_of(17).seed);
    Durations durations = sink->end()->durations;
    // What the endpoint itself adds: see TheTimeOfALateLinkIsTold, WaitIsTold.
    durations.erase("transfer");
    durations.erase("wait_for_memory");
    EXPECT_EQ(durations, end_of(17).durations);
    ASSERT_TRUE(delivery.over() && delivery.ok()) << delivery.status().message();
    EXPECT_EQ(delivery.durations(), (Durations{{"decode_codec", 0.25}}));
  }

  TransferId id;
  TransferBegin begin;
  std::shared_ptr<CheckingSink> sink = std::make_shared<CheckingSink>();
  Delivery delivery;
  std::shared_ptr<OutgoingTransfer> outgoing;
};

// A push to a receiver without room. Slabs before grant() are errors.
struct HeldJourney : Journey {
  HeldJourney(Workers& workers, std::uint32_t number, const TransferBegin& what,
              Seconds wait = Seconds(30))
      : Journey(id_of(number), what), of(workers) {
    sink->hook = [this](const char* call) {
      EXPECT_TRUE(granted || call == std::string("begin") || call == std::string("failed")) << call;
      return Status();
    };
    EXPECT_TRUE(of.b->expect_waiting(id, wait, sink).ok());
    outgoing = *of.a->push(of.b->address(), id, begin, bytes_for(begin), delivery.callback());
  }
  void grant() {
    granted = true;
    EXPECT_TRUE(of.b->grant(id, *sink).ok());
  }

  Workers& of;
  std::atomic<bool> granted = false;
};

}  // namespace kvlane::testing
