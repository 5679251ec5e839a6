// The decoder of codec/splitzip_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/device_verdict.h"
#include "codec/splitzip_device.h"

namespace kvlane::splitzip {

// A body and what becomes of it. Fast where both begin at multiples of 16.
struct DeviceDecodeTask {
  ElementType type;
  std::uint32_t elements;
  const std::byte* body;  // untrusted
  std::uint32_t body_bytes;
  std::byte* plane;
  DeviceVerdict* verdict;  // written; if it is not kDecoded the plane holds garbage
};

struct DeviceDecodeShared {
  std::uint32_t words[kDeviceWarps];
  // What was found wrong before values are decoded, and then: two words, as some threads may still
  // read the first when others write the second.
  std::uint32_t wrong[2];
};

namespace device {

struct DecodePlan {
  const std::byte* body;
  Offsets at;
  std::byte* plane;
  std::uint32_t elements;
  std::uint32_t code_exponents[4];   // exponents of the 16 codes
  std::uint32_t run_begin, run_end;  // this warp's chunks
  bool aligned;
};

// The exponents of four codes, the low nibbles of a word. Nibbles are a selector of bytes; their
// top bits say from which half of the codebook.
KVLANE_DEVICE std::uint32_t exponents_of(const std::uint32_t* book, std::uint32_t codes) {
  const std::uint32_t selector = codes & 0x7777;
  const std::uint32_t upper = byte_perm(codes << 4, codes, 0xD9C8);
  return (byte_perm(book[2], book[3], selector) & upper) |
         (byte_perm(book[0], book[1], selector) & ~upper);
}

// Any chunk, by one warp, whose part of the table is at `table`. Whether it is as it must be.
template <ElementType kType, class Thread>
KVLANE_DEVICE bool decode_any_chunk(Thread& t, const DecodePlan& plan, std::uint32_t chunk,
                                    const std::byte* table) {
  constexpr Fields kFields = fields_of(kType);
  const std::uint32_t first = chunk * kChunk;
  const std::uint32_t length = plan.elements - first < kChunk ? plan.elements - first : kChunk;
  const ChunkStreams<const std::byte> in = chunk_streams(plan.body, plan.at, first);
  const unsigned count = load_byte(plan.body + plan.at.counts + chunk);
  std::byte* const values = plan.plane + std::size_t{first} * element_bytes(kType);
  const auto nibble = [&](std::uint32_t place) {
    const std::uint32_t group = place / kGroup * kGroup;
    return unpacked(in.nibbles + group / 2, place - group, group_length(group, length), 4);
  };
  const auto triple = [&](std::uint32_t place) {
    const std::uint32_t group = place / kGroup * kGroup;
    const unsigned pair =
        unpacked(in.pairs + group / 4, place - group, group_length(group, length), 2);
    return pair | (load_byte(in.bits + place / 8) >> place % 8 & 1U) << 2;
  };
  const auto rest = [&](std::uint32_t place) -> unsigned {
    if constexpr (kType == ElementType::kBf16) return load_byte(in.bytes + place);
    if constexpr (kType == ElementType::kFp8E4m3) return nibble(place);
    return triple(place);
  };
  const auto code = [&](std::uint32_t place) -> unsigned {
    return kType == ElementType::kFp8E4m3 ? triple(place) : nibble(place);
  };
  const auto put = [&](std::uint32_t place, unsigned exponent) {
    store_value<kType>(values + std::size_t{value_at<kType>(place, length)} * element_bytes(kType),
                       {exponent & ((1U << kFields.exponent_bits) - 1), rest(place)});
  };
  bool right = true;
  for (std::uint32_t place = t.lane(); place < length; place += kWarpThreads) {
    unsigned exponent = load_byte(plan.body + sizeof(Prefix) + code(place));
    if (count == kRawChunk) {
      exponent = load_byte(table + place);
      right = right && exponent >> kFields.exponent_bits == 0;
    }
    put(place, exponent);
  }
  if (count == kRawChunk) return right && (length % 2 == 0 || load_byte(table + length) == 0);
  t.sync_warp();  // the values under escapes are written
  for (std::uint32_t i = t.lane(); i < count; i += kWarpThreads) {
    const unsigned place = load_byte(table + 2 * i), exponent = load_byte(table + 2 * i + 1);
    right = right && place < length && exponent >> kFields.exponent_bits == 0 &&
            (i == 0 || load_byte(table + 2 * i - 2) < place);
    if (place < length) put(place, exponent);
  }
  return right;
}

// Four places back to two values of the first half of their 64 and the two beside them.
KVLANE_DEVICE void join_words(std::uint32_t exponents, std::uint32_t rests, std::uint32_t& even,
                              std::uint32_t& odd) {
  const std::uint32_t low = (exponents << 7 & 0x80808080) | (rests >> 1 & 0x7F7F7F7F);
  const std::uint32_t high = (exponents >> 1 & 0x7F7F7F7F) | (rests << 7 & 0x80808080);
  even = byte_perm(low, high, 0x6240);
  odd = byte_perm(low, high, 0x7351);
}

// Four whole bf16 chunks, as encode_span; without the exponents that are in the table.
template <class Thread>
KVLANE_DEVICE void decode_span(Thread& t, const DecodePlan& plan, std::uint32_t chunk,
                               std::uint32_t chunks) {
  if (static_cast<std::uint32_t>(t.lane() / 8) >= chunks) return;
  const std::uint32_t column = t.lane() % 4;
  const std::size_t first = std::size_t{chunk} * kChunk + t.lane() / 4 * kGroup;
  const Words4 nibbles = load_once(plan.body + plan.at.nibbles + first / 2 + 16 * column);
  Words4 rests[2];
  for (int half = 0; half < 2; ++half) {
    rests[half] = load_once(plan.body + plan.at.bytes + first + 64 * half + 16 * column);
  }
  for (int half = 0; half < 2; ++half) {
    Words4 out[2];
    for (int i = 0; i < 4; ++i) {
      // Codes of four places, spread over bytes, as nibbles of 16 bits.
      const std::uint32_t spread = nibbles.w[i] >> 4 * half & 0x0F0F0F0F;
      const std::uint32_t pairs = spread | spread >> 4;
      const std::uint32_t codes = byte_perm(pairs, 0, 0x4420);
      join_words(exponents_of(plan.code_exponents, codes), rests[half].w[i], out[0].w[i],
                 out[1].w[i]);
    }
    for (int side = 0; side < 2; ++side) {
      store_once(plan.plane + 2 * first + 128 * half + 64 * side + 16 * column, out[side]);
    }
  }
}

// The escapes of those chunks, over what decode_span wrote: `count` is that of this thread's chunk,
// 0 where there is none, and the span's part of the table begins with word `word`, and ends there
// afterwards. All four chunks at once, as most have one escape or none.
template <class Thread>
KVLANE_DEVICE bool patch_span(Thread& t, const DecodePlan& plan, std::uint32_t chunk,
                              unsigned count, std::uint32_t& word) {
  const std::uint32_t own = t.lane() / 8;
  const std::uint32_t words = count == kRawChunk ? kChunk / 2 : count;
  std::uint32_t first_word = word;
  KVLANE_UNROLL
  for (std::uint32_t other = 0; other < kSpanChunks; ++other) {
    const std::uint32_t of_other = t.shuffle(words, static_cast<int>(8 * other));
    if (other < own) first_word += of_other;
    word += of_other;
  }
  const std::byte* const table = plan.body + plan.at.table + 2 * std::size_t{first_word};
  const std::size_t first = (std::size_t{chunk} + own) * kChunk;
  const std::byte* const rests = plan.body + plan.at.bytes + first;
  std::byte* const values = plan.plane + 2 * first;
  const auto put = [&](unsigned place, unsigned exponent) {
    const unsigned rest = load_byte(rests + place);
    store_aligned_half(values + 2 * value_at<ElementType::kBf16>(place, kChunk),
                       (rest & 1) << 15 | exponent << 7 | rest >> 1);
  };
  bool right = true;
  if (count == kRawChunk) {
    for (unsigned place = t.lane() % 8; place < kChunk; place += 8) {
      put(place, load_byte(table + place));
    }
    return right;
  }
  for (unsigned i = t.lane() % 8; i < count; i += 8) {
    const unsigned entry = load_aligned_half(table + 2 * i);  // place, exponent
    const unsigned place = entry & 0xFF;
    right = right && (i == 0 || load_byte(table + 2 * i - 2) < place);
    put(place, entry >> 8);
  }
  return right;
}

// This warp's chunks, whose part of the table begins with word `word`.
template <ElementType kType, class Thread>
KVLANE_DEVICE bool decode_run(Thread& t, const DecodePlan& plan, std::uint32_t word) {
  const std::uint32_t whole = plan.elements / kChunk;
  bool right = true;
  KVLANE_NO_UNROLL
  for (std::uint32_t chunk = plan.run_begin; chunk < plan.run_end;) {
    bool good;
    if (kType == ElementType::kBf16 && plan.aligned && chunk < whole) {
      const std::uint32_t left = (plan.run_end < whole ? plan.run_end : whole) - chunk;
      const std::uint32_t chunks = left < kSpanChunks ? left : kSpanChunks;
      const std::uint32_t own = t.lane() / 8;
      const unsigned count = own < chunks ? load_byte(plan.body + plan.at.counts + chunk + own) : 0;
      decode_span(t, plan, chunk, chunks);
      t.sync_warp();  // the values under escapes are written
      good = patch_span(t, plan, chunk, count, word);
      chunk += chunks;
    } else {
      const std::byte* const table = plan.body + plan.at.table + 2 * std::size_t{word};
      good = decode_any_chunk<kType>(t, plan, chunk, table);
      const auto count = static_cast<std::uint8_t>(load_byte(plan.body + plan.at.counts + chunk));
      const std::uint32_t left = plan.elements - chunk * kChunk;
      word += static_cast<std::uint32_t>(table_words_of(count, left < kChunk ? left : kChunk));
      ++chunk;
    }
    right = right && good;
  }
  return right;
}

// Fields of the last, short group that no place has.
template <ElementType kType, class Thread>
KVLANE_DEVICE bool unused_fields_zero(Thread& t, const DecodePlan& plan) {
  const std::uint32_t length = plan.elements % kGroup;
  const std::uint32_t group = plan.elements - length;
  const std::uint32_t place = length + t.index();
  const std::uint32_t half = field_step(length, 4), quarter = field_step(length, 2);
  bool zero = true;
  const auto field = [&](std::size_t at, std::uint32_t step, std::uint32_t width) {
    return load_byte(plan.body + at + place % step) >> place / step * width & ((1U << width) - 1);
  };
  if (place < 2 * half) zero = field(plan.at.nibbles + group / 2, half, 4) == 0;
  if constexpr (kType != ElementType::kBf16) {
    if (place < 4 * quarter) zero = zero && field(plan.at.pairs + group / 4, quarter, 2) == 0;
    if (place < (length + 7) / 8 * 8) {
      zero = zero &&
             (load_byte(plan.body + plan.at.bits + group / 8 + place / 8) >> place % 8 & 1) == 0;
    }
  }
  return zero;
}

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

// One block of at most kDeviceWarps warps.
template <class Thread>
KVLANE_DEVICE void decode_plane(Thread& t, const DeviceDecodeTask& task,
                                DeviceDecodeShared& shared) {
  const DeviceVerdict verdict = device::decode_checked(t, task, shared);
  if (t.index() == 0) *task.verdict = verdict;
}

}  // namespace kvlane::splitzip
