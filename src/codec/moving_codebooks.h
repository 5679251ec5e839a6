// The codebooks of a sender: one for K and one for V of each layer, which follow the values.
//
// A plane without a codebook is counted by its encoder, which takes another pass over it; later
// planes use what came of it. When too many values of a plane are not in the codebook any more, the
// next plane is counted again. Nobody waits for that, and nobody has to agree: a body carries its
// codebook. Codebooks from calibration save the first counts and are replaced in the same way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "codec/codec.h"

namespace kvlane {

// Above this share of escapes, as a moving average, a codebook does not fit any more. Counting
// again only helps if it was better before: it takes twice the share of the plane that was counted,
// too.
inline constexpr double kEscapesMax = 0.02;
// What one whole plane weighs in the average.
inline constexpr double kEscapesWeight = 0.25;

// The codec that takes a codebook from its caller.
inline constexpr std::string_view kCodebookCodec = "splitzip";

enum class PlanePart : std::uint8_t { kK = 0, kV = 1 };

// The K, or the V, of a slab of rows.
inline PlaneView plane_in(const std::byte* slab, const KvShape& shape, PlanePart part) {
  return {slab + (part == PlanePart::kV ? shape.page_bytes() / 2 : 0), shape.page_bytes()};
}

// Thread-compatible.
class MovingCodebooks {
 public:
  // Two for each layer, K then V, or none: then each first plane is counted. `plane` is the shape
  // of a whole plane.
  MovingCodebooks(const PlaneShape& plane, int layers, const std::vector<Codebook>& calibrated);

  // For the next plane; null: it has to be counted.
  const Codebook* find(int layer, PlanePart part) const;
  // The body that came of it; `counted` when it was encoded without a codebook.
  void learn(int layer, PlanePart part, const PlaneShape& shape, ByteView body, bool counted);

  // Planes that were counted, and those of them that replaced a codebook.
  std::int64_t counted() const { return counted_; }
  std::int64_t replaced() const { return replaced_; }

 private:
  struct Entry {
    Codebook book;
    bool known = false;
    bool replacing = false;  // there was one, which did not fit any more
    double at_best = 0;      // share of escapes in the plane that was counted
    double escapes = 0;      // moving average
  };
  Entry& entry(int layer, PlanePart part) { return entries_[2 * layer + static_cast<int>(part)]; }

  const PlaneShape plane_;
  std::vector<Entry> entries_;
  std::int64_t counted_ = 0;
  std::int64_t replaced_ = 0;
};

}  // namespace kvlane
