// How fast coders are on a set of planes, beside copying the same bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "bench/coders.h"
#include "bench/interleaved.h"
#include "bench/plane_set.h"

namespace kvlane {

// Memory for what is measured: coded planes and what they become again. Reused from set to set.
class CodingMemory {
 public:
  // Of at least so many bytes each; what was there before is lost.
  Status reserve(std::size_t coded_bytes, std::size_t copy_bytes);
  std::byte* coded() const { return coded_.data(); }
  std::byte* copy() const { return copy_.data(); }

 private:
  PageBuffer coded_;
  PageBuffer copy_;
};

// One coder on one set; both live as long.
class CodedSet {
 public:
  // `books` has one codebook a source of the set, or is empty.
  CodedSet(const Coder& coder, const PlaneSet& set, std::span<const Codebook> books)
      : coder_(coder), set_(set), books_(books), sizes_(set.planes()) {}

  const Coder& coder() const { return coder_; }
  std::size_t coded_room() const { return set_.planes() * plane_room(); }

  // Every plane once, on the threads of parallel loops where the coder allows it. decode() decodes
  // what the last encode() of this object left in the memory, and is false if it failed.
  void encode(const CodingMemory& memory);
  bool decode(const CodingMemory& memory) const;
  // Whether all planes come back bit for bit; to be called before anything is timed.
  bool comes_back(const CodingMemory& memory);

  double ratio() const;  // raw over coded bytes, after encode()

 private:
  std::size_t plane_room() const;

  const Coder& coder_;
  const PlaneSet& set_;
  const std::span<const Codebook> books_;
  std::vector<std::size_t> sizes_;
};

}  // namespace kvlane
