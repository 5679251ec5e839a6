// Which networks the tests of real links run over: TCP and shared memory in transfer_test, UCX in
// ucx_test, a program of builds with KVLANE_UCX that is made of the same files.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "transfer/tcp.h"
#include "transfer/ucx.h"

namespace kvlane::testing {

#ifdef KVLANE_TEST_UCX
inline const auto kPathsUnderTest = ::testing::Values(LinkPath::kUcx);
#else
inline const auto kPathsUnderTest = ::testing::Values(LinkPath::kTcp, LinkPath::kSharedMemory);
#endif

inline std::string path_of_test(const ::testing::TestParamInfo<LinkPath>& info) {
  switch (info.param) {
    case LinkPath::kTcp: return "Tcp";
    case LinkPath::kSharedMemory: return "SharedMemory";
    case LinkPath::kUcx: return "Ucx";
  }
  return "";
}

// A network on this machine whose links to itself are such.
inline std::unique_ptr<Network> network_over(LinkPath path, TcpOptions options = {}) {
  if (path == LinkPath::kUcx) {
    return std::move(*make_ucx_network({.devices = "lo",
                                        .connect_timeout = options.connect_timeout,
                                        .silence_timeout = options.user_timeout,
                                        .queue_bytes_max = options.queue_bytes_max,
                                        .accepted_max = options.accepted_max}));
  }
  options.shared_memory = path == LinkPath::kSharedMemory;
  return std::move(*make_tcp_network(options));
}

}  // namespace kvlane::testing
