// The encoder of codec/splitzip_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/splitzip_device.h"

namespace kvlane::splitzip {

// A plane and what becomes of it. Fast where plane and body begin at multiples of 16.
struct DeviceEncodeTask {
  ElementType type;
  std::uint32_t elements;
  const std::byte* plane;
  const std::uint8_t* codebook;  // kCodebookEntries exponents; null: the plane is counted
  std::byte* body;               // with room for raw_body_bytes() of the plane
  std::uint32_t* body_bytes;     // written
};

// Escapes that are kept in shared memory, shared out to the warps; where a warp's run has more, it
// is read again.
inline constexpr std::uint32_t kStagedWords = 512 * kDeviceWarps;

struct DeviceEncodeShared {
  std::uint32_t counts[256];  // of exponents
  std::uint8_t code_of[256];
  std::uint8_t exponent[kCodebookEntries];
  std::uint32_t words[kDeviceWarps];  // of the escape table, by warp
  std::uint16_t staged[kStagedWords];
};

namespace device {

// Where a warp's part of the escape table goes: to shared memory while there is room, or in a
// second pass to its place in the body.
struct WordSink {
  std::uint16_t* staged;
  std::uint32_t room;  // there, in words
  std::byte* body;
  std::uint32_t table;  // offset in the body, which is not 0: the second pass
  std::uint32_t words;  // so far

