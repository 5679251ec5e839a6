// Codec `none`: the values themselves, little-endian (spec/frame.md, section 5).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/codec.h"

namespace kvlane {

class NoneCodec final : public Codec {
 public:
  std::string_view name() const override { return "none"; }
  std::size_t bound(std::size_t elements) const override { return 2 * elements; }
  std::size_t encode(ElementType type, std::span<const std::uint16_t> values,
                     std::span<std::byte> destination) const override;
  Status decode(ElementType type, ByteView coded, std::span<std::uint16_t> values) const override;
};

}  // namespace kvlane
