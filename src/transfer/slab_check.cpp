// The place of a frame in a transfer.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/slab_check.h"

#include <algorithm>

#include "crypto/sha256.h"
#include "format/cache_format.h"

namespace kvlane {
namespace {

// A coded cache ships sealed slabs, and as rows those that it keeps as rows.
bool belongs_to(const FrameHeader& frame, const std::string& cache_format) {
  if (is_row_format(cache_format)) return !frame.sealed && frame.format == cache_format;
  return frame.sealed ? frame.format == slab_format(cache_format) : is_row_format(frame.format);
}

}  // namespace

Result<SlabName> check_slab(const FrameHeader& frame, const ModelIdentity& model,
                            const TransferBegin& begin) {
  if (frame.model != model) {
    return corrupt("a frame of model " + to_hex(frame.model) + ", this worker holds " +
                   to_hex(model));
  }
  if (!belongs_to(frame, begin.format)) {
    return corrupt("a frame " + std::string(frame.sealed ? "of a slab sealed" : "of rows") +
                   " in format " + frame.format + ", " + begin.format + " was announced");
  }
  if (frame.codec != begin.codec && frame.codec != "none") {
    return corrupt("a frame in codec " + frame.codec + ", " + begin.codec + " was announced");
  }
  if (frame.layer < 0 || frame.layer >= begin.layers) {
    return corrupt("a frame of layer " + std::to_string(frame.layer) + ", " +
                   std::to_string(begin.layers) + " layers were announced");
  }
  if (frame.position < 0 || frame.position >= begin.tokens || frame.position % kBlockTokens != 0) {
    return corrupt("a frame at position " + std::to_string(frame.position) + ", " +
                   std::to_string(begin.tokens) + " tokens were announced");
  }
  const auto valid = std::min<std::int64_t>(kBlockTokens, begin.tokens - frame.position);
  if (frame.tokens != valid) {
    return corrupt("a frame of " + std::to_string(frame.tokens) + " tokens at position " +
                   std::to_string(frame.position) + ", " + std::to_string(valid) + " belong there");
  }
  return SlabName{static_cast<std::uint32_t>(frame.layer),
                  static_cast<std::uint32_t>(frame.position / kBlockTokens)};
}

std::uint32_t slab_count(const TransferBegin& begin) {
  return static_cast<std::uint32_t>(begin.layers * blocks_for(begin.tokens));
}

std::uint32_t slab_index(const SlabName& slab, const TransferBegin& begin) {
  return slab.layer * static_cast<std::uint32_t>(blocks_for(begin.tokens)) + slab.block;
}

SlabName slab_at(std::uint32_t index, const TransferBegin& begin) {
  const auto blocks = static_cast<std::uint32_t>(blocks_for(begin.tokens));
  return {index / blocks, index % blocks};
}

}  // namespace kvlane
