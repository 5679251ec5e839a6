// Which networks the tests of real links run over: TCP, with one and with several connections, and
// shared memory in transfer_test, UCX in ucx_test, a program that is made of the same files.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "transfer/tcp.h"
#include "transfer/ucx.h"

namespace kvlane::testing {

// What carries the messages of a test.
struct Carrier {
  LinkPath path = LinkPath::kTcp;
  std::uint32_t streams = 1;
};

#ifdef KVLANE_TEST_UCX
inline constexpr Carrier kCarriers[] = {{LinkPath::kUcx, 1}};
#else
inline constexpr Carrier kCarriers[] = {
    {LinkPath::kTcp, 1}, {LinkPath::kTcp, 3}, {LinkPath::kSharedMemory, 1}};
#endif

inline std::string name_of_carrier(const ::testing::TestParamInfo<Carrier>& info) {
  switch (info.param.path) {
    case LinkPath::kTcp: return info.param.streams == 1 ? "Tcp" : "TcpOverSeveral";
    case LinkPath::kSharedMemory: return "SharedMemory";
    case LinkPath::kUcx: return "Ucx";
  }
  return "";
}

// A network on this machine whose links to itself are such.
inline std::unique_ptr<Network> network_over(const Carrier& carrier, TcpOptions options = {}) {
  if (carrier.path == LinkPath::kUcx) {
    return std::move(*make_ucx_network({.devices = "lo",
                                        .connect_timeout = options.connect_timeout,
                                        .silence_timeout = options.user_timeout,
                                        .queue_bytes_max = options.queue_bytes_max,
                                        .accepted_max = options.accepted_max}));
  }
  options.shared_memory = carrier.path == LinkPath::kSharedMemory;
  options.streams = carrier.streams;
  return std::move(*make_tcp_network(options));
}

}  // namespace kvlane::testing
