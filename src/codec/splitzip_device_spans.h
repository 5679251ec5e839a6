// Of the decoder of codec/splitzip_device.h: chunks and spans.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/device_verdict.h"
#include "codec/splitzip_device.h"
#include "codec/splitzip_variant.h"

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

// What a warp of tiles reads from shared memory, as registers are what it lacks.
struct TileTask {
  std::uint32_t elements, table_words;
  std::byte* plane;
  const DeviceDecodeTask* next;  // whose block comes when this one goes, or null
};

struct DeviceDecodeShared {
  std::uint32_t words[kDeviceWarps];
  // What was found wrong before values are decoded, and then: two words, as some threads may still
  // read the first when others write the second.
  std::uint32_t wrong[2];
  DeviceVerdict* verdict;
  TileTask own[kDeviceWarps];  // each warp has its own
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

  // Where those end that go four at a time: whole ones of bf16.
  KVLANE_DEVICE std::uint32_t spans_end(ElementType type) const {
    const std::uint32_t whole = type == ElementType::kBf16 && aligned ? elements / kChunk : 0;
    return run_end < whole ? run_end : whole;
  }
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

// What a thread loads of a span: 32 values of a group, 16 of each half of it.
struct CodedPart {
  Words4 nibbles;  // of both halves
  Words4 rests[2];
};
KVLANE_DEVICE CodedPart load_part(const DecodePlan& plan, std::size_t first, std::uint32_t column) {
  CodedPart part;
  part.nibbles = load_once(plan.body + plan.at.nibbles + first / 2 + 16 * column);
  KVLANE_UNROLL
  for (int half = 0; half < 2; ++half) {
    part.rests[half] = load_once(plan.body + plan.at.bytes + first + 64 * half + 16 * column);
  }
  return part;
}

// The values of a half, without the exponents that are in the table: 8 of its first 32, and of
// those behind.
KVLANE_DEVICE void join_half(const std::uint32_t (&book)[4], const CodedPart& part, int half,
                             Words4 (&out)[2]) {
  KVLANE_UNROLL
  for (int i = 0; i < 4; ++i) {
    // Codes of four places, spread over bytes, as nibbles of 16 bits.
    const std::uint32_t spread = part.nibbles.w[i] >> 4 * half & 0x0F0F0F0F;
    const std::uint32_t pairs = spread | spread >> 4;
    const std::uint32_t codes = byte_perm(pairs, 0, 0x4420);
    join_words(exponents_of(book, codes), part.rests[half].w[i], out[0].w[i], out[1].w[i]);
  }
}
KVLANE_DEVICE void store_part(const DecodePlan& plan, std::size_t first, std::uint32_t column,
                              const CodedPart& part) {
  KVLANE_UNROLL
  for (int half = 0; half < 2; ++half) {
    Words4 out[2];
    join_half(plan.code_exponents, part, half, out);
    KVLANE_UNROLL
    for (int side = 0; side < 2; ++side) {
      store_once(plan.plane + 2 * first + 128 * half + 64 * side + 16 * column, out[side]);
    }
  }
}

// The chunk of a span that a thread patches.
template <bool kSwizzled>
struct PatchedChunk {
  const std::byte* table;  // its part
  const std::byte* rests;
  std::byte* values;

  KVLANE_DEVICE void put(unsigned place, unsigned exponent, unsigned rest) const {
    std::uint32_t at = 2 * value_at<ElementType::kBf16>(place, kChunk);
    if constexpr (kSwizzled) at ^= at >> 2 & 64;
    store_aligned_half(values + at, (rest & 1) << 15 | exponent << 7 | rest >> 1);
  }
};

// By the threads of a chunk: a raw one, or escapes from the ninth on. Whether they are in order.
template <class Thread, bool kSwizzled>
KVLANE_DEVICE bool patch_many(Thread& t, const PatchedChunk<kSwizzled>& chunk, unsigned count) {
  bool right = true;
  if (count == kRawChunk) {
    for (unsigned place = t.lane() % 8; place < kChunk; place += 8) {
      chunk.put(place, load_byte(chunk.table + place), load_byte(chunk.rests + place));
    }
    return right;
  }
  for (unsigned i = 8 + t.lane() % 8; i < count; i += 8) {
    const unsigned entry = load_aligned_half(chunk.table + 2 * i);  // place, exponent
    const unsigned place = entry & 0xFF;
    right = right && load_byte(chunk.table + 2 * i - 2) < place;
    chunk.put(place, entry >> 8, load_byte(chunk.rests + place));
  }
  return right;
}

// Asks memory for the span that begins with this chunk, up to `end`.
template <class Thread>
KVLANE_DEVICE void fetch_span(Thread& t, const DecodePlan& plan, std::uint32_t chunk,
                              std::uint32_t end) {
  const std::uint32_t values = span_values(chunk, end);
  const std::size_t first = std::size_t{chunk} * kChunk;
  fetch_bytes_ahead(t, plan.body + plan.at.nibbles + first / 2, values / 2);
  fetch_bytes_ahead(t, plan.body + plan.at.bytes + first, values);
}

// The counts of 32 whole chunks, one a lane, from `first` on; 0 behind the last of the run.
struct Counts {
  std::uint32_t first;
  unsigned own;
};
template <class Thread>
KVLANE_DEVICE Counts load_counts(Thread& t, const DecodePlan& plan, std::uint32_t first,
                                 std::uint32_t end) {
  const std::uint32_t chunk = first + t.lane();
  return {first, chunk < end ? load_byte(plan.body + plan.at.counts + chunk) : 0};
}

// Of the chunk of a span that a thread has a part of.
struct Escapes {
  unsigned count;
  std::uint32_t first_word;  // of its part of the table
  unsigned entry;            // (place, exponent) of escape `lane % 8`, if there is one

