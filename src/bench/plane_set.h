// Planes to time codecs on: captured values laid out in another shape and repeated to any size.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "bench/captured_planes.h"
#include "cpu/memory.h"

namespace kvlane {

// Planes of one shape, one after another. Plane i has values of source i modulo the sources, a
// source being the K (even) or the V (odd) of one layer: K and V of layer 0, of layer 1 and so on.
class PlaneSet {
 public:
  // `planes` of shape [kv_heads][64][head_dim]. Rows and channels stay what they are: the model's
  // pages [64][its head_dim] are joined side by side or cut, so one of the two head_dims divides
  // the other. Each source starts over when its values are used up.
  static Result<PlaneSet> lay_out(const CapturedPlanes& captured, int kv_heads, int head_dim,
                                  std::size_t planes);

  // The same values times 2 to the power of their source's shift, rounded to kFp16, kFp8E4m3 or
  // kFp8E5m2; without shifts, as they are.
  Result<PlaneSet> narrowed(ElementType type, std::span<const int> shifts) const;

  // For each source, the shift that brings its largest value to `most` or less, but above half.
  std::vector<int> shifts_to(float most) const;

  // How many planes there can be before a source starts over.
  static std::size_t planes_without_repeats(const CapturedPlanes& captured, int kv_heads,
                                            int head_dim);

  const PlaneShape& shape() const { return shape_; }  // of each plane
  std::size_t planes() const { return planes_; }
  std::size_t bytes() const { return planes_ * shape_.bytes(); }
  const std::byte* data() const { return memory_.data(); }
  ByteView plane(std::size_t i) const {
    return {memory_.data() + i * shape_.bytes(), shape_.bytes()};
  }
  std::size_t sources() const { return sources_; }
  std::size_t source(std::size_t plane) const { return plane % sources_; }

 private:
  PlaneSet(const PlaneShape& shape, std::size_t planes, std::size_t sources, PageBuffer memory)
      : shape_(shape), planes_(planes), sources_(sources), memory_(std::move(memory)) {}

  PlaneShape shape_;
  std::size_t planes_;
  std::size_t sources_;
  PageBuffer memory_;
};

}  // namespace kvlane
