// The table of codecs, the one place that knows them all; and what they share.
// SPDX-License-Identifier: Apache-2.0
#include "codec/codec.h"

#include <cassert>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <string>

#include "codec/channel.h"
#include "codec/none.h"
#include "codec/splitzip.h"

namespace kvlane {

void copy_plane(const PlaneShape& shape, const PlaneView& plane, std::byte* dense) {
  const std::size_t bytes = shape.head_bytes();
  if (bytes == 0) return;
  for (int head = 0; head < shape.kv_heads; ++head) {
    std::memcpy(dense + bytes * head, plane.head(head), bytes);
  }
}

std::size_t Codec::encode(const PlaneShape& shape, ByteView plane, const Codebook* book,
                          std::span<std::byte> destination) const {
  assert(plane.size() == shape.bytes());
  return encode(shape, dense_plane(shape, plane.data()), book, destination);
}

Result<const Codec*> find_codec(std::string_view name, Isa isa) {
  static const NoneCodec none;
  static const SplitZipCodec splitzip[] = {SplitZipCodec(Isa::kScalar), SplitZipCodec(Isa::kAvx2),
                                           SplitZipCodec(Isa::kAvx512)};
  static_assert(std::size(splitzip) == kAllIsas.size() && std::size_t(Isa::kAvx512) == 2);
  static const ChannelCodec channel[] = {ChannelCodec(Isa::kScalar), ChannelCodec(Isa::kAvx2),
                                         ChannelCodec(Isa::kAvx512)};
  const auto tier = static_cast<std::size_t>(isa);
  const Codec* const codecs[] = {&none, &splitzip[tier], &channel[tier]};
  for (const Codec* codec : codecs) {
    if (codec->name() == name) return codec;
  }
  return unsupported("there is no codec '" + std::string(name) + "'; known are " +
                     std::string(codec_names()));
}

std::string_view codec_names() { return "none, splitzip, splitzip:channel"; }

}  // namespace kvlane
