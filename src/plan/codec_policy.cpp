// The arithmetic of pipelines with three stages.
// SPDX-License-Identifier: Apache-2.0
#include "plan/codec_policy.h"

#include <algorithm>

namespace kvlane {

double seconds_per_byte(const CodecPace& codec, const LinkPace& link) {
  const double encode = 1 / codec.encode;
  const double carry = 1 / (codec.ratio * link.bytes_per_second);
  const double decode = 1 / codec.decode;
  if (link.receiver_bound) return std::max(encode, carry + decode);
  return std::max({encode, carry, decode});
}

double seconds_per_byte_serial(const CodecPace& codec, double link_bytes_per_second) {
  return 1 / codec.encode + 1 / (codec.ratio * link_bytes_per_second) + 1 / codec.decode;
}

std::size_t pick_codec(std::span<const CodecPace> candidates, const std::optional<LinkPace>& link) {
  if (!link) return 0;
  std::size_t best = 0;
  double least = seconds_per_byte(candidates[0], *link) * (1 - kCodecMargin);
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    if (candidates[i].ratio <= 1) continue;
    const double seconds = seconds_per_byte(candidates[i], *link);
    if (seconds >= least) continue;
    best = i;
    least = seconds;
  }
  return best;
}

// Uncoded KV takes 1 / link. Coded KV takes 1 / (ratio * link), which saves enough at any speed or
// at none, as long as neither encoding nor decoding takes longer than what is left of 1 / link.
double crossover(const CodecPace& codec, double margin) {
  const double left = 1 - margin;
  if (1 / codec.ratio >= left) return 0;
  return left * std::min(codec.encode, codec.decode);
}

double crossover_serial(const CodecPace& codec, double margin) {
  const double saved = 1 - margin - 1 / codec.ratio;
  if (saved <= 0) return 0;
  return saved / (1 / codec.encode + 1 / codec.decode);
}

}  // namespace kvlane
