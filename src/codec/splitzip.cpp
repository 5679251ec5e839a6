// SplitZip in scalar code: the normative implementation, which every other one must equal bit for
// bit.
// SPDX-License-Identifier: Apache-2.0
#include "codec/splitzip.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <string>

#include "format/frame.h"

namespace kvlane {

static_assert(splitzip::raw_body_bytes(2 * kPlaneElementsMax) <= kPlaneBytesMax);
static_assert(sizeof(splitzip::Prefix) + splitzip::kAlignment - 1 <= kPlaneGrowthBytesMax);

namespace {

using namespace splitzip;

// bfloat16: s eeeeeeee mmmmmmm.
constexpr unsigned exponent_of(std::uint16_t value) { return value >> 7 & 0xFFU; }
constexpr std::byte sign_mantissa_of(std::uint16_t value) {
  return std::byte((value >> 8 & 0x80U) | (value & 0x7FU));
}
constexpr std::uint16_t join(std::uint16_t shifted_exponent, std::byte sign_mantissa) {
  const auto low = std::to_integer<unsigned>(sign_mantissa);
  return static_cast<std::uint16_t>((low & 0x80U) << 8 | shifted_exponent | (low & 0x7FU));
}

// Bodies have no alignment that a pointer to a wider type could rely on.
template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}
template <class T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

// A plane of 16-bit values, as it lies in bytes without alignment.
class Values {
 public:
  explicit Values(ByteView bytes) : bytes_(bytes) {}
  std::size_t size() const { return bytes_.size() / 2; }
  std::uint16_t operator[](std::size_t i) const {
    return load<std::uint16_t>(bytes_.data() + 2 * i);
  }
  Values subspan(std::size_t first, std::size_t count) const {
    return Values(bytes_.subspan(2 * first, 2 * count));
  }

