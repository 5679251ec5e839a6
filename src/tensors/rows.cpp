// Rows by trial: what codes the first values best is what they are.
// SPDX-License-Identifier: Apache-2.0
#include "tensors/rows.h"

#include <algorithm>
#include <vector>

#include "base/bytes.h"

namespace kvlane {
namespace {

// Shorter rows leave tiles of splitzip:channel half empty.
constexpr std::uint64_t kRowElementsMin = 32;
constexpr std::uint32_t kUsualRowElements = 64;

// Products of the last dimensions, ascending, each once.
std::vector<std::uint32_t> candidates(const Segment& segment) {
  std::vector<std::uint32_t> lengths;
  std::uint64_t product = 1;
  for (std::size_t i = segment.shape.size(); i-- > 1;) {
    if (segment.shape[i] > kRowElementsMax) break;
    product *= segment.shape[i];
    if (product > kRowElementsMax || product == 0) break;
    if (product < kRowElementsMin || (!lengths.empty() && lengths.back() == product)) continue;
    lengths.push_back(static_cast<std::uint32_t>(product));
  }
  return lengths;
}

}  // namespace

void set_rows(Segment& segment, std::uint32_t row_elements) {
  const std::size_t row_bytes = row_elements * segment.value_bytes();
  const std::size_t together = kUsualPlaneBytes / row_bytes / kRowsTogether * kRowsTogether;
  segment.row_elements = row_elements;
  segment.plane_rows =
      std::max(static_cast<std::uint32_t>(together), segment.type ? kRowsTogether : 1U);
}

Status choose_rows(ByteSource& original, std::uint64_t offset, const Codec& codec,
                   Segment& segment) {
  if (!segment.type) {
    set_rows(segment, 1);
    return {};
  }
  const std::vector<std::uint32_t> lengths = candidates(segment);
  set_rows(segment, lengths.empty() ? kUsualRowElements : lengths.front());
  if (lengths.size() < 2) return {};

  // All of them on the same values: enough for whole tiles of the longest rows.
  const std::size_t value_bytes = segment.value_bytes();
  const std::size_t together = std::size_t{lengths.back()} * kRowsTogether * value_bytes;
  Bytes sample(std::min<std::uint64_t>(std::max(together, kUsualPlaneBytes), segment.bytes));
  KVLANE_ASSIGN(const std::size_t there, original.read_at(offset, sample));
  if (there != sample.size()) return corrupt("the file became shorter while it was read");
  std::size_t best = SIZE_MAX;
  Bytes coded;
  for (const std::uint32_t length : lengths) {
    const auto rows = static_cast<int>(sample.size() / value_bytes / length);
    const PlaneShape shape{*segment.type, 1, rows, static_cast<int>(length)};
    coded.resize(codec.bound(shape));
    const std::size_t bytes =
        codec.encode(shape, ByteView(sample).first(shape.bytes()), nullptr, coded);
    // Values that fill no row count as they are: shapes of unlike sizes stay comparable.
    const std::size_t all = bytes + sample.size() - shape.bytes();
    if (all < best) {
      best = all;
      set_rows(segment, length);
    }
  }
  return {};
}

}  // namespace kvlane
