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

// Calls visit(place, i) for each place of a chunk and the number, in the chunk, of the value that
// has it (spec/splitzip.md, section 2).
template <ElementType kType, class Visit>
void for_each_place(std::size_t elements, const Visit& visit) {
  std::size_t first = 0;
  if constexpr (kType == ElementType::kBf16) {
    for (; first + kGroupElements <= elements; first += kGroupElements) {
      for (const std::size_t half : {first, first + 64}) {
        for (std::size_t k = 0; k < 32; ++k) {
          visit(half + 2 * k, half + k);
          visit(half + 2 * k + 1, half + 32 + k);
        }
      }
    }
  }
  for (; first < elements; ++first) visit(first, first);
}

template <ElementType kType>
void split(const std::byte* values, std::size_t elements, Places& exponents, Places& rests) {
  constexpr Fields kFields = fields_of(kType);
  constexpr int kBits = kFields.exponent_bits + kFields.rest_bits;
  for_each_place<kType>(elements, [&](std::size_t place, std::size_t i) {
    const unsigned value =
        kBits == 16 ? load_word(values + 2 * i) : std::to_integer<unsigned>(values[i]);
    const unsigned rotated = (value << 1 | value >> (kBits - 1)) & ((1U << kBits) - 1);
    exponents[place] = static_cast<std::uint8_t>(rotated >> kFields.rest_bits);
    rests[place] = static_cast<std::uint8_t>(rotated & ((1U << kFields.rest_bits) - 1));
  });
}

template <ElementType kType>
void join(const Places& exponents, const Places& rests, std::size_t elements, std::byte* values) {
  constexpr Fields kFields = fields_of(kType);
  constexpr int kBits = kFields.exponent_bits + kFields.rest_bits;
  for_each_place<kType>(elements, [&](std::size_t place, std::size_t i) {
    const unsigned rotated = unsigned{exponents[place]} << kFields.rest_bits | rests[place];
    const unsigned value = rotated >> 1 | rotated << (kBits - 1);
    if constexpr (kBits == 16) {
      const auto word = static_cast<std::uint16_t>(value);
      std::memcpy(values + 2 * i, &word, sizeof(word));
    } else {
      values[i] = std::byte(value & 0xFFU);
    }
  });
}

// ------------------------------------------------------------------------------------------------
// Packing of one group of `length` places.

// Nibbles (width 4) and pairs (width 2): neighbours in a byte are ceil(length * width / 8) apart.
void pack_fields(const std::uint8_t* fields, std::size_t length, unsigned width, std::byte* out) {
  const std::size_t step = (length * width + 7) / 8;
  const unsigned mask = (1U << width) - 1;
  for (std::size_t at = 0; at < step; ++at) out[at] = std::byte(fields[at] & mask);
  unsigned shift = width;
  for (std::size_t first = step; first < length; first += step, shift += width) {
    const std::size_t end = first + step < length ? step : length - first;
    for (std::size_t at = 0; at < end; ++at) {
      out[at] |= std::byte((fields[first + at] & mask) << shift);
    }
  }
}

void unpack_fields(const std::byte* in, std::size_t length, unsigned width, std::uint8_t* fields) {
  const std::size_t step = (length * width + 7) / 8;
  const unsigned mask = (1U << width) - 1;
  unsigned shift = 0;
  for (std::size_t first = 0; first < length; first += step, shift += width) {
    const std::size_t end = first + step < length ? step : length - first;
    for (std::size_t at = 0; at < end; ++at) {
      fields[first + at] =
          static_cast<std::uint8_t>(std::to_integer<unsigned>(in[at]) >> shift & mask);
    }
  }
}