  KVLANE_DEVICE bool second_pass() const { return table != 0; }
  KVLANE_DEVICE void put(std::uint32_t index, unsigned word) const {
    if (second_pass()) {
      store_half(body + table + 2 * std::size_t{index}, word);
    } else if (index < room) {
      staged[index] = static_cast<std::uint16_t>(word);
    }
  }
};

// What all threads of the block know of the plane.
struct EncodePlan {
  const std::byte* plane;
  std::byte* body;
  Offsets at;
  const DeviceEncodeShared* shared;
  std::uint32_t elements;
  std::uint32_t window;  // exponent[0] in each byte, if the codebook is a window
  bool is_window;
  bool aligned;
};

// Any chunk, by one warp. Returns the words of its part of the table.
template <ElementType kType, class Thread>
KVLANE_DEVICE std::uint32_t encode_any_chunk(Thread& t, const EncodePlan& plan, std::uint32_t chunk,
                                             const WordSink& sink) {
  const std::uint32_t first = chunk * kChunk;
  const std::uint32_t length = plan.elements - first < kChunk ? plan.elements - first : kChunk;
  const std::byte* const values = plan.plane + std::size_t{first} * element_bytes(kType);
  const auto parts = [&](std::uint32_t place) {
    return parts_of<kType>(values +
                           std::size_t{value_at<kType>(place, length)} * element_bytes(kType));
  };
  const auto code_of = [&](std::uint32_t place) {
    return unsigned{plan.shared->code_of[parts(place).exponent]};
  };
  std::uint32_t escapes = 0;
  for (std::uint32_t from = 0; from < length; from += kWarpThreads) {
    const std::uint32_t place = from + t.lane();
    escapes += count_ones(t.ballot(place < length && code_of(place) >= 0x80));
  }
  const bool raw = escapes > kChunkEscapesMax;
  const std::uint32_t words = raw ? (length + 1) / 2 : escapes;
  std::uint32_t written = 0;
  for (std::uint32_t from = 0; from < length; from += kWarpThreads) {
    const std::uint32_t place = from + t.lane();
    const bool inside = place < length;
    if (raw) {
      if (inside && place % 2 == 0) {
        const unsigned next = place + 1 < length ? parts(place + 1).exponent : 0;
        sink.put(sink.words + place / 2, parts(place).exponent | next << 8);
      }
      continue;
    }
    const bool escaped = inside && code_of(place) >= 0x80;
    const std::uint32_t votes = t.ballot(escaped);
    if (escaped) {
      const std::uint32_t rank = count_ones(votes & ((1U << t.lane()) - 1));
      sink.put(sink.words + written + rank, parts(place).exponent << 8 | place);
    }
    written += count_ones(votes);
  }
  if (sink.second_pass()) return words;

  const ChunkStreams<std::byte> out = chunk_streams(plan.body, plan.at, first);
  for (std::uint32_t group = 0; group < length; group += kGroup) {
    const std::uint32_t places = group_length(group, length);
    const auto code = [&](std::uint32_t place) { return raw ? 0 : code_of(group + place) & 0xF; };
    const auto rest = [&](std::uint32_t place) { return parts(group + place).rest; };
    for (std::uint32_t i = t.lane(); i < field_step(places, 4); i += kWarpThreads) {
      const unsigned byte = kType == ElementType::kFp8E4m3 ? packed_byte(i, places, 4, rest)
                                                           : packed_byte(i, places, 4, code);
      store_byte(out.nibbles + group / 2 + i, byte);
    }
    if constexpr (kType == ElementType::kBf16) {
      for (std::uint32_t i = t.lane(); i < places; i += kWarpThreads) {
        store_byte(out.bytes + group + i, rest(i));
      }
    } else {
      const auto triple = [&](std::uint32_t place) {
        return kType == ElementType::kFp8E4m3 ? code(place) : rest(place);
      };
      for (std::uint32_t i = t.lane(); i < field_step(places, 2); i += kWarpThreads) {
        store_byte(out.pairs + group / 4 + i, packed_byte(i, places, 2, triple));
      }
      for (std::uint32_t i = t.lane(); i < (places + 7) / 8; i += kWarpThreads) {
        store_byte(out.bits + group / 8 + i, packed_bits(i, places, triple));
      }
    }
  }
  if (t.lane() == 0) store_byte(plan.body + plan.at.counts + chunk, raw ? kRawChunk : escapes);
  return words;
}

// Exponents and rests of four places, one a byte: two values that follow each other in the first
// half of their 64, and the two beside them in the second.
struct PackedParts {
  std::uint32_t exponents, rests;
};
KVLANE_DEVICE PackedParts split_words(std::uint32_t even, std::uint32_t odd) {
  const std::uint32_t low = byte_perm(even, odd, 0x6240);
  const std::uint32_t high = byte_perm(even, odd, 0x7351);
  return {(high << 1 & 0xFEFEFEFE) | (low >> 7 & 0x01010101),
          (low << 1 & 0xFEFEFEFE) | (high >> 7 & 0x01010101)};
}

// Codes of four exponents, 0 for escapes, whose bytes have bit 7 set in `escapes`.
KVLANE_DEVICE std::uint32_t codes_of(const EncodePlan& plan, std::uint32_t exponents,
                                     std::uint32_t& escapes) {
  if (plan.is_window) {
    const std::uint32_t distance = subtract_bytes(exponents, plan.window);
    escapes = (((distance & 0x7F7F7F7F) + 0x70707070) | distance) & 0x80808080;
    return distance & ~byte_perm(escapes, 0, 0xBA98);
  }
  const std::uint8_t* const code_of = plan.shared->code_of;
  const std::uint32_t codes = code_of[exponents & 0xFF] |
                              std::uint32_t{code_of[exponents >> 8 & 0xFF]} << 8 |
                              std::uint32_t{code_of[exponents >> 16 & 0xFF]} << 16 |
                              std::uint32_t{code_of[exponents >> 24]} << 24;
  escapes = codes & 0x80808080;
  return codes & 0x0F0F0F0F;
}

// What a thread has of a span: 32 values of a group, 16 of each half of it. Few words, as the warp
// finds the place of its escapes while it holds them.
struct SpanPart {
  Words4 nibbles;         // of both halves
  std::uint32_t escaped;  // bit 16 half + i: place 64 half + 16 column + i of the group
};

// Rests are stored at once, in the order of places, unless `rests` is null.
KVLANE_DEVICE SpanPart load_span(const EncodePlan& plan, const std::byte* values, std::byte* rests,
                                 bool active) {
  SpanPart part{};
  if (!active) return part;
  Words4 loaded[2][2];  // [half of the group][the first 32 values of it, or the others]
  KVLANE_UNROLL
  for (int half = 0; half < 2; ++half) {
    for (int side = 0; side < 2; ++side) {
      loaded[half][side] = load_once(values + 128 * half + 64 * side);
    }
  }
  KVLANE_UNROLL
  for (int half = 0; half < 2; ++half) {
    Words4 out;
    KVLANE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const PackedParts parts = split_words(loaded[half][0].w[i], loaded[half][1].w[i]);
      std::uint32_t escapes;
      part.nibbles.w[i] |= codes_of(plan, parts.exponents, escapes) << 4 * half;
      part.escaped |= top_bits(escapes) << (16 * half + 4 * i);
      out.w[i] = parts.rests;
    }
    if (rests != nullptr) store_once(rests + 64 * half, out);
  }
  return part;
}

// Where the escapes of a thread go. Places ascend by group, half and column.
struct SpanPlace {
  std::uint32_t chunk_word;    // of its chunk, in the warp's part of the table
  std::uint32_t half_word[2];  // of its own
  std::uint32_t escapes;       // of its chunk
  std::uint32_t span_words;
};

template <class Thread>
KVLANE_DEVICE SpanPlace place_span(Thread& t, std::uint32_t escaped, bool active,
                                   std::uint32_t first_word) {
  const int column = t.lane() % 4;
  // Counts of the two halves are added up in one word.
  const std::uint32_t low = count_ones(escaped & 0xFFFF), high = count_ones(escaped >> 16);
  std::uint32_t upto = low | high << 16;  // of this thread and those before it in the group
  for (int by = 1; by < 4; by *= 2) {
    const std::uint32_t before = t.shuffle_up(upto, by, 4);
    if (column >= by) upto += before;
  }
  const std::uint32_t halves = t.shuffle(upto, t.lane() | 3);
  const std::uint32_t group = (halves & 0xFFFF) + (halves >> 16);
  const std::uint32_t other = t.shuffle(group, t.lane() ^ 4);
  SpanPlace place{
      .chunk_word = first_word, .half_word = {}, .escapes = group + other, .span_words = 0};
  const std::uint32_t words = !active                            ? 0
                              : place.escapes > kChunkEscapesMax ? kChunk / 2
                                                                 : place.escapes;
  for (int chunk = 0; chunk < static_cast<int>(kSpanChunks); ++chunk) {
    const std::uint32_t of_chunk = t.shuffle(words, 8 * chunk);
    if (chunk < t.lane() / 8) place.chunk_word += of_chunk;
    place.span_words += of_chunk;
  }
  const std::uint32_t group_word = place.chunk_word + (t.lane() % 8 >= 4 ? other : 0);
  place.half_word[0] = group_word + (upto & 0xFFFF) - low;
  place.half_word[1] = group_word + (halves & 0xFFFF) + (upto >> 16) - high;
  return place;
}

// The table's words of a thread's values: `first` is the first value of its chunk. Values are read
// again: kept, they would take the registers of all threads for the few that need them.
template <class Thread>
KVLANE_DEVICE void write_span_words(Thread& t, const SpanPart& part, const SpanPlace& place,
                                    const std::byte* first, const WordSink& sink) {
  const std::uint32_t begin = t.lane() / 4 % 2 * kGroup + 16 * (t.lane() % 4);
  const auto exponent = [&](std::uint32_t at) {
    return load_half(first + 2 * value_at<ElementType::kBf16>(at, kChunk)) >> 7 & 0xFF;
  };
  KVLANE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t from = begin + 64 * half;
    if (place.escapes > kChunkEscapesMax) {
      for (std::uint32_t at = from; at < from + 16; at += 2) {
        sink.put(place.chunk_word + at / 2, exponent(at) | exponent(at + 1) << 8);
      }
      continue;
    }
    std::uint32_t word = place.half_word[half];
    for (std::uint32_t left = part.escaped >> 16 * half & 0xFFFF; left != 0; left &= left - 1) {
      const std::uint32_t at = from + lowest_one(left);
      sink.put(word++, exponent(at) << 8 | at);
    }
  }
}