 private:
  ByteView bytes_;
};

void fill_zeros(std::span<std::byte> body, std::size_t begin, std::size_t end) {
  std::fill(body.begin() + begin, body.begin() + end, std::byte{0});
}

// ------------------------------------------------------------------------------------------------
// Encoder.

// Code of each exponent; kEscape for those outside the codebook, whose code is then 0.
constexpr std::uint8_t kEscape = 0x10;
using CodeTable = std::array<std::uint8_t, 256>;

// The 16 most frequent exponents, the smaller first among equals, in ascending order.
Codebook choose_codebook(Values values) {
  // Four tables, as neighbours often have the same exponent and would wait for each other's store.
  std::array<std::array<std::uint32_t, 256>, 4> partial{};
  std::size_t i = 0;
  for (; i + 4 <= values.size(); i += 4) {
    for (std::size_t j = 0; j < 4; ++j) ++partial[j][exponent_of(values[i + j])];
  }
  for (; i < values.size(); ++i) ++partial[0][exponent_of(values[i])];

  // Greatest first: the count, then the complement of the exponent.
  std::array<std::uint64_t, 256> keys;
  for (std::size_t e = 0; e < keys.size(); ++e) {
    const std::uint64_t count =
        std::uint64_t{partial[0][e]} + partial[1][e] + partial[2][e] + partial[3][e];
    keys[e] = count << 8 | (255 - e);
  }
  std::nth_element(keys.begin(), keys.begin() + kCodebookEntries, keys.end(), std::greater<>());
  Codebook codebook;
  for (std::size_t c = 0; c < kCodebookEntries; ++c) {
    codebook.exponents[c] = static_cast<std::uint8_t>(255 - (keys[c] & 0xFFU));
  }
  std::sort(codebook.exponents.begin(), codebook.exponents.end());
  return codebook;
}

CodeTable invert(const Codebook& codebook) {
  CodeTable codes;
  codes.fill(kEscape);
  for (std::size_t c = 0; c < kCodebookEntries; ++c) {
    codes[codebook.exponents[c]] = static_cast<std::uint8_t>(c);
  }
  return codes;
}

// What the escape tables of a plane will hold.
struct Totals {
  std::size_t escapes = 0;
  std::size_t raw_exponents = 0;
};

// Writes codes and sign-mantissa bytes of one chunk; returns its number of escapes.
std::size_t encode_chunk(Values chunk, const CodeTable& code_of, std::byte* codes,
                         std::byte* sign_mantissa) {
  unsigned escapes = 0;
  std::size_t i = 0;
  for (; i + 2 <= chunk.size(); i += 2) {
    const unsigned high = code_of[exponent_of(chunk[i])];
    const unsigned low = code_of[exponent_of(chunk[i + 1])];
    escapes += high / kEscape + low / kEscape;
    codes[i / 2] = std::byte((high << 4 | (low & 0xFU)) & 0xFFU);
    sign_mantissa[i] = sign_mantissa_of(chunk[i]);
    sign_mantissa[i + 1] = sign_mantissa_of(chunk[i + 1]);
  }
  if (i < chunk.size()) {
    const unsigned high = code_of[exponent_of(chunk[i])];
    escapes += high / kEscape;
    codes[i / 2] = std::byte(high << 4 & 0xFFU);
    sign_mantissa[i] = sign_mantissa_of(chunk[i]);
  }
  return escapes;
}

// Everything before the positions, paddings and counts included.
Totals encode_dense(Values values, const CodeTable& code_of, const Sections& at,
                    std::span<std::byte> body) {
  Totals totals;
  std::byte* const codes = body.data() + at.codes;
  std::byte* const sign_mantissa = body.data() + at.sign_mantissa;
  for (std::size_t first = 0; first < values.size(); first += kChunkElements) {
    const Values chunk = values.subspan(first, std::min(kChunkElements, values.size() - first));
    std::byte* const chunk_codes = codes + first / 2;
    const std::size_t escapes = encode_chunk(chunk, code_of, chunk_codes, sign_mantissa + first);
    const bool raw = escapes > kChunkEscapesMax;
    if (raw) {
      std::memset(chunk_codes, 0, (chunk.size() + 1) / 2);
      totals.raw_exponents += chunk.size();
    } else {
      totals.escapes += escapes;
    }
    store(body.data() + at.counts + first / kChunkElements * 2,
          raw ? kRawChunk : static_cast<std::uint16_t>(escapes));
  }
  fill_zeros(body, at.codes + (values.size() + 1) / 2, at.sign_mantissa);
  fill_zeros(body, at.sign_mantissa + values.size(), at.counts);
  return totals;
}

// Positions, values and raw exponents, from the counts that encode_dense left.
void encode_tables(Values values, const CodeTable& code_of, const Sections& at,
                   std::span<std::byte> body) {
  std::byte* position = body.data() + at.positions;
  std::byte* escape = body.data() + at.values;
  std::byte* raw = body.data() + at.raw_exponents;
  for (std::size_t first = 0; first < values.size(); first += kChunkElements) {
    const Values chunk = values.subspan(first, std::min(kChunkElements, values.size() - first));
    const auto count = load<std::uint16_t>(body.data() + at.counts + first / kChunkElements * 2);
    if (count == 0) continue;
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      const unsigned exponent = exponent_of(chunk[i]);
      if (count == kRawChunk) {
        *raw++ = std::byte(exponent);
      } else if (code_of[exponent] == kEscape) {
        store(position, static_cast<std::uint16_t>(i));
        position += sizeof(std::uint16_t);
        *escape++ = std::byte(exponent);
      }
    }
  }
  fill_zeros(body, at.raw_exponents_end, at.end);
}

std::size_t encode_raw(const PlaneShape& shape, ByteView plane, std::span<std::byte> body) {
  const std::size_t end = raw_body_bytes(plane.size());
  store(body.data(), Prefix{.version = kBodyVersion,
                            .mode = static_cast<std::uint8_t>(Mode::kRaw),
                            .element_type = static_cast<std::uint8_t>(shape.type),
                            .reserved = 0,
                            .elements = static_cast<std::uint32_t>(shape.elements()),
                            .escapes = 0,
                            .raw_exponents = 0});
  if (!plane.empty()) std::memcpy(body.data() + sizeof(Prefix), plane.data(), plane.size());
  fill_zeros(body, sizeof(Prefix) + plane.size(), end);
  return end;
}

// ------------------------------------------------------------------------------------------------
// Decoder.

bool all_zero(ByteView body, std::size_t begin, std::size_t end) {
  return std::all_of(body.begin() + begin, body.begin() + end,
                     [](std::byte b) { return b == std::byte{0}; });
}