  KVLANE_DEVICE bool has(unsigned i) const { return count != kRawChunk && i < count; }
};

// Those of the span that begins with `chunk`, whose counts are there: the span's part of the table
// begins with word `word`, and ends there afterwards. Most chunks have one escape or none.
template <class Thread>
KVLANE_DEVICE Escapes find_escapes(Thread& t, const DecodePlan& plan, const Counts& counts,
                                   std::uint32_t chunk, std::uint32_t& word) {
  const std::uint32_t own = t.lane() / 8;
  Escapes found{};
  found.count = t.shuffle(counts.own, static_cast<int>(chunk - counts.first + own));
  found.first_word = word;
  const std::uint32_t words = found.count == kRawChunk ? kChunk / 2 : found.count;
  KVLANE_UNROLL
  for (std::uint32_t other = 0; other < kSpanChunks; ++other) {
    const std::uint32_t of_other = t.shuffle(words, static_cast<int>(8 * other));
    if (other < own) found.first_word += of_other;
    word += of_other;
  }
  const unsigned i = t.lane() % 8;
  if (found.has(i)) {
    found.entry =
        load_aligned_half(plan.body + plan.at.table + 2 * (std::size_t{found.first_word} + i));
  }
  return found;
}

// The whole chunks of a warp's run up to `end`, four at a time as encode_span has them; `word` is
// as above. What escapes need is loaded beside all else, and their entries a span before that.
template <class Thread>
KVLANE_DEVICE bool decode_spans(Thread& t, const DecodePlan& plan, std::uint32_t end,
                                std::uint32_t& word) {
  const std::uint32_t own = t.lane() / 8, column = t.lane() % 4, i = t.lane() % 8;
  Counts counts = load_counts(t, plan, plan.run_begin, end);
  Escapes escapes = find_escapes(t, plan, counts, plan.run_begin, word);
  bool right = true;
  KVLANE_NO_UNROLL
  for (std::uint32_t chunk = plan.run_begin; chunk < end; chunk += kSpanChunks) {
    const bool active = chunk + own < end;
    const std::size_t first = std::size_t{chunk} * kChunk + t.lane() / 4 * kGroup;
    if (KVLANE_SZ_AHEAD != 0) fetch_span(t, plan, chunk + kSpanChunks, end);
    CodedPart part{};
    if (active) part = load_part(plan, first, column);
    const std::size_t values = (std::size_t{chunk} + own) * kChunk;
    const std::byte* const rests = plan.body + plan.at.bytes + values;
    const bool escaped = escapes.has(i);
    const unsigned place = escapes.entry & 0xFF;
    const unsigned rest = escaped ? load_byte(rests + place) : 0;
    const unsigned before = t.shuffle_up(place, 1, 8);
    right = right && (!escaped || i == 0 || before < place);
    const Escapes now = escapes;
    if (chunk + kSpanChunks < end) {
      if (chunk + kSpanChunks - counts.first == kWarpThreads) {
        counts = load_counts(t, plan, chunk + kSpanChunks, end);
      }
      escapes = find_escapes(t, plan, counts, chunk + kSpanChunks, word);
    }
    if (active) store_part(plan, first, column, part);
    t.sync_warp();  // the values under escapes are written
    const PatchedChunk<false> patched{plan.body + plan.at.table + 2 * std::size_t{now.first_word},
                                      rests, plan.plane + 2 * values};
    if (escaped) patched.put(place, now.entry >> 8, rest);
    if (now.count > 8) right = patch_many(t, patched, now.count) && right;
  }
  return right;
}

// This warp's chunks, whose part of the table begins with word `word`.
template <ElementType kType, class Thread>
KVLANE_DEVICE bool decode_run(Thread& t, const DecodePlan& plan, std::uint32_t word) {
  bool right = true;
  std::uint32_t chunk = plan.run_begin;
  if (const std::uint32_t end = plan.spans_end(kType); chunk < end) {
    right = decode_spans(t, plan, end, word);
    chunk = end;
  }
  KVLANE_NO_UNROLL
  for (; chunk < plan.run_end; ++chunk) {
    const std::byte* const table = plan.body + plan.at.table + 2 * std::size_t{word};
    right = decode_any_chunk<kType>(t, plan, chunk, table) && right;
    const auto count = static_cast<std::uint8_t>(load_byte(plan.body + plan.at.counts + chunk));
    const std::uint32_t left = plan.elements - chunk * kChunk;
    word += static_cast<std::uint32_t>(table_words_of(count, left < kChunk ? left : kChunk));
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

}  // namespace device

}  // namespace kvlane::splitzip