// Four whole bf16 chunks from `chunk` on, of which `chunks` are there, by one warp: eight threads a
// chunk, four a group. Returns the words of their part of the table.
template <class Thread>
KVLANE_DEVICE std::uint32_t encode_span(Thread& t, const EncodePlan& plan, std::uint32_t chunk,
                                        std::uint32_t chunks, const WordSink& sink) {
  const std::uint32_t own = t.lane() / 8;
  const bool active = own < chunks;
  const std::uint32_t column = 16 * (t.lane() % 4);
  const std::size_t first = std::size_t{chunk} * kChunk + t.lane() / 4 * kGroup;
  std::byte* const rests = plan.body + plan.at.bytes + first + column;
  const SpanPart part = load_span(plan, plan.plane + 2 * first + column,
                                  sink.second_pass() ? nullptr : rests, active);
  const SpanPlace place = place_span(t, part.escaped, active, sink.words);
  if (!active) return place.span_words;
  write_span_words(t, part, place, plan.plane + 2 * (std::size_t{chunk} + own) * kChunk, sink);
  if (sink.second_pass()) return place.span_words;

  const bool raw = place.escapes > kChunkEscapesMax;
  store_once(plan.body + plan.at.nibbles + first / 2 + column, raw ? Words4{} : part.nibbles);
  if (t.lane() % 8 == 0) {
    store_byte(plan.body + plan.at.counts + chunk + own, raw ? kRawChunk : place.escapes);
  }
  return place.span_words;
}

