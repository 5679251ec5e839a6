// Codecs and yardsticks behind one face, and how small they make the tensors of a model.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "kvlane/status.h"

namespace kvlane {

// Planes to bytes and back, as Codec has it. Copies share their state: one thread at a time, where
// not `parallel`.
struct Coder {
  std::string name;  // as figures have it: "splitzip_channel"
  bool parallel = false;
  std::function<std::size_t(const PlaneShape&)> bound;
  std::function<std::size_t(const PlaneShape&, ByteView, const Codebook*, std::span<std::byte>)>
      encode;
  std::function<Status(const PlaneShape&, ByteView, std::span<std::byte>)> decode;
};

// Of a codec, which lives as long; with its name, ':' made '_'.
Coder coder_of(const Codec& codec);
// The same, but never given a codebook: "..._counted".
Coder counting_coder_of(const Codec& codec);

// One layer's values of one tensor, as they are coded, and the codebook that is known for them.
struct LayerPlanes {
  PlaneShape shape;              // of each of
  std::vector<ByteView> planes;  // at least one
  Codebook book;
};

struct CodedRatio {
  double all = 0;    // raw bytes over coded bytes, of all layers together
  double least = 0;  // of the layer where it is least
};

// Codes every plane of every layer. kInternal when one does not come back bit for bit.
Result<CodedRatio> coded_ratio(const Coder& coder, std::span<const LayerPlanes> layers);

// The share of all values whose exponents are not in their layer's codebook.
double escape_share(std::span<const LayerPlanes> layers);

}  // namespace kvlane
