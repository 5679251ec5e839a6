// Copies: hosts are little-endian, as base/bytes.h asserts.
// SPDX-License-Identifier: Apache-2.0
#include "codec/none.h"

#include <cassert>
#include <string>

namespace kvlane {

std::size_t NoneCodec::encode(const PlaneShape& shape, const PlaneView& plane, const Codebook*,
                              std::span<std::byte> destination) const {
  assert(destination.size() >= shape.bytes());
  copy_plane(shape, plane, destination.data());
  return shape.bytes();
}

Status NoneCodec::decode(const PlaneShape& shape, ByteView coded, const PlaneSpan& plane) const {
  if (coded.size() != shape.bytes()) {
    return corrupt("an uncoded plane of " + std::to_string(shape.elements()) + " values has " +
                   std::to_string(coded.size()) + " bytes");
  }
  copy_plane(shape, coded.data(), plane);
  return {};
}

}  // namespace kvlane
