// Copies: hosts are little-endian, as base/bytes.h asserts.
// SPDX-License-Identifier: Apache-2.0
#include "codec/none.h"

#include <cassert>
#include <cstring>
#include <string>

namespace kvlane {

std::size_t NoneCodec::encode(ElementType, std::span<const std::uint16_t> values,
                              std::span<std::byte> destination) const {
  assert(destination.size() >= values.size_bytes());
  if (!values.empty()) std::memcpy(destination.data(), values.data(), values.size_bytes());
  return values.size_bytes();
}

Status NoneCodec::decode(ElementType, ByteView coded, std::span<std::uint16_t> values) const {
  if (coded.size() != values.size_bytes()) {
    return corrupt("an uncoded plane of " + std::to_string(values.size()) + " values has " +
                   std::to_string(coded.size()) + " bytes");
  }
  if (!values.empty()) std::memcpy(values.data(), coded.data(), coded.size());
  return {};
}

}  // namespace kvlane