Status check_prefix(const Prefix& p, ElementType type, std::size_t elements) {
  if (p.version != kBodyVersion) {
    return unsupported("the splitzip body has version " + std::to_string(p.version) +
                       ", this reader knows version " + std::to_string(kBodyVersion));
  }
  if (p.mode > static_cast<std::uint8_t>(Mode::kCoded)) {
    return corrupt("the splitzip body has mode " + std::to_string(p.mode));
  }
  if (p.reserved != 0) return corrupt("the splitzip body uses a reserved byte");
  if (p.element_type != static_cast<std::uint8_t>(type) || type == ElementType::kF32) {
    return corrupt("the splitzip body has element type " + std::to_string(p.element_type) +
                   ", its plane " + element_name(type));
  }
  const bool coded = p.mode == static_cast<std::uint8_t>(Mode::kCoded);
  if (coded && type != ElementType::kBf16) {
    return corrupt(std::string("a splitzip body of ") + element_name(type) +
                   " values cannot be coded");
  }
  if (p.elements != elements || elements > kPlaneElementsMax) {
    return corrupt("the splitzip body has " + std::to_string(p.elements) + " values, its plane " +
                   std::to_string(elements));
  }
  const std::size_t tables_max = coded ? elements : 0;
  if (p.escapes > tables_max || p.raw_exponents > tables_max) {
    return corrupt("the splitzip body claims " + std::to_string(p.escapes) + " escapes and " +
                   std::to_string(p.raw_exponents) + " raw exponents for " +
                   std::to_string(elements) + " values");
  }
  return {};
}

Status check_length(ByteView body, std::size_t expected) {
  if (body.size() == expected) return {};
  return corrupt("the splitzip body has " + std::to_string(body.size()) +
                 " bytes, its prefix says " + std::to_string(expected));
}

Status check_padding(ByteView body, std::size_t elements, const Sections& at) {
  const std::size_t codes_end = at.codes + (elements + 1) / 2;
  const bool half_byte_set =
      elements % 2 == 1 && (body[codes_end - 1] & std::byte{0xF}) != std::byte{0};
  if (half_byte_set || !all_zero(body, codes_end, at.sign_mantissa) ||
      !all_zero(body, at.sign_mantissa + elements, at.counts) ||
      !all_zero(body, at.raw_exponents_end, at.end)) {
    return corrupt("the splitzip body has padding that is not zero");
  }
  return {};
}

// Counts of chunks against the sizes in the prefix. After this, no table is read past its end.
Status check_counts(ByteView body, const Prefix& prefix, const Sections& at) {
  std::uint64_t escapes = 0;
  std::uint64_t raw_exponents = 0;
  for (std::size_t first = 0; first < prefix.elements; first += kChunkElements) {
    const auto count = load<std::uint16_t>(body.data() + at.counts + first / kChunkElements * 2);
    if (count == kRawChunk) {
      raw_exponents += std::min(kChunkElements, prefix.elements - first);
    } else if (count <= kChunkEscapesMax) {
      escapes += count;
    } else {
      return corrupt("chunk " + std::to_string(first / kChunkElements) +
                     " of the splitzip body claims " + std::to_string(count) + " escapes");
    }
  }
  if (escapes != prefix.escapes || raw_exponents != prefix.raw_exponents) {
    return corrupt("the chunks of the splitzip body have " + std::to_string(escapes) +
                   " escapes and " + std::to_string(raw_exponents) +
                   " raw exponents, its prefix says " + std::to_string(prefix.escapes) + " and " +
                   std::to_string(prefix.raw_exponents));
  }
  return {};
}

using ShiftedCodebook = std::array<std::uint16_t, kCodebookEntries>;

Result<ShiftedCodebook> read_codebook(const std::byte* entries) {
  ShiftedCodebook shifted;
  for (std::size_t c = 0; c < shifted.size(); ++c) {
    if (c > 0 && entries[c] <= entries[c - 1]) {
      return corrupt("the codebook of the splitzip body is not ascending at entry " +
                     std::to_string(c));
    }
    shifted[c] = static_cast<std::uint16_t>(std::to_integer<unsigned>(entries[c]) << 7);
  }
  return shifted;
}

// Decodes as if there were no escapes.
void decode_dense(const ShiftedCodebook& codebook, const std::byte* codes,
                  const std::byte* sign_mantissa, std::size_t elements, std::byte* plane) {
  for (std::size_t i = 0; i < elements; ++i) {
    const auto pair = std::to_integer<unsigned>(codes[i / 2]);
    const unsigned code = i % 2 == 0 ? pair >> 4 : pair & 0xFU;
    store(plane + 2 * i, join(codebook[code], sign_mantissa[i]));
  }
}

