// Files of frames and tensor files told as JSON, for people and scripts (`kvlane inspect`).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "kvlane/status.h"

namespace kvlane {

// What coding was worth; 1 where nothing is coded.
inline double compression_ratio(std::uint64_t raw_bytes, std::uint64_t coded_bytes) {
  return coded_bytes == 0 ? 1 : static_cast<double>(raw_bytes) / static_cast<double>(coded_bytes);
}

// 128K tokens of a model with 32 layers; bounds the memory that a description takes.
inline constexpr std::size_t kFramesDescribedMax = 65536;

// Describes one frame, or several that follow one another, as a JSON object:
// {"frames": [...], "checksums_verified": true, "raw_bytes", "frame_bytes", "ratio"}. Each element
// of "frames" has the header's fields in the form of spec/frame.md, section 8, and "offset" in the
// file, "raw_bytes" (both planes uncoded), "frame_bytes" (header included) and their "ratio". All
// checksums are verified first; bodies are not decoded. Fails as parse_frame does, with the number
// and offset of the frame that is to blame, or with kExhausted beyond kFramesDescribedMax.
Result<std::string> describe_frame_json(ByteView file);

// Of a tensor file; bounds memory too.
inline constexpr std::size_t kSegmentsDescribedMax = 65536;

// Describes a tensor file as a JSON object in the form of spec/tensor_file.md, section 10, with
// "checksums_verified": true, "container_bytes" and "ratio"; each segment has "coded_bytes",
// "codecs" (how many of its planes have which) and its "ratio" besides. All checksums are verified
// first but those of the planes of the original: bodies are not decoded. Fails as the parsers of
// format/tensor_file.h do, or with kExhausted beyond kSegmentsDescribedMax.
Result<std::string> describe_tensor_file_json(ByteView file);

}  // namespace kvlane
