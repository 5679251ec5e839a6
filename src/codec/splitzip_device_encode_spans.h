// Of the encoder of codec/splitzip_device.h: four whole chunks at a time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/splitzip_device_encode_bf16.h"
#include "codec/splitzip_device_encode_fp8.h"

namespace kvlane::splitzip {

namespace device {

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
template <ElementType kType, class Thread>
KVLANE_DEVICE void write_span_words(Thread& t, std::uint32_t escaped, const SpanPlace& place,
                                    const std::byte* first, const WordSink& sink) {
  const std::uint32_t begin = t.lane() / 4 % 2 * kGroup + 16 * (t.lane() % 4);
  const auto exponent = [&](std::uint32_t at) {
    return parts_of<kType>(first + element_bytes(kType) * value_at<kType>(at, kChunk)).exponent;
  };
  KVLANE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t from = begin + 64 * half;
    if (place.escapes > kChunkEscapesMax) {
      KVLANE_NO_UNROLL
      for (std::uint32_t at = from; at < from + 16; at += 2) {
        sink.put(place.chunk_word + at / 2, exponent(at) | exponent(at + 1) << 8);
      }
      continue;
    }
    std::uint32_t word = place.half_word[half];
    for (std::uint32_t left = escaped >> 16 * half & 0xFFFF; left != 0; left &= left - 1) {
      const std::uint32_t at = from + lowest_one(left);
      sink.put(word++, exponent(at) << 8 | at);
    }
  }
}

// Four whole chunks from `chunk` on, of which `chunks` are there, by one warp: eight threads a
// chunk, four a group. Returns the words of their part of the table.
template <class Part, class Thread>
KVLANE_DEVICE std::uint32_t encode_span(Thread& t, const EncodePlan& plan, std::uint32_t chunk,
                                        std::uint32_t chunks, const WordSink& sink) {
  const std::uint32_t own = t.lane() / 8, column = t.lane() % 4;
  const bool active = own < chunks;
  const std::size_t first = std::size_t{chunk} * kChunk + t.lane() / 4 * kGroup;
  const Part part = Part::load(t, plan, first, active, sink.second_pass());
  const SpanPlace place = place_span(t, part.escaped, active, sink.words);
  if (!active) return place.span_words;
  const std::size_t values = (std::size_t{chunk} + own) * kChunk * element_bytes(Part::kType);
  write_span_words<Part::kType>(t, part.escaped, place, plan.plane + values, sink);
  if (sink.second_pass()) return place.span_words;

  const bool raw = place.escapes > kChunkEscapesMax;
  Part::store(plan, first, column, raw ? Words4{} : part.codes);
  if (t.lane() % 8 == 0) {
    store_byte(plan.body + plan.at.counts + chunk + own, raw ? kRawChunk : place.escapes);
  }
  return place.span_words;
}

}  // namespace device

}  // namespace kvlane::splitzip
