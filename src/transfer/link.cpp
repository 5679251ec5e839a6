// Addresses and paths as text.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/link.h"

namespace kvlane {

std::string to_string(const Address& address) {
  const bool bracket = address.host.find(':') != std::string::npos;
  return (bracket ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

std::string_view path_name(LinkPath path) {
  switch (path) {
    case LinkPath::kSharedMemory: return "shared memory";
    case LinkPath::kUcx: return "UCX";
    case LinkPath::kTcp: break;
  }
  return "TCP";
}

}  // namespace kvlane
