// Fair rates by hand, and bytes over time.
// SPDX-License-Identifier: Apache-2.0
#include "sim/network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/random.h"

namespace kvlane {
namespace {

using Rates = std::vector<double>;

TEST(FairRates, APortIsSharedEqually) {
  const Rates ports = {9, 100, 100};
  const std::vector<FlowRoute> flows = {{0, 1}, {0, 1}, {0, 2}};
  EXPECT_EQ(fair_rates(ports, flows), (Rates{3, 3, 3}));
}

TEST(FairRates, DirectionsDoNotDisturbEachOther) {
  const Rates ports = {10, 10};
  const std::vector<FlowRoute> flows = {{0, 1}, {1, 0}};
  EXPECT_EQ(fair_rates(ports, flows), (Rates{10, 10}));
}

TEST(FairRates, WhatOneCannotUseTheOthersGet) {
  const Rates ports = {12, 2, 100};
  // The first is held up where it arrives, the second by its own limit.
  const std::vector<FlowRoute> flows = {{0, 1}, {0, 2, 3}, {0, 2}};
  EXPECT_EQ(fair_rates(ports, flows), (Rates{2, 3, 7}));
}

TEST(FairRates, NoFlows) { EXPECT_TRUE(fair_rates(Rates{1, 2}, {}).empty()); }

// The definition: nobody can have more without taking from one who has no more than itself. So each
// flow is at its limit, or goes through a full port of which no flow has more than it.
TEST(FairRates, AreMaxMinFair) {
  for (std::uint32_t round = 0; round < 200; ++round) {
    std::uint32_t drawn = 0;
    const auto draw = [&](std::uint32_t below) {
      return philox4x32(round, {drawn++, 0, 0, 0})[0] % below;
    };
    Rates ports(2 + draw(5));
    for (double& port : ports) port = 1 + draw(20);
    std::vector<FlowRoute> flows(1 + draw(12));
    for (FlowRoute& flow : flows) {
      flow.from = static_cast<int>(draw(static_cast<std::uint32_t>(ports.size())));
      flow.to = static_cast<int>(draw(static_cast<std::uint32_t>(ports.size())));
      if (draw(3) == 0) flow.rate_max = 1 + draw(6);
    }
    const Rates rates = fair_rates(ports, flows);
    const auto bound_by = [&](std::size_t i, int port, int FlowRoute::*end) {
      double sum = 0;
      double most = 0;
      for (std::size_t j = 0; j < flows.size(); ++j) {
        if (flows[j].*end != port) continue;
        sum += rates[j];
        most = std::max(most, rates[j]);
      }
      EXPECT_LE(sum, ports[port] * (1 + 1e-12));
      return sum >= ports[port] * (1 - 1e-12) && rates[i] >= most * (1 - 1e-12);
    };
    for (std::size_t i = 0; i < flows.size(); ++i) {
      EXPECT_LE(rates[i], flows[i].rate_max);
      EXPECT_TRUE(rates[i] == flows[i].rate_max || bound_by(i, flows[i].from, &FlowRoute::from) ||
                  bound_by(i, flows[i].to, &FlowRoute::to))
          << "round " << round << ", flow " << i;
    }
  }
}

constexpr SimTime kSecond = 1'000'000'000;

TEST(Network, TheSecondFlowSlowsTheFirst) {
  Network network;
  const int from = network.add_port(10);
  const int to = network.add_port(100);
  const int first = network.open({from, to});
  network.add_bytes(0, first, 10);
  EXPECT_EQ(network.next_dry(), kSecond);
  const int second = network.open({from, to});
  network.add_bytes(kSecond / 2, second, 10);
  // 5 are left of the first, at 5 a second.
  EXPECT_EQ(network.next_dry(), kSecond * 3 / 2);
  EXPECT_EQ(network.advance(kSecond * 3 / 2), std::vector<int>{first});
  network.close(first);
  // 5 are left of the second, at 10 a second.
  EXPECT_EQ(network.next_dry(), kSecond * 2);
  EXPECT_EQ(network.advance(kSecond * 2), std::vector<int>{second});
  EXPECT_EQ(network.next_dry(), std::nullopt);
  EXPECT_DOUBLE_EQ(network.sent(from), 20);
  EXPECT_DOUBLE_EQ(network.sent(to), 0);
  EXPECT_DOUBLE_EQ(network.busy(from), 2);
  EXPECT_DOUBLE_EQ(network.busy(to), 2);
}

TEST(Network, AFlowMayRunDryAndGoOn) {
  Network network;
  const int port = network.add_port(8);
  const int flow = network.open({port, port, 4});
  network.add_bytes(0, flow, 4);
  EXPECT_EQ(network.advance(kSecond), std::vector<int>{flow});
  EXPECT_TRUE(network.advance(3 * kSecond).empty());
  network.add_bytes(3 * kSecond, flow, 8);
  network.add_bytes(4 * kSecond, flow, 4);
  EXPECT_EQ(network.next_dry(), 6 * kSecond);
  EXPECT_EQ(network.advance(6 * kSecond), std::vector<int>{flow});
  EXPECT_DOUBLE_EQ(network.busy(port), 4);
  network.close(flow);
  EXPECT_EQ(network.open({port, port}), flow) << "numbers are used again";
}

// One flow goes on in the moment in which it ran dry, after another one was given bytes: nobody may
// keep a rate from before.
TEST(Network, APortIsNeverSharedTwice) {
  Network network;
  const int port = network.add_port(10);
  const int first = network.open({port, port});
  const int second = network.open({port, port});
  network.add_bytes(0, first, 10);
  network.add_bytes(kSecond, second, 10);
  network.add_bytes(kSecond, first, 10);
  EXPECT_EQ(network.next_dry(), 3 * kSecond);
  EXPECT_EQ(network.advance(3 * kSecond), (std::vector<int>{first, second}));
  EXPECT_DOUBLE_EQ(network.sent(port), 30);
}

}  // namespace
}  // namespace kvlane
