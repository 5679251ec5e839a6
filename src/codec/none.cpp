// Copies: hosts are little-endian, as base/bytes.h asserts.
// SPDX-License-Identifier: Apache-2.0
#include "codec/none.h"

#include <cassert>
#include <cstring>
#include <string>

namespace kvlane {

std::size_t NoneCodec::encode(const PlaneShape& shape, const PlaneView& plane, const Codebook*,
                              std::span<std::byte> destination) const {
  assert(destination.size() >= shape.bytes());
  copy_plane(shape, plane, destination.data());
  return shape.bytes();
}

Status NoneCodec::decode(const PlaneShape& shape, ByteView coded,
                         std::span<std::byte> plane) const {
  assert(plane.size() == shape.bytes());
  if (coded.size() != plane.size()) {
    return corrupt("an uncoded plane of " + std::to_string(shape.elements()) + " values has " +
                   std::to_string(coded.size()) + " bytes");
  }
  if (!plane.empty()) std::memcpy(plane.data(), coded.data(), coded.size());
  return {};
}

}  // namespace kvlane
