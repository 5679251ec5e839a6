// Addresses as text.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/link.h"

namespace kvlane {

std::string to_string(const Address& address) {
  const bool bracket = address.host.find(':') != std::string::npos;
  return (bracket ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

}  // namespace kvlane
