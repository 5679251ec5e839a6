// A walk over the planes of all segments, in the order of the file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "codec/codec.h"
#include "format/tensor_file.h"

namespace kvlane {

class PlaneCursor {
 public:
  // Precondition of next(): a plane remains. `segments` outlives this.
  explicit PlaneCursor(std::span<const Segment> segments) : segments_(segments) {}

  struct Plane {
    std::size_t segment = 0;   // its index
    std::uint64_t offset = 0;  // of its bytes in the original
    SegmentPlane shape;
    std::size_t bytes = 0;
  };

  Plane next() {
    while (index_ == segments_[at_].planes()) {
      begin_ += segments_[at_].bytes;
      ++at_;
      index_ = 0;
    }
    const Segment& segment = segments_[at_];
    const SegmentPlane shape = segment_plane(segment, index_++);
    return {at_, begin_ + shape.first * segment.value_bytes(), shape,
            shape.elements() * segment.value_bytes()};
  }

 private:
  std::span<const Segment> segments_;
  std::size_t at_ = 0;       // the segment
  std::uint64_t begin_ = 0;  // of it in the original
  std::uint64_t index_ = 0;  // of the next plane in it
};

// What a codec is told of it. Precondition: the segment has a type.
inline PlaneShape plane_shape(const Segment& segment, const SegmentPlane& plane) {
  return {*segment.type, 1, static_cast<int>(plane.rows), static_cast<int>(plane.row_elements)};
}

// The largest plane of a file.
inline std::size_t plane_bytes_max(std::span<const Segment> segments) {
  std::uint64_t most = 0;
  for (const Segment& segment : segments) {
    most =
        std::max(most, std::min(segment.plane_elements() * segment.value_bytes(), segment.bytes));
  }
  return most;
}

}  // namespace kvlane
