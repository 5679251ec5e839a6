// The decoder of codec/splitzip_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/splitzip_device_spans.h"
#include "codec/splitzip_device_tiles.h"

namespace kvlane::splitzip {

namespace device {

template <ElementType kType, class Thread>
KVLANE_DEVICE DeviceVerdict decode_coded(Thread& t, const DeviceDecodeTask& task,
                                         std::uint32_t table_words, DeviceDecodeShared& shared) {
  constexpr Fields kFields = fields_of(kType);
  const Sections at = sections(kType, task.elements, table_words);
  if (task.body_bytes != at.end) return DeviceVerdict::kCorrupt;
  const auto chunks = static_cast<std::uint32_t>(chunk_count(task.elements));
  const std::uint32_t spans = (chunks + kSpanChunks - 1) / kSpanChunks;
  const std::uint32_t run = (spans + t.warps() - 1) / t.warps() * kSpanChunks;
  DecodePlan plan{.body = task.body,
                  .at = offsets(at),
                  .plane = task.plane,
                  .elements = task.elements,
                  .code_exponents = {},
                  .run_begin = run * t.warp() < chunks ? run * t.warp() : chunks,
                  .run_end = run * (t.warp() + 1) < chunks ? run * (t.warp() + 1) : chunks,
                  .aligned = (reinterpret_cast<std::uintptr_t>(task.plane) |
                              reinterpret_cast<std::uintptr_t>(task.body)) %
                                 16 ==
                             0};
  fetch_span(t, plan, plan.run_begin, plan.spans_end(kType));
  const std::byte* const book = task.body + at.codebook;
  for (unsigned code = 0; code < kCodebookEntries; ++code) {
    plan.code_exponents[code / 4] |= load_byte(book + code) << code % 4 * 8;
  }
  bool right = all_zero(t, task.body, at.codebook_end, at.nibbles) &&
               all_zero(t, task.body, at.nibbles_end, at.bytes) &&
               all_zero(t, task.body, at.bytes_end, at.pairs) &&
               all_zero(t, task.body, at.pairs_end, at.bits) &&
               all_zero(t, task.body, at.bits_end, at.counts) &&
               all_zero(t, task.body, at.counts_end, at.table) &&
               all_zero(t, task.body, at.table_end, at.end) && unused_fields_zero<kType>(t, plan);
  if (const int code = t.index(); code < kFields.codebook_entries) {
    right = right && load_byte(book + code) >> kFields.exponent_bits == 0 &&
            (code == 0 || book[code - 1] < book[code]);
  }
  // After this the table is as long as its counts say.
  std::uint32_t words = 0;
  for (std::uint32_t chunk = plan.run_begin + t.lane(); chunk < plan.run_end;
       chunk += kWarpThreads) {
    const auto count = static_cast<std::uint8_t>(load_byte(task.body + at.counts + chunk));
    right = right && (count <= kChunkEscapesMax || count == kRawChunk);
    const std::uint32_t left = task.elements - chunk * kChunk;
    words += static_cast<std::uint32_t>(table_words_of(count, left < kChunk ? left : kChunk));
  }
  words = t.sum(words);
  if (t.lane() == 0) shared.words[t.warp()] = words;
  if (any_wrong(t, shared.wrong[0], right)) return DeviceVerdict::kCorrupt;
  std::uint32_t before = 0, total = 0;
  for (int warp = 0; warp < t.warps(); ++warp) {
    if (warp < t.warp()) before += shared.words[warp];
    total += shared.words[warp];
  }
  if (total != table_words) return DeviceVerdict::kCorrupt;
  right = decode_run<kType>(t, plan, before);
  return any_wrong(t, shared.wrong[1], right) ? DeviceVerdict::kCorrupt : DeviceVerdict::kDecoded;
}

template <class Thread>
KVLANE_DEVICE DeviceVerdict decode_raw(Thread& t, const DeviceDecodeTask& task,
                                       DeviceDecodeShared& shared) {
  const std::size_t bytes = std::size_t{task.elements} * element_bytes(task.type);
  if (task.body_bytes != raw_body_bytes(bytes)) return DeviceVerdict::kCorrupt;
  const bool right = all_zero(t, task.body, sizeof(Prefix) + bytes, raw_body_bytes(bytes));
  if (any_wrong(t, shared.wrong[0], right)) return DeviceVerdict::kCorrupt;
  copy_bytes(t, task.plane, task.body + sizeof(Prefix), bytes);
  return DeviceVerdict::kDecoded;
}

template <class Thread>
KVLANE_DEVICE DeviceVerdict decode_checked(Thread& t, const DeviceDecodeTask& task,
                                           DeviceDecodeShared& shared) {
  if (t.index() < 2) shared.wrong[t.index()] = 0;
  t.sync_block();
  if (task.body_bytes < sizeof(Prefix)) return DeviceVerdict::kCorrupt;
  Prefix prefix;
  std::memcpy(&prefix, task.body, sizeof(prefix));
  if (prefix.version != kBodyVersion) return DeviceVerdict::kUnsupported;
  const bool coded = prefix.mode == static_cast<std::uint8_t>(Mode::kCoded);
  if (prefix.mode > static_cast<std::uint8_t>(Mode::kCoded) || prefix.reserved_3 != 0 ||
      prefix.reserved_12 != 0 || prefix.element_type != static_cast<std::uint8_t>(task.type) ||
      (coded && !can_be_coded(task.type)) || prefix.elements != task.elements ||
      prefix.table_words > (coded ? task.elements : 0)) {
    return DeviceVerdict::kCorrupt;
  }
  if (!coded) return decode_raw(t, task, shared);
  switch (task.type) {
    case ElementType::kFp8E4m3:
      return decode_coded<ElementType::kFp8E4m3>(t, task, prefix.table_words, shared);
    case ElementType::kFp8E5m2:
      return decode_coded<ElementType::kFp8E5m2>(t, task, prefix.table_words, shared);
    default: return decode_coded<ElementType::kBf16>(t, task, prefix.table_words, shared);
  }
}

}  // namespace device

// One block of at most kDeviceWarps warps, and two at least. `next` is the task whose block comes
// when this one goes, or null; `rooms` has one for each warp if kDecodeNeedsRoom.
template <class Thread>
KVLANE_DEVICE void decode_plane(Thread& t, const DeviceDecodeTask& task,
                                const DeviceDecodeTask* next, DeviceDecodeShared& shared,
                                DeviceDecodeRoom* rooms) {
  if (t.index() == 0) shared.verdict = task.verdict;
  device::TilesVerdict tiles{false, DeviceVerdict::kCorrupt};
#if KVLANE_SZ_TILES == 0
  static_cast<void>(next), static_cast<void>(rooms);
#else
  if (device::has_tiles(task)) tiles = device::decode_tiles(t, task, next, shared, rooms);
#endif
  DeviceVerdict verdict = tiles.verdict;
  if (!tiles.decided) verdict = device::decode_checked(t, task, shared);
  if (t.index() == 0) *shared.verdict = verdict;
}

}  // namespace kvlane::splitzip
