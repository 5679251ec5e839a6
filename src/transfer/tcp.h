// The network of transfers over TCP, and between workers of one host through shared memory:
// spec/transfer.md sections 10 and 11.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "transfer/link.h"

namespace kvlane {

struct TcpOptions {
  Seconds connect_timeout{5};  // name look-up included
  // A link is broken when its peer's system acknowledges no data for so long, nor the probes that
  // go out when nothing else does. Whole seconds between probes: at least 2 are noticed in time.
  // A peer whose system lives while it hangs is for the transfers' own limit to notice.
  Seconds user_timeout{10};
  // Messages queued on one link; then post() is kExhausted. They are shared with whoever keeps
  // them, so this bounds what is under way, not memory. Enough to keep a fast link busy while
  // nobody posts.
  std::size_t queue_bytes_max = std::size_t{16} << 20;
  int accepted_max = 1024;  // connections that peers opened; more are closed at once
  // TCP connections of each link that this side opens, 1 to 16; fewer where the peer permits fewer.
  // A link in shared memory has one.
  std::uint32_t streams = 1;
  // Whether links to workers of the same host and user leave TCP when both sides can; all other
  // links, and those for which the system gives no memory, stay there.
  bool shared_memory = true;
  // One direction of such a link, of those that this side opens: a power of two from 64 KiB to
  // 16 MiB. Small, so that what goes through it stays in the processor's cache.
  std::size_t shared_ring_bytes = std::size_t{1} << 20;
};

// Starts the network's thread; kExhausted when the system gives none. The destructor sends what is
// queued for at most a quarter of a second. A name look-up that is under way may delay it further.
Result<std::unique_ptr<Network>> make_tcp_network(const TcpOptions& options = {});

}  // namespace kvlane
