// Lossless codecs: planes of values to bytes and back.
//
// A plane is the K or the V of one slab: its valid rows in head order. Encoders read them from
// their pages, decoders write them there. All codecs have one shape (bound, encode, decode), take
// buffers from the caller, allocate nothing, keep no state and give the same bytes for the same
// values and codebook, whatever the instruction set. Thread-safe.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "cpu/isa.h"
#include "format/element.h"
#include "format/shape.h"
#include "kvlane/status.h"

namespace kvlane {

// A plane is [kv_heads][rows][head_dim] values, the last index fastest. It may have no values; at
// most kPlaneElementsMax (format/frame.h). Bytes of a plane need no alignment.
struct PlaneShape {
  ElementType type = ElementType::kBf16;  // any but kF32
  int kv_heads = 1;
  int rows = 0;  // tokens
  int head_dim = 0;

  constexpr std::size_t elements() const { return std::size_t(kv_heads) * rows * head_dim; }
  constexpr std::size_t bytes() const { return elements() * element_bytes(type); }
  constexpr std::size_t head_elements() const { return std::size_t(rows) * head_dim; }
  constexpr std::size_t head_bytes() const { return head_elements() * element_bytes(type); }

  friend bool operator==(const PlaneShape&, const PlaneShape&) = default;
};

// The values of a plane, where others keep them: the rows of a head without gaps, the heads at one
// distance.
struct PlaneView {
  const std::byte* heads = nullptr;  // the first one
  std::size_t head_stride = 0;       // bytes from one head to the next, at least head_bytes()

  const std::byte* head(int index) const { return heads + head_stride * index; }
};

// The same, to be written.
struct PlaneSpan {
  std::byte* heads = nullptr;
  std::size_t head_stride = 0;
  // A hint: nobody will read the values soon. See cpu/streaming_copy.h.
  bool past_caches = false;

  std::byte* head(int index) const { return heads + head_stride * index; }
};

// A plane that is shape.bytes() bytes without gaps.
constexpr PlaneView dense_plane(const PlaneShape& shape, const std::byte* values) {
  return {values, shape.head_bytes()};
}
// Copies to and from shape.bytes() bytes without gaps.
void copy_plane(const PlaneShape& shape, const PlaneView& from, std::byte* to);
void copy_plane(const PlaneShape& shape, const std::byte* from, const PlaneSpan& to);

// What an encoder knows beforehand about planes like this one, from calibration on others. It saves
// the pass over the plane in which an encoder would learn it; a poor one costs size, never
// correctness. Bodies carry what their reader needs of it.
struct Codebook {
  static constexpr std::size_t kExponentsMax = 16;

  // Exponents that get short codes, strictly ascending. FP8 E4M3 uses the first 8 of them, all
  // other types 16.
  std::array<std::uint8_t, kExponentsMax> exponents{};

  friend bool operator==(const Codebook&, const Codebook&) = default;
};

// The plane of K (or V) of one slab of such a cache, with so many valid rows.
constexpr PlaneShape plane_shape(const KvShape& cache, int rows) {
  return {cache.type, cache.kv_heads, rows, cache.head_dim};
}

class Codec {
 public:
  virtual ~Codec() = default;

  // The name users type and frames carry: "none", "splitzip".
  virtual std::string_view name() const = 0;

  // The most bytes encode() can write for such a plane; at most shape.bytes() +
  // kPlaneGrowthBytesMax (format/frame.h).
  virtual std::size_t bound(const PlaneShape& shape) const = 0;

  // Whether encode() writes just as much of any plane of a shape.
  virtual bool writes_bound() const { return false; }

  // Writes the coded plane to `destination`, which has at least bound(shape) bytes and does not
  // overlap `plane`, and returns how many bytes were written; all of the bound may be overwritten.
  // Without a `book` the encoder counts the plane first. Cannot fail.
  virtual std::size_t encode(const PlaneShape& shape, const PlaneView& plane, const Codebook* book,
                             std::span<std::byte> destination) const = 0;
  // The same for shape.bytes() bytes without gaps.
  std::size_t encode(const PlaneShape& shape, ByteView plane, const Codebook* book,
                     std::span<std::byte> destination) const;

  // Fills `plane` from `coded`, untrusted bytes that do not overlap it; what lies between heads
  // stays. The whole of `coded` must be used up and type and element count must match, else
  // kCorrupt; `plane` then holds garbage.
  virtual Status decode(const PlaneShape& shape, ByteView coded, const PlaneSpan& plane) const = 0;
  // The same for shape.bytes() bytes without gaps.
  Status decode(const PlaneShape& shape, ByteView coded, std::span<std::byte> plane) const;
};

// The codec with that name on kernels of that tier, which this processor must support; or an error
// that lists the known names. Lives for the whole program.
Result<const Codec*> find_codec(std::string_view name, Isa isa = best_isa());

// "none, splitzip": for help texts, handshakes and errors.
std::string_view codec_names();

}  // namespace kvlane
