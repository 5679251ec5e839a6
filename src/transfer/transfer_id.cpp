// Names of transfers: how they are drawn, written and read.
// SPDX-License-Identifier: Apache-2.0
#include <sys/random.h>

#include <random>
#include <span>

#include "crypto/sha256.h"
#include "transfer/endpoint.h"
#include "transfer/hex.h"

namespace kvlane {

TransferId random_transfer_id() {
  TransferId id;
  // Up to 256 bytes come whole and are never refused once the system has gathered entropy.
  if (::getrandom(id.bytes.data(), id.bytes.size(), 0) != static_cast<ssize_t>(id.bytes.size())) {
    std::random_device device;  // a kernel that filters the system call
    for (std::uint8_t& byte : id.bytes) byte = static_cast<std::uint8_t>(device());
  }
  return id;
}

std::string to_string(const TransferId& id) { return to_hex(std::as_bytes(std::span(id.bytes))); }

Result<TransferId> parse_transfer_id(std::string_view text) {
  TransferId id;
  if (!parse_hex(text, std::as_writable_bytes(std::span(id.bytes)))) {
    return invalid_argument("a transfer id has 32 lower-case hexadecimal digits, not \"" +
                            std::string(text.substr(0, 64)) + "\"");
  }
  return id;
}

}  // namespace kvlane