// Puts the exponents of escapes and raw chunks in place. The positions are still unchecked.
Status decode_tables(ByteView body, const Sections& at, std::size_t elements, std::byte* plane) {
  const auto put = [&](std::size_t i, std::byte exponent) {
    store(plane + 2 * i, join(static_cast<std::uint16_t>(std::to_integer<unsigned>(exponent) << 7),
                              body[at.sign_mantissa + i]));
  };
  std::size_t escape = 0;
  std::size_t raw = at.raw_exponents;
  for (std::size_t first = 0; first < elements; first += kChunkElements) {
    const std::size_t length = std::min(kChunkElements, elements - first);
    const auto count = load<std::uint16_t>(body.data() + at.counts + first / kChunkElements * 2);
    if (count == kRawChunk) {
      for (std::size_t i = 0; i < length; ++i) put(first + i, body[raw + i]);
      raw += length;
      continue;
    }
    std::size_t above = 0;  // the least position that keeps them ascending
    for (std::size_t e = 0; e < count; ++e, ++escape) {
      const auto position = load<std::uint16_t>(body.data() + at.positions + 2 * escape);
      if (position < above || position >= length) {
        return corrupt("chunk " + std::to_string(first / kChunkElements) +
                       " of the splitzip body has an escape at position " +
                       std::to_string(position) + ", out of order or range");
      }
      put(first + position, body[at.values + escape]);
      above = position + std::size_t{1};
    }
  }
  return {};
}

Status decode_coded(ByteView body, const Prefix& prefix, std::byte* plane) {
  const Sections at = sections(prefix.elements, prefix.escapes, prefix.raw_exponents);
  KVLANE_TRY(check_length(body, at.end));
  KVLANE_TRY(check_padding(body, prefix.elements, at));
  KVLANE_TRY(check_counts(body, prefix, at));
  KVLANE_ASSIGN(const ShiftedCodebook codebook, read_codebook(body.data() + at.codebook));
  decode_dense(codebook, body.data() + at.codes, body.data() + at.sign_mantissa, prefix.elements,
               plane);
  return decode_tables(body, at, prefix.elements, plane);
}

Status decode_raw(ByteView body, std::span<std::byte> plane) {
  KVLANE_TRY(check_length(body, raw_body_bytes(plane.size())));
  if (!all_zero(body, sizeof(Prefix) + plane.size(), body.size())) {
    return corrupt("the splitzip body has padding that is not zero");
  }
  if (!plane.empty()) std::memcpy(plane.data(), body.data() + sizeof(Prefix), plane.size());
  return {};
}

}  // namespace

std::size_t SplitZipCodec::encode(const PlaneShape& shape, ByteView plane, const Codebook* book,
                                  std::span<std::byte> destination) const {
  assert(shape.elements() <= kPlaneElementsMax && shape.type != ElementType::kF32);
  assert(plane.size() == shape.bytes() && destination.size() >= bound(shape));
  const std::size_t elements = shape.elements();
  const std::size_t raw_end = raw_body_bytes(plane.size());
  const Sections dense = sections(elements, 0, 0);
  if (shape.type != ElementType::kBf16 || dense.end >= raw_end) {
    return encode_raw(shape, plane, destination);
  }
  // The dense part is written before the number of escapes is known; it fits, as it is shorter than
  // the raw body.
  const Values values(plane);
  const Codebook codebook = book != nullptr ? *book : choose_codebook(values);
  const CodeTable code_of = invert(codebook);
  const Totals totals = encode_dense(values, code_of, dense, destination);
  const Sections at = sections(elements, totals.escapes, totals.raw_exponents);
  if (at.end >= raw_end) return encode_raw(shape, plane, destination);
  store(destination.data() + at.codebook, codebook.exponents);
  encode_tables(values, code_of, at, destination);
  store(destination.data(),
        Prefix{.version = kBodyVersion,
               .mode = static_cast<std::uint8_t>(Mode::kCoded),
               .element_type = static_cast<std::uint8_t>(shape.type),
               .reserved = 0,
               .elements = static_cast<std::uint32_t>(elements),
               .escapes = static_cast<std::uint32_t>(totals.escapes),
               .raw_exponents = static_cast<std::uint32_t>(totals.raw_exponents)});
  return at.end;
}

Status SplitZipCodec::decode(const PlaneShape& shape, ByteView coded,
                             std::span<std::byte> plane) const {
  assert(plane.size() == shape.bytes());
  if (coded.size() < sizeof(Prefix)) {
    return corrupt("a splitzip body of " + std::to_string(coded.size()) +
                   " bytes has no room for its prefix");
  }
  const auto prefix = load<Prefix>(coded.data());
  KVLANE_TRY(check_prefix(prefix, shape.type, shape.elements()));
  if (prefix.mode == static_cast<std::uint8_t>(Mode::kRaw)) return decode_raw(coded, plane);
  return decode_coded(coded, prefix, plane.data());
}

}  // namespace kvlane
