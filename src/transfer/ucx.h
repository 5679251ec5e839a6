// The network of transfers over UCX, for fabrics whose every member is trusted: spec/transfer.md
// section 12. A build without UCX's headers has the functions, and no such network.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "transfer/link.h"

namespace kvlane {

struct UcxOptions {
  // What UCX calls its network devices, with commas between them: "lo", "eth0", "mlx5_0:1". Never
  // empty: UCX would then open a port on every device of the machine.
  std::string devices;
  Seconds connect_timeout{5};  // name look-up included
  // A link is broken when nothing came over it for so long, though its peer was asked: UCX itself
  // does not notice that a cable was pulled. A peer that is stopped breaks its links, too. Time in
  // which this process was stopped does not count.
  Seconds silence_timeout{10};
  // As in TcpOptions.
  std::size_t queue_bytes_max = std::size_t{16} << 20;
  int accepted_max = 1024;
};

// Whether this build knows UCX. Whether its library is there is found when a network is made.
bool has_ucx();

// Starts the network's thread. Of a name's addresses a link tries the first of IPv4, or the first.
// kUnsupported without UCX in the build, kInvalidArgument without devices, kUnavailable without
// UCX's library, which the first call loads, or when UCX cannot use the devices. The destructor
// sends what is queued for at most a quarter of a second.
Result<std::unique_ptr<Network>> make_ucx_network(const UcxOptions& options);

}  // namespace kvlane
