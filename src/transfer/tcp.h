// The network of transfers over TCP: spec/transfer.md section 10.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
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
  int accepted_max = 1024;  // links that peers opened; more are closed at once
};

// Starts the network's thread; kExhausted when the system gives none. The destructor sends what is
// queued for at most a quarter of a second. A name look-up that is under way may delay it further.
Result<std::unique_ptr<Network>> make_tcp_network(const TcpOptions& options = {});

}  // namespace kvlane
