// Two workers over links of every kind: the test double in virtual time, and TCP with one and with
// several connections, shared memory and UCX between two networks in real time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "transfer/test_network.h"
#include "transfer/test_pair.h"

namespace kvlane::testing {

// The parameter says what carries the messages; nothing: the test double.
class OverLinks : public ::testing::TestWithParam<std::optional<Carrier>>, public Workers {
 protected:
  OverLinks() { start(); }
  ~OverLinks() override {
    a.reset();
    b.reset();
  }

  void start(const EndpointOptions& for_a = options_for_test(),
             const EndpointOptions& for_b = options_for_test()) {
    a.reset();
    b.reset();
    networks_.clear();
    double_.reset();
    if (!GetParam()) double_ = TestNetwork::create({});
    a = worker(for_a);
    b = worker(for_b);
  }
  // One more. The double has all of them on one network, others each on its own.
  std::unique_ptr<Endpoint> worker(const EndpointOptions& options = options_for_test()) {
    if (!double_) networks_.push_back(network_over(*GetParam()));
    return std::move(
        *Endpoint::start(double_ ? static_cast<Network&>(*double_) : *networks_.back(), options));
  }
  Address nobody() {
    if (double_) return {"127.0.0.1", 9};
    const Address address = worker()->address();
    networks_.pop_back();
    return address;
  }

  template <class Condition>
  bool run_until(const Condition& condition) {
    if (double_) return double_->run_until(condition, Seconds(60));
    const TimePoint start = SteadyClock::now();
    while (!condition()) {
      if (seconds_since(start) > 20) return false;
      std::this_thread::yield();
    }
    return true;
  }
  bool run(const CheckingSink& sink) {
    return run_until([&] { return sink.over(); });
  }
  bool run(const Delivery& delivery) {
    return run_until([&] { return delivery.over(); });
  }
  bool run(const Journey& journey) { return run(*journey.sink) && run(journey.delivery); }
  bool begins(const Journey& journey) {
    return run_until([&] { return journey.sink->begun(); });
  }
  bool has_slabs(const Journey& journey, std::size_t count) {
    return run_until([&] { return journey.sink->slabs() == count; });
  }
  bool lets_go_of(const std::shared_ptr<CheckingSink>& sink) {
    return run_until([&] { return sink.use_count() == 1; });
  }
  Status fetch(Journey& journey) { return b->fetch(a->address(), journey.id, journey.sink); }

  std::unique_ptr<TestNetwork> double_;
  std::vector<std::unique_ptr<Network>> networks_;
};

inline std::vector<std::optional<Carrier>> all_links() {
  std::vector<std::optional<Carrier>> all = {std::nullopt};
  all.insert(all.end(), std::begin(kCarriers), std::end(kCarriers));
  return all;
}

inline std::string name_of_links(const ::testing::TestParamInfo<std::optional<Carrier>>& of) {
  return of.param ? name_of_carrier({*of.param, of.index}) : std::string("TestDouble");
}

}  // namespace kvlane::testing
