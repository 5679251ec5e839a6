// How a tensor is cut into rows and planes (spec/tensor_file.md, sections 5 and 9).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/streams.h"
#include "codec/codec.h"
#include "format/tensor_file.h"
#include "kvlane/status.h"

namespace kvlane {

// Of a plane of the usual size: what fits a core's cache together with its coded form.
inline constexpr std::size_t kUsualPlaneBytes = std::size_t{1} << 20;
// Rows that codecs look at together: planes have a multiple of them.
inline constexpr std::uint32_t kRowsTogether = 64;
inline constexpr std::uint32_t kRowElementsMax = 65536;
static_assert(std::size_t{kRowElementsMax} * kRowsTogether * 2 <= kSegmentPlaneBytesMax);

// Cuts a segment into rows of that length.
void set_rows(Segment& segment, std::uint32_t row_elements);

// Finds the best length of rows of a segment that begins at `offset` of the original, for `codec`.
// Reads the first rows when there is a choice. Fails when they cannot be read.
Status choose_rows(ByteSource& original, std::uint64_t offset, const Codec& codec,
                   Segment& segment);

}  // namespace kvlane
