// The table of codecs: the one place that knows them all.
// SPDX-License-Identifier: Apache-2.0
#include "codec/codec.h"

#include <cstddef>
#include <iterator>
#include <string>

#include "codec/channel.h"
#include "codec/none.h"
#include "codec/splitzip.h"

namespace kvlane {

Result<const Codec*> find_codec(std::string_view name, Isa isa) {
  static const NoneCodec none;
  static const SplitZipCodec splitzip[] = {SplitZipCodec(Isa::kScalar), SplitZipCodec(Isa::kAvx2),
                                           SplitZipCodec(Isa::kAvx512)};
  static_assert(std::size(splitzip) == kAllIsas.size() && std::size_t(Isa::kAvx512) == 2);
  static const ChannelCodec scalar_channel(Isa::kScalar);
  static const ChannelCodec avx512_channel(Isa::kAvx512);
  const Codec* const channel = isa == Isa::kAvx512 ? &avx512_channel : &scalar_channel;
  for (const Codec* codec : {static_cast<const Codec*>(&none),
                             static_cast<const Codec*>(&splitzip[static_cast<std::size_t>(isa)]),
                             static_cast<const Codec*>(channel)}) {
    if (codec->name() == name) return codec;
  }
  return unsupported("there is no codec '" + std::string(name) + "'; known are " +
                     std::string(codec_names()));
}

std::string_view codec_names() { return "none, splitzip, splitzip:channel"; }

}  // namespace kvlane
