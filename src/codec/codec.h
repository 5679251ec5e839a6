// Lossless codecs: planes of 16-bit values to bytes and back.
//
// A plane is the K or the V of one slab: its valid rows, gathered over its pages in head order. All
// codecs have one shape (bound, encode, decode), take buffers from the caller, allocate nothing,
// keep no state and give the same bytes for the same values. Thread-safe.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "format/element.h"
#include "kvlane/status.h"

namespace kvlane {

class Codec {
 public:
  virtual ~Codec() = default;

  // The name users type and frames carry: "none", "splitzip".
  virtual std::string_view name() const = 0;

  // The most bytes encode() can write for a plane of `elements` values.
  virtual std::size_t bound(std::size_t elements) const = 0;

  // Writes the coded plane to `destination`, which has at least bound(values.size()) bytes, and
  // returns how many bytes were written. Cannot fail.
  virtual std::size_t encode(ElementType type, std::span<const std::uint16_t> values,
                             std::span<std::byte> destination) const = 0;

  // Fills `values` from `coded`, untrusted bytes. The whole of `coded` must be used up and the
  // element count must match, else kCorrupt; `values` then holds garbage.
  virtual Status decode(ElementType type, ByteView coded,
                        std::span<std::uint16_t> values) const = 0;
};

// The codec with that name, or an error that lists the known ones. Lives for the whole program.
Result<const Codec*> find_codec(std::string_view name);

// "none, splitzip": for help texts, handshakes and errors.
std::string_view codec_names();

}  // namespace kvlane
