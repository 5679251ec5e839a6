// Of the encoder of codec/splitzip_device.h: a chunk at a time, of any type, length and address.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/splitzip_batch.h"
#include "codec/splitzip_device.h"

namespace kvlane::splitzip {

// Escapes that are kept in shared memory, shared out to the warps; where a warp's run has more, it
// is read again.
inline constexpr std::uint32_t kStagedWords = 512 * kDeviceWarps;

struct DeviceEncodeShared {
  std::uint32_t counts[256];  // of exponents
  std::uint8_t code_of[256];
  std::uint8_t exponent[kCodebookEntries];
  std::uint32_t words[kDeviceWarps];  // of the escape table, by warp
  std::uint32_t* body_bytes;          // the first thread's: registers are what it lacks meanwhile
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

}  // namespace device

}  // namespace kvlane::splitzip
