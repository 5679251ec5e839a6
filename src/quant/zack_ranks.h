// How many dimensions each head keeps for a share of the KV cache (ZACK, equation 6; SPEC 2.3).
//
// A head's K (with its queries) and its V (with its output projection) have singular values
// s^0 >= ... >= s^(d-1). With one threshold r for all of them each keeps the fewest dimensions k
// whose tail, the sum of s^k ... s^(d-1) over the sum of all, is at most r, rounded up to a
// multiple of kWidthStep. Raising r never lets any of them keep more, so the share that is kept is
// a step function of r; its steps are where a tail of a whole number of kWidthStep dimensions lies.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "format/head_widths.h"
#include "kvlane/status.h"
#include "quant/format_text.h"

namespace kvlane::zack {

// Kept dimensions are multiples of it: a tile of a tensor core.
inline constexpr int kWidthStep = 16;
inline constexpr int kHeadDimMax = 256;

// What tails are sums of.
enum class Weigh : std::uint8_t { kValues, kEnergies };

// Of the heads of all layers, [heads][head_dim] each, descending and not negative.
struct Spectra {
  int head_dim;  // a multiple of kWidthStep
  std::span<const float> k;
  std::span<const float> v;
};

struct Ranks {
  double threshold;                // r
  double share;                    // of dimensions that are kept: 1 - P of the paper
  std::vector<HeadWidths> widths;  // [heads]
};

// The whole step function; at() is a look-up and one pass over the heads. Immutable, thread-safe.
class Rates {
 public:
  // kInvalidArgument for spectra that are not finite, negative, or ascending.
  static Result<Rates> make(const Spectra& spectra, Weigh weigh);

  // The widths at the smallest threshold that keeps at most `share` of kShareParts.
  // kInvalidArgument when that is less than kWidthStep dimensions a head, or more than all.
  Result<Ranks> at(int share) const;

  // Each place where the share changes, from the least threshold to the greatest: widths as they
  // are from this threshold on.
  struct Step {
    double threshold;
    double share;
  };
  std::vector<Step> steps() const;

 private:
  Rates(int head_dim, std::size_t planes) : head_dim_(head_dim), planes_(planes) {}
  int tails() const { return head_dim_ / kWidthStep; }
  std::int64_t dimensions() const { return static_cast<std::int64_t>(planes_) * head_dim_; }
  int width(std::size_t plane, double threshold) const;

  int head_dim_;
  std::size_t planes_;            // K and V of all heads: K of head i is plane 2i, V 2i + 1
  std::vector<double> tails_;     // [planes][tails()]: behind 1, 2, ... times kWidthStep dimensions
  std::vector<double> narrower_;  // all thresholds at which a plane gets narrower, ascending
};

// One width for all heads, K and V alike: the ablation AC. As Rates::at().
Result<Ranks> uniform_ranks(int head_dim, std::size_t heads, int share);

}  // namespace kvlane::zack
