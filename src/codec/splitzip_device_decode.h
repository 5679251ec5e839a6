// The decoder of codec/splitzip_device.h.
//
// Coded planes go by tiles (codec/splitzip_device_decode_tiles.h) and a last, short chunk by
// itself. Where addresses are not multiples of 16 they go a chunk at a time, after all has been
// checked that is needed for safety (spec/splitzip.md, section 4).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <type_traits>

#include "codec/splitzip_batch.h"
#include "codec/splitzip_device_decode_bf16.h"
#include "codec/splitzip_device_decode_chunks.h"
#include "codec/splitzip_device_decode_fp8.h"
#include "codec/splitzip_device_decode_tiles.h"

namespace kvlane::splitzip {

struct DeviceDecodeShared {
  std::uint32_t words[kDeviceWarps];
  // What was found wrong before values are decoded, and then: two words, as some threads may still
  // read the first when others write the second.
  std::uint32_t wrong[2];
  DeviceVerdict* verdict;  // the first thread's: registers are what it lacks meanwhile
};

namespace device {

// Whether a body's prefix is right for its mode, and its length for the prefix.
template <ElementType kType>
KVLANE_DEVICE bool agrees(const Prefix& prefix, Mode mode, const DeviceDecodeTask& task) {
  const bool coded = mode == Mode::kCoded;
  if (prefix.version != kBodyVersion || prefix.mode != static_cast<std::uint8_t>(mode) ||
      prefix.reserved_3 != 0 || prefix.reserved_12 != 0 ||
      prefix.element_type != static_cast<std::uint8_t>(kType) || (coded && !can_be_coded(kType)) ||
      prefix.elements != task.elements || prefix.table_words > (coded ? task.elements : 0)) {
    return false;
  }
  return task.body_bytes ==
         (coded ? sections(kType, task.elements, prefix.table_words).end
                : raw_body_bytes(std::size_t{task.elements} * element_bytes(kType)));
}

// This thread's byte of a gap, which is shorter than two warps.
template <class Thread>
KVLANE_DEVICE unsigned gap_byte(Thread& t, const std::byte* body, std::size_t begin,
                                std::size_t end) {
  const std::size_t at = begin + t.index();
  return at < end ? load_byte(body + at) : 0;
}

// Whether all is right in this thread's eyes that no chunk has: bytes and fields that must be zero,
// and the codebook.
template <ElementType kType, class Thread>
KVLANE_DEVICE bool frame_right(Thread& t, const DecodePlan& plan, std::uint32_t table_words) {
  constexpr Fields kFields = fields_of(kType);
  const Sections at = sections(kType, plan.elements, table_words);
  const auto gap = [&](std::size_t begin, std::size_t end) {
    return gap_byte(t, plan.body, begin, end);
  };
  const unsigned in_gaps = gap(at.codebook_end, at.nibbles) | gap(at.nibbles_end, at.bytes) |
                           gap(at.bytes_end, at.pairs) | gap(at.pairs_end, at.bits) |
                           gap(at.bits_end, at.counts) | gap(at.counts_end, at.table) |
                           gap(at.table_end, at.end);
  bool right = in_gaps == 0;
  if (const int code = t.index(); code < kFields.codebook_entries) {
    const std::byte* const entry = plan.body + at.codebook + code;
    right = right && load_byte(entry) >> kFields.exponent_bits == 0 &&
            (code == 0 || entry[-1] < entry[0]);
  }
  return unused_fields_zero<kType>(t, plan) && right;
}

// By tiles: of a body that is as long as one with an empty table, at least, and no more is known.
// Nothing, where its prefix is not one of a coded body.
template <class Span, class Thread>
KVLANE_DEVICE std::optional<DeviceVerdict> decode_tiles(Thread& t, const DeviceDecodeTask& task,
                                                        DeviceDecodeShared& shared,
                                                        DeviceDecodeRing* rings) {
  constexpr ElementType kType = Span::kType;
  const DecodePlan plan{.body = task.body,
                        .at = offsets(sections(kType, task.elements, 0)),
                        .plane = task.plane,
                        .elements = task.elements};
  Tiles<Span, Thread> tiles(t, plan, rings[t.warp()]);
  const Words4 first = load_once(task.body), book = load_once(task.body + sizeof(Prefix));
  Prefix prefix;
  std::memcpy(&prefix, &first, sizeof(prefix));
  if (!agrees<kType>(prefix, Mode::kCoded, task)) {
    tiles.drop();
    return {};
  }
  std::uint32_t words;
  bool right = tiles.decode(book, prefix.table_words, words);
  if (const std::uint32_t last = plan.elements / kChunk; last * kChunk != plan.elements) {
    const unsigned count = plan.count(last);
    const std::uint32_t before = words;
    words += words_of(count, plan.length(last));
    const bool there = possible_count(count) && words <= prefix.table_words;
    right = right && there;
    // The last warp has the fewest spans.
    if (there && t.warp() == t.warps() - 1) {
      right = decode_chunks<kType>(t, plan, last, last + 1, before) && right;
    }
  }
  // What this reads is near by now, and little.
  right = frame_right<kType>(t, plan, prefix.table_words) && words == prefix.table_words && right;
  const std::uint32_t votes = t.ballot(!right);
  if (t.lane() == 0) shared.words[t.warp()] = votes;
  t.sync_block();
  std::uint32_t wrong = 0;
  for (int warp = 0; warp < t.warps(); ++warp) wrong |= shared.words[warp];
  return wrong != 0 ? DeviceVerdict::kCorrupt : DeviceVerdict::kDecoded;
}

// By chunks: of a coded body whose prefix is right.
template <ElementType kType, class Thread>
KVLANE_DEVICE DeviceVerdict decode_coded(Thread& t, const DeviceDecodeTask& task,
                                         std::uint32_t table_words, DeviceDecodeShared& shared) {
  const DecodePlan plan{.body = task.body,
                        .at = offsets(sections(kType, task.elements, table_words)),
                        .plane = task.plane,
                        .elements = task.elements};
  const auto chunks = static_cast<std::uint32_t>(chunk_count(task.elements));
  const std::uint32_t run = (chunks + t.warps() - 1) / t.warps();
  const std::uint32_t begin = run * t.warp() < chunks ? run * t.warp() : chunks;
  const std::uint32_t end = begin + run < chunks ? begin + run : chunks;
  bool right = frame_right<kType>(t, plan, table_words);
  // After this the table is as long as its counts say.
  std::uint32_t words = 0;
  for (std::uint32_t chunk = begin + t.lane(); chunk < end; chunk += kWarpThreads) {
    right = right && possible_count(plan.count(chunk));
    words += words_of(plan.count(chunk), plan.length(chunk));
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
  right = decode_chunks<kType>(t, plan, begin, end, before);
  return any_wrong(t, shared.wrong[1], right) ? DeviceVerdict::kCorrupt : DeviceVerdict::kDecoded;
}

// Of a raw body whose prefix is right.
template <class Thread>
KVLANE_DEVICE DeviceVerdict decode_raw(Thread& t, const DeviceDecodeTask& task,
                                       DeviceDecodeShared& shared) {
  const std::size_t bytes = std::size_t{task.elements} * element_bytes(task.type);
  const bool right = all_zero(t, task.body, sizeof(Prefix) + bytes, raw_body_bytes(bytes));
  if (any_wrong(t, shared.wrong[0], right)) return DeviceVerdict::kCorrupt;
  copy_bytes(t, task.plane, task.body + sizeof(Prefix), bytes);
  return DeviceVerdict::kDecoded;
}

template <ElementType kType, class Thread>
KVLANE_DEVICE DeviceVerdict decode_checked(Thread& t, const DeviceDecodeTask& task,
                                           DeviceDecodeShared& shared) {
  if (t.index() < 2) shared.wrong[t.index()] = 0;
  t.sync_block();
  if (task.body_bytes < sizeof(Prefix)) return DeviceVerdict::kCorrupt;
  Prefix prefix;
  std::memcpy(&prefix, task.body, sizeof(prefix));
  if (prefix.version != kBodyVersion) return DeviceVerdict::kUnsupported;
  if (agrees<kType>(prefix, Mode::kRaw, task)) return decode_raw(t, task, shared);
  if (!agrees<kType>(prefix, Mode::kCoded, task)) return DeviceVerdict::kCorrupt;
  return decode_coded<kType>(t, task, prefix.table_words, shared);
}

template <ElementType kType, class Thread>
KVLANE_DEVICE DeviceVerdict decode_as(Thread& t, const DeviceDecodeTask& task,
                                      DeviceDecodeShared& shared, DeviceDecodeRing* rings) {
  if constexpr (can_be_coded(kType)) {
    using Span = std::conditional_t<kType == ElementType::kBf16, Bf16Span, Fp8Span<kType>>;
    const auto addresses =
        reinterpret_cast<std::uintptr_t>(task.plane) | reinterpret_cast<std::uintptr_t>(task.body);
    if (addresses % 16 == 0 && task.body_bytes >= sections(kType, task.elements, 0).end) {
      if (const auto verdict = decode_tiles<Span>(t, task, shared, rings)) return *verdict;
    }
  }
  return decode_checked<kType>(t, task, shared);
}

}  // namespace device

// One block of two to kDeviceWarps warps, of which each has one of `rings`.
template <class Thread>
KVLANE_DEVICE void decode_plane(Thread& t, const DeviceDecodeTask& task, DeviceDecodeShared& shared,
                                DeviceDecodeRing* rings) {
  if (t.index() == 0) shared.verdict = task.verdict;
  const auto decode = [&] {
    switch (task.type) {
      case ElementType::kBf16: return device::decode_as<ElementType::kBf16>(t, task, shared, rings);
      case ElementType::kFp8E4m3:
        return device::decode_as<ElementType::kFp8E4m3>(t, task, shared, rings);
      case ElementType::kFp8E5m2:
        return device::decode_as<ElementType::kFp8E5m2>(t, task, shared, rings);
      default: return device::decode_as<ElementType::kFp16>(t, task, shared, rings);
    }
  };
  const DeviceVerdict verdict = decode();
  if (t.index() == 0) *shared.verdict = verdict;
}

}  // namespace kvlane::splitzip