// A warp's run of chunks. Returns the words of its part of the table.
template <ElementType kType, class Thread>
KVLANE_DEVICE std::uint32_t encode_run(Thread& t, const EncodePlan& plan, std::uint32_t begin,
                                       std::uint32_t end, WordSink sink) {
  const std::uint32_t whole = plan.elements / kChunk;
  for (std::uint32_t chunk = begin; chunk < end;) {
    if (kType == ElementType::kBf16 && plan.aligned && chunk < whole) {
      const std::uint32_t left = (end < whole ? end : whole) - chunk;
      const std::uint32_t chunks = left < kSpanChunks ? left : kSpanChunks;
      const std::uint32_t next = chunk + kSpanChunks;
      fetch_bytes_ahead(t, plan.plane + 2 * std::size_t{next} * kChunk,
                        2 * span_values(next, end < whole ? end : whole));
      sink.words += encode_span(t, plan, chunk, chunks, sink);
      chunk += chunks;
    } else {
      sink.words += encode_any_chunk<kType>(t, plan, chunk, sink);
      ++chunk;
    }
  }
  return sink.words;
}

// Leaves codebook and codes in shared memory: the given one, or the best one for the plane.
template <ElementType kType, class Thread>
KVLANE_DEVICE void prepare_codebook(Thread& t, const DeviceEncodeTask& task,
                                    DeviceEncodeShared& shared) {
  constexpr Fields kFields = fields_of(kType);
  constexpr int kExponents = 1 << kFields.exponent_bits;
  for (int e = t.index(); e < 256; e += t.threads()) {
    shared.counts[e] = 0;
    shared.code_of[e] = 0x80;
  }
  if (t.index() < static_cast<int>(kCodebookEntries)) shared.exponent[t.index()] = 0;
  t.sync_block();
  if (task.codebook != nullptr) {
    if (t.index() < kFields.codebook_entries) {
      const std::uint8_t exponent = task.codebook[t.index()];
      shared.exponent[t.index()] = exponent;
      shared.code_of[exponent] = static_cast<std::uint8_t>(t.index());
    }
    t.sync_block();
    return;
  }
  for (std::uint32_t i = t.index(); i < task.elements; i += t.threads()) {
    const std::byte* const value = task.plane + std::size_t{i} * element_bytes(kType);
    t.add(shared.counts[parts_of<kType>(value).exponent], 1);
  }
  t.sync_block();
  // An exponent's rank: how many are more frequent, or as frequent and smaller.
  const auto chosen = [&](int e) {
    int rank = 0;
    for (int other = 0; other < kExponents; ++other) {
      rank += shared.counts[other] > shared.counts[e] ||
              (other < e && shared.counts[other] == shared.counts[e]);
    }
    return rank < kFields.codebook_entries;
  };
  for (int e = t.index(); e < kExponents; e += t.threads()) {
    if (chosen(e)) shared.code_of[e] = 0;
  }
  t.sync_block();
  for (int e = t.index(); e < kExponents; e += t.threads()) {
    if (shared.code_of[e] >= 0x80) continue;
    int code = 0;
    for (int other = 0; other < e; ++other) code += shared.code_of[other] < 0x80;
    shared.exponent[code] = static_cast<std::uint8_t>(e);
  }
  t.sync_block();
  if (t.index() < kFields.codebook_entries) {
    shared.code_of[shared.exponent[t.index()]] = static_cast<std::uint8_t>(t.index());
  }
  t.sync_block();
}

// What lies between sections, up to the escape table.
template <class Thread>
KVLANE_DEVICE void store_padding(Thread& t, const Sections& at, std::byte* body) {
  store_zeros(t, body, at.codebook + kCodebookEntries, at.nibbles);
  store_zeros(t, body, at.nibbles_end, at.bytes);
  store_zeros(t, body, at.bytes_end, at.pairs);
  store_zeros(t, body, at.pairs_end, at.bits);
  store_zeros(t, body, at.bits_end, at.counts);
  store_zeros(t, body, at.counts_end, at.table);
}

template <class Thread>
KVLANE_DEVICE void store_prefix(Thread& t, const DeviceEncodeTask& task, Mode mode,
                                std::uint32_t table_words) {
  if (t.index() != 0) return;
  const Prefix prefix{.version = kBodyVersion,
                      .mode = static_cast<std::uint8_t>(mode),
                      .element_type = static_cast<std::uint8_t>(task.type),
                      .reserved_3 = 0,
                      .elements = task.elements,
                      .table_words = table_words,
                      .reserved_12 = 0};
  std::memcpy(task.body, &prefix, sizeof(prefix));
}

