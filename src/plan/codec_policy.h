// Which codec pays on a link: expected times from measured speeds. Pure functions.
//
// A byte of KV passes three stages: the sender encodes it, the link carries what became of it, the
// receiver decodes it. Whole sequences pass slab by slab, so the stages overlap and the slowest one
// sets the pace. One case is different: where the receiver cannot read as fast as the link brings,
// decoding takes time from reading, since one thread does both.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <span>

namespace kvlane {

// What a codec does on these machines with this data. Speeds are bytes of uncoded KV a second.
struct CodecPace {
  double ratio = 1;  // uncoded bytes over coded bytes; more than 0
  double encode = std::numeric_limits<double>::infinity();
  double decode = std::numeric_limits<double>::infinity();
};

// How fast what was posted on a link has left, while more of it was always waiting.
struct LinkPace {
  double bytes_per_second = 0;  // as they are on the link, that is coded; more than 0
  // It was the receiver that did not read faster.
  bool receiver_bound = false;
};

// A codec has to save this share of the time, or it is not worth its processor time.
inline constexpr double kCodecMargin = 0.05;

// Seconds from one end to the other for each byte of uncoded KV.
double seconds_per_byte(const CodecPace& codec, const LinkPace& link);
// The same when nothing overlaps: encode all, send all, decode all.
double seconds_per_byte_serial(const CodecPace& codec, double link_bytes_per_second);

// The candidate that takes the least time, if it saves kCodecMargin of what `candidates[0]` takes,
// else 0; a codec that makes nothing smaller is never taken. Without a link's pace nobody has ever
// waited for the link: 0. At least one candidate; the first one is what is used when no codec pays.
std::size_t pick_codec(std::span<const CodecPace> candidates, const std::optional<LinkPace>& link);

// Below this speed of the link, in bytes a second, the codec saves more than `margin` of the time
// that sending uncoded KV takes; 0 when it never does.
double crossover(const CodecPace& codec, double margin = 0);         // stages overlap
double crossover_serial(const CodecPace& codec, double margin = 0);  // they do not

}  // namespace kvlane
