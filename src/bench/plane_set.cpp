// Laying values out, and rounding them.
// SPDX-License-Identifier: Apache-2.0
#include "bench/plane_set.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/bf16.h"
#include "bench/narrow_floats.h"

namespace kvlane {
namespace {

// The values of one source as stretches [64][width] of pages, over and over.
class Stretches {
 public:
  Stretches(std::span<const std::uint16_t> values, int head_dim, int width)
      : values_(values), head_dim_(head_dim), width_(width) {}

  std::size_t count() const { return values_.size() / (std::size_t{kBlockTokens} * width_); }

  // Copies the next one; rows of the target are `row` values apart.
  void next(std::uint16_t* target, int row) {
    const std::size_t per_page = head_dim_ / width_;
    const std::uint16_t* const from =
        values_.data() + next_ / per_page * kBlockTokens * head_dim_ + next_ % per_page * width_;
    for (std::size_t token = 0; token < kBlockTokens; ++token) {
      std::memcpy(target + token * row, from + token * head_dim_, width_ * sizeof *target);
    }
    next_ = (next_ + 1) % count();
  }

 private:
  std::span<const std::uint16_t> values_;
  std::size_t head_dim_, width_;
  std::size_t next_ = 0;
};

std::vector<Stretches> sources_of(const CapturedPlanes& captured, int head_dim) {
  const int own = captured.shape(Tensor::kK).head_dim;
  std::vector<Stretches> sources;
  for (int layer = 0; layer < captured.layers(); ++layer) {
    for (const Tensor tensor : {Tensor::kK, Tensor::kV}) {
      sources.emplace_back(captured.values(layer, tensor), own, std::min(own, head_dim));
    }
  }
  return sources;
}

std::uint16_t bits_at(const std::byte* values, std::size_t i) {
  std::uint16_t bits;
  std::memcpy(&bits, values + sizeof bits * i, sizeof bits);
  return bits;
}

// The codes of all finite bfloat16 values, times 2 to the power of `shift`.
std::vector<std::uint16_t> narrow_table(NarrowFloat narrow, int shift) {
  std::vector<std::uint16_t> codes(1U << 16);
  for (std::uint32_t bits = 0; bits < codes.size(); ++bits) {
    const float value = to_float(bf16{static_cast<std::uint16_t>(bits)});
    if (!std::isfinite(value)) continue;
    codes[bits] = static_cast<std::uint16_t>(to_narrow(narrow, std::ldexp(value, shift)));
  }
  return codes;
}

}  // namespace

Result<PlaneSet> PlaneSet::lay_out(const CapturedPlanes& captured, int kv_heads, int head_dim,
                                   std::size_t planes) {
  const int own = captured.shape(Tensor::kK).head_dim;
  if (std::max(own, head_dim) % std::min(own, head_dim) != 0) {
    return invalid_argument("heads of " + std::to_string(head_dim) +
                            " channels cannot be made of heads of " + std::to_string(own));
  }
  std::vector<Stretches> sources = sources_of(captured, head_dim);
  const PlaneShape shape{.kv_heads = kv_heads, .rows = kBlockTokens, .head_dim = head_dim};
  KVLANE_ASSIGN(PageBuffer memory, PageBuffer::allocate(planes * shape.bytes()));
  const int width = std::min(own, head_dim);
  auto* page = memory.as<std::uint16_t>();
  for (std::size_t plane = 0; plane < planes; ++plane) {
    Stretches& source = sources[plane % sources.size()];
    for (int head = 0; head < kv_heads; ++head) {
      for (int channel = 0; channel < head_dim; channel += width) {
        source.next(page + channel, head_dim);
      }
      page += kBlockTokens * head_dim;
    }
  }
  return PlaneSet(shape, planes, sources.size(), std::move(memory));
}

std::size_t PlaneSet::planes_without_repeats(const CapturedPlanes& captured, int kv_heads,
                                             int head_dim) {
  const std::vector<Stretches> sources = sources_of(captured, head_dim);
  const int width = std::min(captured.shape(Tensor::kK).head_dim, head_dim);
  return sources.front().count() / (std::size_t(kv_heads) * (head_dim / width)) * sources.size();
}

std::vector<int> PlaneSet::shifts_to(float most) const {
  const std::size_t elements = shape_.elements();
  std::vector<float> largest(sources_, 0);
  for (std::size_t i = 0; i < planes_ * elements; ++i) {
    float& own = largest[source(i / elements)];
    own = std::max(own, std::abs(to_float(bf16{bits_at(data(), i)})));
  }
  std::vector<int> shifts;
  for (const float own : largest) shifts.push_back(own > 0 ? std::ilogb(most / own) : 0);
  return shifts;
}

Result<PlaneSet> PlaneSet::narrowed(ElementType type, std::span<const int> shifts) const {
  PlaneShape shape = shape_;
  shape.type = type;
  std::vector<std::vector<std::uint16_t>> codes;
  for (std::size_t source = 0; source < sources_; ++source) {
    codes.push_back(narrow_table(narrow_float(type), shifts.empty() ? 0 : shifts[source]));
  }
  KVLANE_ASSIGN(PageBuffer memory, PageBuffer::allocate(planes_ * shape.bytes()));
  const std::size_t elements = shape.elements();
  for (std::size_t i = 0; i < planes_ * elements; ++i) {
    const std::uint16_t code = codes[source(i / elements)][bits_at(data(), i)];
    std::memcpy(memory.data() + i * element_bytes(type), &code, element_bytes(type));
  }
  return PlaneSet(shape, planes_, sources_, std::move(memory));
}

}  // namespace kvlane
