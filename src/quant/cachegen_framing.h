// What CacheGen's public code would transmit for a chunk of tokens, byte for byte of its framing:
// not a format of ours, but what its figures are to be compared with (spec/slab_cachegen.md,
// section 5).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace kvlane {

// Bytes for K or V of one layer of a chunk.
struct CachegenFraming {
  std::uint64_t values = 0;
  std::uint64_t stream_bytes = 0;  // coded symbols, a stream for each channel and 256 tokens
  std::uint64_t model_bytes = 0;   // 33 cumulative counts of 16 bits for each channel
  std::uint64_t length_bytes = 0;  // 32 bits a stream
  std::uint64_t scale_bytes = 0;   // 16 bits a token

  std::uint64_t bytes() const { return stream_bytes + model_bytes + length_bytes + scale_bytes; }
  double bits_per_value() const {
    return values > 0 ? 8.0 * static_cast<double>(bytes()) / static_cast<double>(values) : 0;
  }
  CachegenFraming& operator+=(const CachegenFraming& other);
};

// rows: [tokens][channels] in BF16, finite, at most 65535 tokens; bins: 32, 16 or 12. The coder's
// streams are written, not estimated.
CachegenFraming measure_cachegen_framing(std::span<const std::uint16_t> rows, int channels,
                                         int bins);

}  // namespace kvlane
