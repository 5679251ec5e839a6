// Encoding and decoding of tensor files (spec/tensor_file.md): plane by plane on several threads,
// from front to back, with the memory of a few planes for each thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/streams.h"
#include "cpu/isa.h"
#include "format/tensor_file.h"
#include "kvlane/status.h"
#include "tensors/original.h"

namespace kvlane {

struct TensorFileWork {
  Isa isa = best_isa();
  int threads = 1;
  // Of bytes of the original done and in all; from any thread, but from one at a time.
  std::function<void(std::uint64_t, std::uint64_t)> progress;
  // Asked before each plane: true ends the work with kAborted. From any thread, one at a time.
  std::function<bool()> stopped;
};

struct TensorFileEncoding {
  OriginalOptions original;
  // Of bfloat16. FP8 takes splitzip unless this is kNone; other types no codec.
  PlaneCodec codec = PlaneCodec::kSplitZipChannel;
  std::uint32_t row_elements = 0;  // 1 ... kRowElementsMax of every type with a codec; 0: tried out
};

// What became of a segment.
struct SegmentCoding {
  std::uint64_t coded_bytes = 0;  // without what stands around it in the file
  std::uint64_t coded_planes = 0;
  PlaneCodec codec = PlaneCodec::kNone;  // of its coded planes
};

struct TensorFileSummary {
  TensorFileHead head;
  std::vector<SegmentCoding> segments;  // as in head
  std::uint64_t container_bytes = 0;
};

// Writes `original`, which must know its size, as a tensor file. The same bytes for any number of
// threads. Fails as read_original does, and with what source and sink say; `file` then holds
// garbage.
Result<TensorFileSummary> encode_tensor_file(ByteSource& original,
                                             const TensorFileEncoding& encoding,
                                             const TensorFileWork& work, ByteSink& file);

// Writes the original. `file` is untrusted: every check of the specification is made, and only
// after success is what was written the original.
Result<TensorFileSummary> decode_tensor_file(ByteSource& file, const TensorFileWork& work,
                                             ByteSink& original);

}  // namespace kvlane
