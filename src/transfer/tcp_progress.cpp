// TCP_INFO. A file of its own, because the kernel's header, which knows more members than the C
// library's, cannot be included together with that one.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/tcp_progress.h"

#include <linux/tcp.h>
#include <sys/socket.h>

#include <cstddef>

namespace kvlane {

std::optional<LinkProgress> tcp_progress(int socket) {
  constexpr int kProtocolTcp = 6;
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(socket, kProtocolTcp, TCP_INFO, &info, &bytes) != 0) return std::nullopt;
  if (bytes < offsetof(tcp_info, tcpi_sndbuf_limited)) return std::nullopt;
  return LinkProgress{info.tcpi_bytes_acked,
                      Seconds(static_cast<double>(info.tcpi_rwnd_limited) * 1e-6)};
}

}  // namespace kvlane