// Bit 2 of triples: places in order.
void pack_bits(const std::uint8_t* triples, std::size_t length, std::byte* out) {
  for (std::size_t first = 0; first < length; first += 8) {
    unsigned byte = 0;
    for (std::size_t bit = 0; bit < 8 && first + bit < length; ++bit) {
      byte |= (triples[first + bit] >> 2 & 1U) << bit;
    }
    out[first / 8] = std::byte(byte);
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

template <ElementType kType>
void pack(const Places& codes, const Places& rests, std::size_t elements,
          const Streams<std::byte>& out) {
  const Places& nibbles = kType == ElementType::kFp8E4m3 ? rests : codes;
  const Places& triples = kType == ElementType::kFp8E4m3 ? codes : rests;
  for (std::size_t first = 0; first < elements; first += kGroupElements) {
    const std::size_t length = group_length(first, elements);
    pack_fields(nibbles.data() + first, length, 4, out.nibbles + first / 2);
    if constexpr (kType == ElementType::kBf16) {
      std::memcpy(out.bytes + first, rests.data() + first, length);
    } else {
      pack_fields(triples.data() + first, length, 2, out.pairs + first / 4);
      pack_bits(triples.data() + first, length, out.bits + first / 8);
    }
  }
}

template <ElementType kType>
void unpack(const Streams<const std::byte>& in, std::size_t elements, Places& codes,
            Places& rests) {
  Places& nibbles = kType == ElementType::kFp8E4m3 ? rests : codes;
  Places& triples = kType == ElementType::kFp8E4m3 ? codes : rests;
  for (std::size_t first = 0; first < elements; first += kGroupElements) {
    const std::size_t length = group_length(first, elements);
    unpack_fields(in.nibbles + first / 2, length, 4, nibbles.data() + first);
    if constexpr (kType == ElementType::kBf16) {
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

template <ElementType kType>
int encode_chunk_of(const std::byte* values, std::size_t elements, const CodeTables& tables,
                    const Streams<std::byte>& out, std::uint8_t* count, std::byte* table,
                    std::size_t words_left) {
  Places exponents, rests, codes;
  split<kType>(values, elements, exponents, rests);
  std::size_t escapes = 0;
  for (std::size_t place = 0; place < elements; ++place) {
    const std::uint8_t code = tables.code_of[exponents[place]];
    escapes += code / CodeTables::kEscape;
    codes[place] = code & 0xFU;
  }
  const bool raw = escapes > kChunkEscapesMax;
  if (raw) codes.fill(0);
  pack<kType>(codes, rests, elements, out);
  *count = raw ? kRawChunk : static_cast<std::uint8_t>(escapes);
  const std::size_t words = table_words_of(*count, elements);
  if (words > words_left) return -1;
  if (raw) {
    table[2 * words - 1] = std::byte{0};
    std::memcpy(table, exponents.data(), elements);
    return static_cast<int>(words);
  }
  for (std::size_t place = 0; escapes > 0; ++place) {
    if (tables.code_of[exponents[place]] != CodeTables::kEscape) continue;
    const auto escape = static_cast<std::uint16_t>(exponents[place] << 8 | place);
    std::memcpy(table, &escape, sizeof(escape));
    table += sizeof(escape);
    --escapes;
  }
  return static_cast<int>(words);
}

template <ElementType kType>
bool decode_chunk_of(const Streams<const std::byte>& in, const std::uint8_t* codebook,
                     std::uint8_t count, const std::byte* table, std::size_t elements,
                     std::byte* values) {
  constexpr Fields kFields = fields_of(kType);
  Places codes, rests, exponents;
  unpack<kType>(in, elements, codes, rests);
  for (std::size_t place = 0; place < elements; ++place) exponents[place] = codebook[codes[place]];
  const bool right = count == kRawChunk ? take_raw_exponents(kFields, table, elements, exponents)
                                        : patch(kFields, count, table, elements, exponents);
  join<kType>(exponents, rests, elements, values);
  return right;
}

}  // namespace

int encode_chunk(ElementType type, const std::byte* values, std::size_t elements,
                 const CodeTables& tables, const Streams<std::byte>& out, std::uint8_t* count,
                 std::byte* table, std::size_t words_left) {
  const auto encode = type == ElementType::kBf16      ? encode_chunk_of<ElementType::kBf16>
                      : type == ElementType::kFp8E4m3 ? encode_chunk_of<ElementType::kFp8E4m3>
                                                      : encode_chunk_of<ElementType::kFp8E5m2>;
  return encode(values, elements, tables, out, count, table, words_left);
}

bool decode_chunk(ElementType type, const Streams<const std::byte>& in,
                  const std::uint8_t* codebook, std::uint8_t count, const std::byte* table,
                  std::size_t elements, std::byte* values) {
  const auto decode = type == ElementType::kBf16      ? decode_chunk_of<ElementType::kBf16>
                      : type == ElementType::kFp8E4m3 ? decode_chunk_of<ElementType::kFp8E4m3>
                                                      : decode_chunk_of<ElementType::kFp8E5m2>;
  return decode(in, codebook, count, table, elements, values);
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

const std::byte* decode_scalar(const DecodeTask& task) {
  const std::size_t chunk_bytes = kChunkElements * element_bytes(task.type);
  Streams<const std::byte> in = task.in;
  const std::byte* table = task.table;
  for (std::size_t chunk = 0; chunk < task.chunks; ++chunk) {
    const std::uint8_t count = task.counts[chunk];
    if (!decode_chunk(task.type, in, task.codebook, count, table, kChunkElements,
                      task.plane + chunk * chunk_bytes)) {
      return nullptr;
    }
    table += 2 * table_words_of(count, kChunkElements);
    advance_chunk(task.type, in);
  }
  return table;
}

}  // namespace kvlane::splitzip
