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
#include "cpu/streaming_copy.h"

namespace kvlane {

void copy_plane(const PlaneShape& shape, const PlaneView& from, std::byte* to) {
  const std::size_t bytes = shape.head_bytes();
  if (bytes == 0) return;
  for (int head = 0; head < shape.kv_heads; ++head) {
    std::memcpy(to + bytes * head, from.head(head), bytes);
  }
}

void copy_plane(const PlaneShape& shape, const std::byte* from, const PlaneSpan& to) {
  const std::size_t bytes = shape.head_bytes();
  if (bytes == 0) return;
  for (int head = 0; head < shape.kv_heads; ++head) {
    to.past_caches ? streaming_copy(to.head(head), from + bytes * head, bytes)
                   : void(std::memcpy(to.head(head), from + bytes * head, bytes));
  }
}

std::size_t Codec::encode(const PlaneShape& shape, ByteView plane, const Codebook* book,
                          std::span<std::byte> destination) const {
  assert(plane.size() == shape.bytes());
  return encode(shape, dense_plane(shape, plane.data()), book, destination);
}

Status Codec::decode(const PlaneShape& shape, ByteView coded, std::span<std::byte> plane) const {
  assert(plane.size() == shape.bytes());
  return decode(shape, coded,
                PlaneSpan{plane.data(), shape.head_bytes(), plane.size() >= kStreamingBytes});
}

Result<const Codec*> find_codec(std::string_view name, Isa isa) {
  static const NoneCodec none;
  static const SplitZipCodec splitzip[] = {SplitZipCodec(Isa::kScalar), SplitZipCodec(Isa::kAvx2),
                                           SplitZipCodec(Isa::kAvx512),
                                           SplitZipCodec(Isa::kAvx512Bf16)};
  static const ChannelCodec channel[] = {ChannelCodec(Isa::kScalar), ChannelCodec(Isa::kAvx2),
                                         ChannelCodec(Isa::kAvx512),
                                         ChannelCodec(Isa::kAvx512Bf16)};
  static_assert(std::size(splitzip) == kAllIsas.size() && std::size(channel) == kAllIsas.size());
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
