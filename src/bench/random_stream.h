// Streams of random numbers for workloads: each is named, so that no draw depends on another's.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.h"

namespace kvlane {

// What random numbers are for. Streams of different purposes have nothing in common.
enum class Purpose : std::uint32_t {
  kArrivals,
  kLengths,
  kPrefixChoice,
  kSharedPrefix,  // token ids from here on
  kOwnTokens,
  kTraceBlock,
  kWarmup,
  kStandIn,  // for an answer whose token ids the server did not tell
};

// Numbers of one stream, in order. The same seed, purpose and index give the same numbers on every
// machine.
class RandomStream {
 public:
  RandomStream(std::uint64_t seed, Purpose purpose, std::uint64_t index)
      : seed_(seed), purpose_(purpose), index_(index) {}

  double unit();                    // uniform in [0, 1)
  double normal();                  // mean 0, standard deviation 1
  double gamma(double shape);       // scale 1, so the mean is `shape`, which is positive
  double beta(double a, double b);  // in [0, 1]; both positive

 private:
  std::uint64_t seed_;
  Purpose purpose_;
  std::uint64_t index_;
  std::uint32_t drawn_ = 0;
};

// Appends tokens first ... first + count - 1 of the endless sequence of token ids, all below
// `vocabulary`, that (seed, purpose, index) names. Any part of it can be had without the others.
void append_token_ids(std::uint64_t seed, Purpose purpose, std::uint64_t index, std::size_t first,
                      std::size_t count, int vocabulary, std::vector<std::int32_t>& out);

}  // namespace kvlane
