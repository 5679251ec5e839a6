// SplitZip in scalar code, chunk by chunk: the normative kernels, which every other one must equal
// bit for bit. A chunk is taken apart into one array a field, in the order of places, and packed.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>

#include "codec/splitzip_kernels.h"

namespace kvlane::splitzip {
namespace {

// One field of every place of a chunk.
using Places = std::array<std::uint8_t, kChunkElements>;

template <class Byte>
void advance_chunk(ElementType type, Streams<Byte>& streams) {
  streams.nibbles += kChunkElements / 2;
  if (type == ElementType::kBf16) {
    streams.bytes += kChunkElements;
  } else {
    streams.pairs += kChunkElements / 4;
    streams.bits += kChunkElements / 8;
  }
}

std::uint16_t load_word(const std::byte* at) {
  std::uint16_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// The value that has place `place` of a chunk (spec/splitzip.md, section 2).
std::size_t value_at(ElementType type, std::size_t place, std::size_t elements) {
  const std::size_t group = place / kGroupElements * kGroupElements;
  if (type != ElementType::kBf16 || group + kGroupElements > elements) return place;
  const std::size_t half = place & ~std::size_t{63};
  return half + place % 2 * 32 + place % 64 / 2;
}

unsigned rotate_left(unsigned value, int bits) {
  return (value << 1 | value >> (bits - 1)) & ((1U << bits) - 1);
}
unsigned rotate_right(unsigned value, int bits) {
  return (value >> 1 | value << (bits - 1)) & ((1U << bits) - 1);
}

void split(ElementType type, const std::byte* values, std::size_t elements, Places& exponents,
           Places& rests) {
  const Fields fields = fields_of(type);
  const bool words = type == ElementType::kBf16;
  for (std::size_t place = 0; place < elements; ++place) {
    const std::size_t i = value_at(type, place, elements);
    const unsigned value = words ? load_word(values + 2 * i) : std::to_integer<unsigned>(values[i]);
    const unsigned rotated = rotate_left(value, fields.exponent_bits + fields.rest_bits);
    exponents[place] = static_cast<std::uint8_t>(rotated >> fields.rest_bits);
    rests[place] = static_cast<std::uint8_t>(rotated & ((1U << fields.rest_bits) - 1));
  }
}

void join(ElementType type, const Places& exponents, const Places& rests, std::size_t elements,
          std::byte* values) {
  const Fields fields = fields_of(type);
  for (std::size_t place = 0; place < elements; ++place) {
    const std::size_t i = value_at(type, place, elements);
    const unsigned rotated = unsigned{exponents[place]} << fields.rest_bits | rests[place];
    const unsigned value = rotate_right(rotated, fields.exponent_bits + fields.rest_bits);
    if (type == ElementType::kBf16) {
      const auto word = static_cast<std::uint16_t>(value);
      std::memcpy(values + 2 * i, &word, sizeof(word));
    } else {
      values[i] = std::byte(value);
    }
  }
}

// ------------------------------------------------------------------------------------------------
// Packing of one group of `length` places.

// Nibbles (width 4) and pairs (width 2): neighbours in a byte are ceil(length * width / 8) apart.
void pack_fields(const std::uint8_t* fields, std::size_t length, unsigned width, std::byte* out) {
  const std::size_t step = (length * width + 7) / 8;
  std::memset(out, 0, step);
  for (std::size_t place = 0; place < length; ++place) {
    const unsigned field = fields[place] & ((1U << width) - 1);
    out[place % step] |= std::byte(field << (place / step * width));
  }
}

void unpack_fields(const std::byte* in, std::size_t length, unsigned width, std::uint8_t* fields) {
  const std::size_t step = (length * width + 7) / 8;
  for (std::size_t place = 0; place < length; ++place) {
    const auto packed = std::to_integer<unsigned>(in[place % step]);
    fields[place] =
        static_cast<std::uint8_t>(packed >> (place / step * width) & ((1U << width) - 1));
  }
}

// Bit 2 of triples: places in order.
void pack_bits(const std::uint8_t* triples, std::size_t length, std::byte* out) {
  std::memset(out, 0, (length + 7) / 8);
  for (std::size_t place = 0; place < length; ++place) {
    out[place / 8] |= std::byte((triples[place] >> 2 & 1U) << place % 8);
  }
}

void add_bits(const std::byte* in, std::size_t length, std::uint8_t* triples) {
  for (std::size_t place = 0; place < length; ++place) {
    const unsigned bit = std::to_integer<unsigned>(in[place / 8]) >> place % 8 & 1U;
    triples[place] = static_cast<std::uint8_t>(triples[place] | bit << 2);
  }
}

std::size_t group_length(std::size_t first, std::size_t elements) {
  return first + kGroupElements <= elements ? kGroupElements : elements - first;
}

void pack(ElementType type, const Places& codes, const Places& rests, std::size_t elements,
          const Streams<std::byte>& out) {
  const Places& nibbles = type == ElementType::kFp8E4m3 ? rests : codes;
  const Places& triples = type == ElementType::kFp8E4m3 ? codes : rests;
  for (std::size_t first = 0; first < elements; first += kGroupElements) {
    const std::size_t length = group_length(first, elements);
    pack_fields(nibbles.data() + first, length, 4, out.nibbles + first / 2);
    if (type == ElementType::kBf16) {
      std::memcpy(out.bytes + first, rests.data() + first, length);
    } else {
      pack_fields(triples.data() + first, length, 2, out.pairs + first / 4);
      pack_bits(triples.data() + first, length, out.bits + first / 8);
    }
  }
}

void unpack(ElementType type, const Streams<const std::byte>& in, std::size_t elements,
            Places& codes, Places& rests) {
  Places& nibbles = type == ElementType::kFp8E4m3 ? rests : codes;
  Places& triples = type == ElementType::kFp8E4m3 ? codes : rests;
  for (std::size_t first = 0; first < elements; first += kGroupElements) {
    const std::size_t length = group_length(first, elements);
    unpack_fields(in.nibbles + first / 2, length, 4, nibbles.data() + first);
    if (type == ElementType::kBf16) {
      std::memcpy(rests.data() + first, in.bytes + first, length);
    } else {
      unpack_fields(in.pairs + first / 4, length, 2, triples.data() + first);
      add_bits(in.bits + first / 8, length, triples.data() + first);
    }
  }
}

// Puts the exponents of escapes in place.
bool patch(const Fields& fields, std::uint8_t count, const std::byte* table, std::size_t elements,
           Places& exponents) {
  std::size_t above = 0;  // the least place that keeps them ascending
  for (std::size_t word = 0; word < count; ++word) {
    const unsigned escape = load_word(table + 2 * word);
    const std::size_t place = escape & 0xFFU;
    if (place < above || place >= elements) return false;
    if (escape >> 8 >> fields.exponent_bits != 0) return false;
    exponents[place] = static_cast<std::uint8_t>(escape >> 8);
    above = place + 1;
  }
  return true;
}

bool take_raw_exponents(const Fields& fields, const std::byte* table, std::size_t elements,
                        Places& exponents) {
  unsigned all = 0;
  for (std::size_t place = 0; place < elements; ++place) {
    exponents[place] = std::to_integer<std::uint8_t>(table[place]);
    all |= exponents[place];
  }
  if (elements % 2 == 1 && table[elements] != std::byte{0}) return false;
  return all >> fields.exponent_bits == 0;
}

}  // namespace

int encode_chunk(ElementType type, const std::byte* values, std::size_t elements,
                 const CodeTables& tables, const Streams<std::byte>& out, std::uint8_t* count,
                 std::byte* table, std::size_t words_left) {
  Places exponents, rests, codes;
  split(type, values, elements, exponents, rests);
  std::size_t escapes = 0;
  for (std::size_t place = 0; place < elements; ++place) {
    const std::uint8_t code = tables.code_of[exponents[place]];
    escapes += code == CodeTables::kEscape ? 1 : 0;
    codes[place] = code & 0xFU;
  }
  const bool raw = escapes > kChunkEscapesMax;
  if (raw) codes.fill(0);
  pack(type, codes, rests, elements, out);
  *count = raw ? kRawChunk : static_cast<std::uint8_t>(escapes);
  const std::size_t words = table_words_of(*count, elements);
  if (words > words_left) return -1;
  if (raw) {
    table[2 * words - 1] = std::byte{0};
    std::memcpy(table, exponents.data(), elements);
    return static_cast<int>(words);
  }
  for (std::size_t place = 0; place < elements; ++place) {
    if (tables.code_of[exponents[place]] != CodeTables::kEscape) continue;
    const auto escape = static_cast<std::uint16_t>(exponents[place] << 8 | place);
    std::memcpy(table, &escape, sizeof(escape));
    table += sizeof(escape);
  }
  return static_cast<int>(words);
}

bool decode_chunk(ElementType type, const Streams<const std::byte>& in,
                  const std::uint8_t* codebook, std::uint8_t count, const std::byte* table,
                  std::size_t elements, std::byte* values) {
  const Fields fields = fields_of(type);
  Places codes, rests, exponents;
  unpack(type, in, elements, codes, rests);
  for (std::size_t place = 0; place < elements; ++place) exponents[place] = codebook[codes[place]];
  const bool right = count == kRawChunk ? take_raw_exponents(fields, table, elements, exponents)
                                        : patch(fields, count, table, elements, exponents);
  join(type, exponents, rests, elements, values);
  return right;
}

bool unused_fields_zero(ElementType type, const Streams<const std::byte>& group,
                        std::size_t elements) {
  // Packing what was unpacked gives the same bytes only if nothing else was set.
  Places fields;
  std::array<std::byte, kGroupElements> packed;
  const auto same = [&](const std::byte* bytes, std::size_t length) {
    return std::memcmp(packed.data(), bytes, length) == 0;
  };
  unpack_fields(group.nibbles, elements, 4, fields.data());
  pack_fields(fields.data(), elements, 4, packed.data());
  if (!same(group.nibbles, (elements + 1) / 2)) return false;
  if (type == ElementType::kBf16) return true;
  unpack_fields(group.pairs, elements, 2, fields.data());
  add_bits(group.bits, elements, fields.data());
  pack_fields(fields.data(), elements, 2, packed.data());
  if (!same(group.pairs, (elements + 3) / 4)) return false;
  pack_bits(fields.data(), elements, packed.data());
  return same(group.bits, (elements + 7) / 8);
}

EncodeProgress encode_scalar(const EncodeTask& task) {
  const std::size_t chunk_bytes = kChunkElements * element_bytes(task.type);
  Streams<std::byte> out = task.out;
  EncodeProgress done{};
  for (; done.chunks < task.chunks; ++done.chunks) {
    const int words =
        encode_chunk(task.type, task.plane + done.chunks * chunk_bytes, kChunkElements,
                     *task.tables, out, task.counts + done.chunks,
                     task.table + 2 * done.table_words, task.table_words_max - done.table_words);
    if (words < 0) break;
    done.table_words += static_cast<std::size_t>(words);
    advance_chunk(task.type, out);
  }
  return done;
}

bool decode_scalar(const DecodeTask& task) {
  const std::size_t chunk_bytes = kChunkElements * element_bytes(task.type);
  Streams<const std::byte> in = task.in;
  const std::byte* table = task.table;
  for (std::size_t chunk = 0; chunk < task.chunks; ++chunk) {
    const std::uint8_t count = task.counts[chunk];
    if (!decode_chunk(task.type, in, task.codebook, count, table, kChunkElements,
                      task.plane + chunk * chunk_bytes)) {
      return false;
    }
    table += 2 * table_words_of(count, kChunkElements);
    advance_chunk(task.type, in);
  }
  return true;
}

}  // namespace kvlane::splitzip
