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