template <class Thread>
KVLANE_DEVICE void encode_raw(Thread& t, const DeviceEncodeTask& task) {
  const std::size_t bytes = std::size_t{task.elements} * element_bytes(task.type);
  store_prefix(t, task, Mode::kRaw, 0);
  copy_bytes(t, task.body + sizeof(Prefix), task.plane, bytes);
  store_zeros(t, task.body, sizeof(Prefix) + bytes, raw_body_bytes(bytes));
  if (t.index() == 0) *task.body_bytes = static_cast<std::uint32_t>(raw_body_bytes(bytes));
}

template <ElementType kType, class Thread>
KVLANE_DEVICE void encode_coded(Thread& t, const DeviceEncodeTask& task,
                                DeviceEncodeShared& shared) {
  const auto raw_end =
      static_cast<std::uint32_t>(raw_body_bytes(std::size_t{task.elements} * element_bytes(kType)));
  const Sections at = sections(kType, task.elements, 0);
  if (at.end >= raw_end) return encode_raw(t, task);
  store_padding(t, at, task.body);
  prepare_codebook<kType>(t, task, shared);
  constexpr int kLast = fields_of(kType).codebook_entries - 1;
  const std::uint32_t lowest = shared.exponent[0];
  const EncodePlan plan{.plane = task.plane,
                        .body = task.body,
                        .at = offsets(at),
                        .shared = &shared,
                        .elements = task.elements,
                        .window = lowest * 0x01010101U,
                        .is_window = shared.exponent[kLast] - lowest == kLast,
                        .aligned = (reinterpret_cast<std::uintptr_t>(task.plane) |
                                    reinterpret_cast<std::uintptr_t>(task.body)) %
                                       16 ==
                                   0};
  const auto chunks = static_cast<std::uint32_t>(chunk_count(task.elements));
  const std::uint32_t spans = (chunks + kSpanChunks - 1) / kSpanChunks;
  const std::uint32_t run = (spans + t.warps() - 1) / t.warps() * kSpanChunks;
  const std::uint32_t begin = run * t.warp() < chunks ? run * t.warp() : chunks;
  const std::uint32_t end = begin + run < chunks ? begin + run : chunks;
  const std::uint32_t room = kStagedWords / t.warps();
  WordSink sink{shared.staged + room * t.warp(), room, task.body, 0, 0};
  std::uint32_t total = 0;
  Sections whole{};
  // Once, or with escapes that did not fit twice; one call, as it takes many registers.
  for (bool again = false;; again = true) {
    const std::uint32_t own = encode_run<kType>(t, plan, begin, end, sink);
    if (again) break;
    if (t.lane() == 0) shared.words[t.warp()] = own;
    t.sync_block();
    std::uint32_t before = 0;
    for (int warp = 0; warp < t.warps(); ++warp) {
      if (warp < t.warp()) before += shared.words[warp];
      total += shared.words[warp];
    }
    whole = sections(kType, task.elements, total);
    if (whole.end >= raw_end) return encode_raw(t, task);
    const std::uint32_t table = plan.at.table + 2 * before;
    if (own > room) {
      sink.table = table;
      continue;
    }
    for (std::uint32_t i = t.lane(); i < own; i += kWarpThreads) {
      store_half(task.body + table + 2 * std::size_t{i}, sink.staged[i]);
    }
    break;
  }
  store_prefix(t, task, Mode::kCoded, total);
  if (t.index() < static_cast<int>(kCodebookEntries)) {
    store_byte(task.body + at.codebook + t.index(), shared.exponent[t.index()]);
  }
  store_zeros(t, task.body, whole.table_end, whole.end);
  if (t.index() == 0) *task.body_bytes = static_cast<std::uint32_t>(whole.end);
}

}  // namespace device

// One block of at most kDeviceWarps warps.
template <class Thread>
KVLANE_DEVICE void encode_plane(Thread& t, const DeviceEncodeTask& task,
                                DeviceEncodeShared& shared) {
  switch (task.type) {
    case ElementType::kBf16: return device::encode_coded<ElementType::kBf16>(t, task, shared);
    case ElementType::kFp8E4m3: return device::encode_coded<ElementType::kFp8E4m3>(t, task, shared);
    case ElementType::kFp8E5m2: return device::encode_coded<ElementType::kFp8E5m2>(t, task, shared);
    default: return device::encode_raw(t, task);
  }
}

}  // namespace kvlane::splitzip
