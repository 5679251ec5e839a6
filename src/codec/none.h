// Codec `none`: the values themselves, little-endian (spec/frame.md, section 5).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/codec.h"

namespace kvlane {

class NoneCodec final : public Codec {
 public:
  std::string_view name() const override { return "none"; }
  std::size_t bound(const PlaneShape& shape) const override { return shape.bytes(); }
  bool writes_bound() const override { return true; }
  using Codec::decode;
  using Codec::encode;
  std::size_t encode(const PlaneShape& shape, const PlaneView& plane, const Codebook* book,
                     std::span<std::byte> destination) const override;
  Status decode(const PlaneShape& shape, ByteView coded, const PlaneSpan& plane) const override;
};

}  // namespace kvlane
