// Which codec slabs get on their way out: a fixed one, or with `auto` what the policy of
// plan/codec_policy.h picks from what was measured here.
//
// A transfer names one codec when it begins, and each of its slabs is sent with that codec or with
// `none`. So a link whose speed is not known yet, or changes, gets the codec from the slab on that
// shows it.
//
// Ratio and encoding speed are moving averages over the planes that were sent. Codecs that are out
// of use are tried on a plane now and then, whose result is thrown away, so that their figures stay
// fresh. Decoding speed is this machine's own, from a short test at the start: the peer's is taken
// to be the same.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "codec/codec.h"
#include "codec/moving_codebooks.h"
#include "plan/codec_policy.h"
#include "transfer/link_speed.h"

namespace kvlane {

inline constexpr std::string_view kAutoCodec = "auto";

// All trials together take at most this share of the time.
inline constexpr double kTrialShare = 0.005;
// What a whole plane weighs in the averages.
inline constexpr double kPaceWeight = 1.0 / 32;

struct TimedEncoding {
  std::size_t bytes = 0;
  Seconds time{0};
};
// Encodes as it is done in use, where a codebook is known: it is counted first, if the codec takes
// one, and that is no part of the time. `coded` has room for the codec's bound.
TimedEncoding time_encoding(const Codec& codec, const PlaneShape& shape, const PlaneView& plane,
                            std::span<std::byte> coded);

// Thread-safe.
class CodecChoice {
 public:
  // `name` is a codec's or "auto". `plane` is the shape of whole planes, on which `auto` tests all
  // codecs for a few milliseconds.
  static Result<std::unique_ptr<CodecChoice>> create(std::string_view name, Isa isa,
                                                     const PlaneShape& plane);

  // What a transfer names that begins now; while the link's speed is unknown, what would be best on
  // a slow one.
  const Codec& for_transfer(const std::optional<LinkSpeed>& link) const;
  // What its next slab gets: the codec that the transfer named, or `none`.
  const Codec& for_slab(const Codec& named, const std::optional<LinkSpeed>& link) const;
  // Whether links matter: with a fixed codec they do not.
  bool watches_links() const { return !fixed(); }
  // The most bytes that any codec which may be chosen can write.
  std::size_t bound(const PlaneShape& shape) const;

  // A plane was encoded.
  void learn(const Codec& codec, const PlaneShape& shape, std::size_t coded_bytes, Seconds time);
  // The codec to be tried next, beside one that has just been used: null when it is too early. Tell
  // learn_trial() what came of it.
  const Codec* due(const Codec& used, TimePoint now);
  // The trial took from `start` to `end`, of which `time` is what the codec would take in use.
  void learn_trial(const Codec& codec, const PlaneShape& shape, std::size_t coded_bytes,
                   Seconds time, TimePoint start, TimePoint end);

  // What is known about a codec now; empty for one that cannot be chosen.
  std::optional<CodecPace> pace(std::string_view name) const;

 private:
  struct Candidate {
    const Codec* codec;
    CodecPace pace;
    double weight = 0;  // whole planes behind it; 0: from the test at the start
  };
  CodecChoice(std::vector<Candidate> candidates, const PlaneShape& plane)
      : candidates_(std::move(candidates)), plane_(plane) {}

  void learn_locked(const Codec& codec, const PlaneShape& shape, std::size_t coded_bytes,
                    Seconds time);
  bool fixed() const { return candidates_.size() == 1; }  // their number never changes

  mutable std::mutex mutex_;
  std::vector<Candidate> candidates_;  // `none` first if there are several; guarded: what is known
  const PlaneShape plane_;
  std::size_t next_trial_ = 0;
  TimePoint trial_after_{};
};

}  // namespace kvlane
