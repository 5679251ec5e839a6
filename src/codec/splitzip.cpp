// SplitZip bodies: what is checked and decided about a whole plane. Kernels do the loops.
// SPDX-License-Identifier: Apache-2.0
#include "codec/splitzip.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <string>

#include "codec/exponents.h"
#include "codec/splitzip_kernels.h"
#include "format/frame.h"

namespace kvlane {

static_assert(splitzip::raw_body_bytes(2 * kPlaneElementsMax) <= kPlaneBytesMax);
static_assert(sizeof(splitzip::Prefix) + splitzip::kRawAlignment - 1 <= kPlaneGrowthBytesMax);

namespace splitzip {
namespace {

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

template <class Byte>
Streams<Byte> streams_at(const Sections& at, Byte* body) {
  return {body + at.nibbles, body + at.bytes, body + at.pairs, body + at.bits};
}

// The streams of the chunk or group that begins with value `first`, a multiple of kGroupElements.
template <class Byte>
Streams<Byte> streams_from(ElementType type, const Streams<Byte>& all, std::size_t first) {
  if (type == ElementType::kBf16)
    return {all.nibbles + first / 2, all.bytes + first, nullptr, nullptr};
  return {all.nibbles + first / 2, nullptr, all.pairs + first / 4, all.bits + first / 8};
}

bool is_aligned(const std::byte* at) {
  return reinterpret_cast<std::uintptr_t>(at) % kAlignment == 0;
}

// ------------------------------------------------------------------------------------------------
// Chunks go over the ends of heads, kernels do not.

// Some values in the order of the plane: whole chunks of one head; or one chunk that is the last of
// the plane or has parts of several heads.
struct Piece {
  int head;             // of the first value
  std::size_t in_head;  // its index there
  std::size_t elements;
  bool across;  // heads
};

bool is_dense(const PlaneShape& shape, std::size_t head_stride) {
  return head_stride == shape.head_bytes();
}

// The longest one from value `first` on, where a chunk begins.
Piece piece_at(const PlaneShape& shape, bool dense, std::size_t first) {
  const std::size_t length = dense ? shape.elements() : shape.head_elements();
  Piece piece{static_cast<int>(first / length), first % length, 0, false};
  const std::size_t left = length - piece.in_head;
  piece.elements = left / kChunkElements * kChunkElements;
  if (piece.elements > 0) return piece;
  piece.elements = std::min(kChunkElements, shape.elements() - first);
  piece.across = piece.elements > left;
  return piece;
}

// A piece across heads, without gaps.
using ChunkValues = std::array<std::byte, kChunkElements * sizeof(std::uint16_t)>;

// Calls visit(head, byte in it, byte in a ChunkValues, bytes) for each head that has a part of it.
template <class Visit>
void for_each_part(const PlaneShape& shape, const Piece& piece, const Visit& visit) {
  const std::size_t width = element_bytes(shape.type);
  std::size_t in_head = piece.in_head;
  int head = piece.head;
  for (std::size_t done = 0; done < piece.elements; ++head, in_head = 0) {
    const std::size_t part = std::min(piece.elements - done, shape.head_elements() - in_head);
    visit(head, width * in_head, width * done, width * part);
    done += part;
  }
}

// ------------------------------------------------------------------------------------------------
// Encoder.

// The best one for this plane.
Codebook choose_codebook(const PlaneShape& shape, const PlaneView& plane) {
  ExponentCounts counts{};
  for (int head = 0; head < shape.kv_heads; ++head) {
    count_exponents(shape.type, {plane.head(head), shape.head_bytes()}, counts);
  }
  return codebook_of(shape.type, counts);
}

CodeTables make_tables(ElementType type, const Codebook& codebook) {
  const Fields fields = fields_of(type);
  const auto entries = static_cast<std::size_t>(fields.codebook_entries);
  CodeTables tables{};
  std::fill(std::begin(tables.code_of), std::end(tables.code_of), CodeTables::kEscape);
  for (std::size_t code = 0; code < entries; ++code) {
    const std::uint8_t exponent = codebook.exponents[code];
    assert(exponent >> fields.exponent_bits == 0);
    assert(code == 0 || exponent > codebook.exponents[code - 1]);
    tables.code_of[exponent] = static_cast<std::uint8_t>(code);
    tables.exponent[code] = exponent;
  }
  tables.window = std::size_t{tables.exponent[entries - 1]} - tables.exponent[0] == entries - 1;
  return tables;
}

std::size_t encode_raw(const PlaneShape& shape, const PlaneView& plane, std::span<std::byte> body) {
  const std::size_t end = raw_body_bytes(shape.bytes());
  store(body.data(), Prefix{.version = kBodyVersion,
                            .mode = static_cast<std::uint8_t>(Mode::kRaw),
                            .element_type = static_cast<std::uint8_t>(shape.type),
                            .reserved_3 = 0,
                            .elements = static_cast<std::uint32_t>(shape.elements()),
                            .table_words = 0,
                            .reserved_12 = 0});
  copy_plane(shape, plane, body.data() + sizeof(Prefix));
  const std::size_t values_end = sizeof(Prefix) + shape.bytes();
  std::memset(body.data() + values_end, 0, end - values_end);
  return end;
}

// What lies between sections: zeros up to the escape table.
void write_padding(const Sections& at, std::byte* body) {
  const auto zero = [&](std::size_t begin, std::size_t end) {
    std::memset(body + begin, 0, end - begin);
  };
  zero(at.codebook_end, at.nibbles);
  zero(at.nibbles_end, at.bytes);
  zero(at.bytes_end, at.pairs);
  zero(at.pairs_end, at.bits);
  zero(at.bits_end, at.counts);
  zero(at.counts_end, at.table);
}

// Dense sections, counts and escape table; returns the words of the table, or -1 when the body
// would not be shorter than `body_bytes_max`.
std::int64_t encode_chunks(const Kernels& kernels, const PlaneShape& shape, const PlaneView& plane,
                           const CodeTables& tables, const Sections& at, std::size_t body_bytes_max,
                           std::span<std::byte> body) {
  const std::size_t width = element_bytes(shape.type);
  const std::size_t end_max = (body_bytes_max - 1) / kAlignment * kAlignment;
  const std::size_t words_max = (end_max - at.table) / 2;
  const Streams<std::byte> out = streams_at(at, body.data());
  EncodeTask task{.type = shape.type,
                  .plane = nullptr,
                  .chunks = 0,
                  .tables = &tables,
                  .out = out,
                  .counts = reinterpret_cast<std::uint8_t*>(body.data() + at.counts),
                  .table = body.data() + at.table,
                  .table_words_max = words_max,
                  .streaming = shape.bytes() >= kStreamingBytes && is_aligned(body.data())};
  std::size_t first = 0;
  const auto advance = [&](const EncodeProgress& done) {
    first += done.chunks * kChunkElements;
    task.out = streams_from(shape.type, out, first);
    task.counts += done.chunks;
    task.table += 2 * done.table_words;
    task.table_words_max -= done.table_words;
  };
  ChunkValues across;
  while (first < shape.elements()) {
    const Piece piece = piece_at(shape, is_dense(shape, plane.head_stride), first);
    const std::byte* values = plane.head(piece.head) + width * piece.in_head;
    if (piece.across) {
      values = across.data();
      for_each_part(shape, piece, [&](int head, std::size_t from, std::size_t to, std::size_t n) {
        std::memcpy(across.data() + to, plane.head(head) + from, n);
      });
    }
    task.plane = values;
    task.chunks = piece.elements / kChunkElements;
    const EncodeProgress done = kernels.encode(task);
    advance(done);
    const std::size_t encoded = done.chunks * kChunkElements;
    if (encoded == piece.elements) continue;
    // A short chunk, or one for which the table may not suffice.
    const int words = encode_chunk(shape.type, values + width * encoded,
                                   std::min(kChunkElements, piece.elements - encoded), tables,
                                   task.out, task.counts, task.table, task.table_words_max);
    if (words < 0) return -1;
    advance({.chunks = 1, .table_words = static_cast<std::size_t>(words)});
  }
  return static_cast<std::int64_t>(words_max - task.table_words_max);
}

// ------------------------------------------------------------------------------------------------
// Decoder.

Status check_prefix(const Prefix& p, const PlaneShape& shape) {
  if (p.version != kBodyVersion) {
    return unsupported("the splitzip body has version " + std::to_string(p.version) +
                       ", this reader knows version " + std::to_string(kBodyVersion));
  }
  if (p.mode > static_cast<std::uint8_t>(Mode::kCoded)) {
    return corrupt("the splitzip body has mode " + std::to_string(p.mode));
  }
  if (p.reserved_3 != 0 || p.reserved_12 != 0) {
    return corrupt("the splitzip body uses a reserved byte");
  }
  if (p.element_type != static_cast<std::uint8_t>(shape.type)) {
    return corrupt("the splitzip body has element type " + std::to_string(p.element_type) +
                   ", its plane " + element_name(shape.type));
  }
  const bool coded = p.mode == static_cast<std::uint8_t>(Mode::kCoded);
  if (coded && !can_be_coded(shape.type)) {
    return corrupt(std::string("a splitzip body of ") + element_name(shape.type) +
                   " values cannot be coded");
  }
  const std::size_t elements = shape.elements();
  if (p.elements != elements || elements > kPlaneElementsMax) {
    return corrupt("the splitzip body has " + std::to_string(p.elements) + " values, its plane " +
                   std::to_string(elements));
  }
  if (p.table_words > (coded ? elements : 0)) {
    return corrupt("the splitzip body claims " + std::to_string(p.table_words) +
                   " words of escapes for " + std::to_string(elements) + " values");
  }
  return {};
}

Status check_length(ByteView body, std::size_t expected) {
  if (body.size() == expected) return {};
  return corrupt("the splitzip body has " + std::to_string(body.size()) +
                 " bytes, its prefix says " + std::to_string(expected));
}

Status check_padding(ElementType type, ByteView body, std::size_t elements, const Sections& at) {
  const auto zero = [&](std::size_t begin, std::size_t end) {
    return std::all_of(body.begin() + begin, body.begin() + end,
                       [](std::byte b) { return b == std::byte{0}; });
  };
  const std::size_t rest = elements % kGroupElements;
  const bool fields_zero =
      rest == 0 ||
      unused_fields_zero(type, streams_from(type, streams_at(at, body.data()), elements - rest),
                         rest);
  if (!fields_zero || !zero(at.codebook_end, at.nibbles) || !zero(at.nibbles_end, at.bytes) ||
      !zero(at.bytes_end, at.pairs) || !zero(at.pairs_end, at.bits) ||
      !zero(at.bits_end, at.counts) || !zero(at.counts_end, at.table) ||
      !zero(at.table_end, at.end)) {
    return corrupt("the splitzip body has padding that is not zero");
  }
  return {};
}

Status check_codebook(ElementType type, const std::byte* entries) {
  const Fields fields = fields_of(type);
  for (int code = 0; code < fields.codebook_entries; ++code) {
    if (code > 0 && entries[code] <= entries[code - 1]) {
      return corrupt("the codebook of the splitzip body is not ascending at entry " +
                     std::to_string(code));
    }
  }
  const auto last = std::to_integer<unsigned>(entries[fields.codebook_entries - 1]);
  if (last >> fields.exponent_bits == 0) return {};
  return corrupt("the codebook of the splitzip body has the exponent " + std::to_string(last));
}

std::size_t chunk_elements(std::size_t chunk, std::size_t elements) {
  return std::min(kChunkElements, elements - chunk * kChunkElements);
}

// Counts of chunks against the size in the prefix. After this, no table is read past its end.
Status check_counts(const std::uint8_t* counts, std::size_t elements, std::size_t table_words) {
  std::size_t words = 0;
  for (std::size_t chunk = 0; chunk < chunk_count(elements); ++chunk) {
    if (counts[chunk] > kChunkEscapesMax && counts[chunk] != kRawChunk) {
      return corrupt("chunk " + std::to_string(chunk) + " of the splitzip body claims " +
                     std::to_string(counts[chunk]) + " escapes");
    }
    words += table_words_of(counts[chunk], chunk_elements(chunk, elements));
  }
  if (words == table_words) return {};
  return corrupt("the chunks of the splitzip body have " + std::to_string(words) +
                 " words of escapes, its prefix says " + std::to_string(table_words));
}

// Values from sections that have been checked; false where kernels find an escape that is not
// right.
bool decode_chunks(const Kernels& kernels, const PlaneShape& shape, ByteView body,
                   const Sections& at, const PlaneSpan& plane) {
  const std::size_t width = element_bytes(shape.type);
  const bool dense = is_dense(shape, plane.head_stride);
  const Streams<const std::byte> in = streams_at(at, body.data());
  DecodeTask task{.type = shape.type,
                  .in = in,
                  .codebook = reinterpret_cast<const std::uint8_t*>(body.data() + at.codebook),
                  .counts = reinterpret_cast<const std::uint8_t*>(body.data() + at.counts),
                  .table = body.data() + at.table,
                  .chunks = 0,
                  .plane = nullptr,
                  .streaming = false};
  ChunkValues across;
  for (std::size_t first = 0; first < shape.elements();) {
    const Piece piece = piece_at(shape, dense, first);
    task.in = streams_from(shape.type, in, first);
    task.chunks = piece.elements / kChunkElements;
    task.plane = piece.across ? across.data() : plane.head(piece.head) + width * piece.in_head;
    task.streaming = plane.past_caches && !piece.across && is_aligned(task.plane);
    if (task.chunks > 0) {
      task.table = kernels.decode(task);
      if (task.table == nullptr) return false;
    } else if (!decode_chunk(shape.type, task.in, task.codebook, task.counts[0], task.table,
                             piece.elements, task.plane)) {
      return false;
    }
    if (piece.across) {
      for_each_part(shape, piece, [&](int head, std::size_t to, std::size_t from, std::size_t n) {
        std::memcpy(plane.head(head) + to, across.data() + from, n);
      });
    }
    task.counts += task.chunks;
    first += piece.elements;
  }
  return true;
}

Status decode_coded(const Kernels& kernels, const PlaneShape& shape, ByteView body,
                    std::size_t table_words, const PlaneSpan& plane) {
  const std::size_t elements = shape.elements();
  const Sections at = sections(shape.type, elements, table_words);
  const auto* const counts = reinterpret_cast<const std::uint8_t*>(body.data() + at.counts);
  KVLANE_TRY(check_length(body, at.end));
  KVLANE_TRY(check_padding(shape.type, body, elements, at));
  KVLANE_TRY(check_codebook(shape.type, body.data() + at.codebook));
  KVLANE_TRY(check_counts(counts, elements, table_words));
  if (decode_chunks(kernels, shape, body, at, plane)) return {};
  return corrupt("an escape of the splitzip body is out of order or range");
}

Status decode_raw(const PlaneShape& shape, ByteView body, const PlaneSpan& plane) {
  KVLANE_TRY(check_length(body, raw_body_bytes(shape.bytes())));
  const ByteView padding = body.subspan(sizeof(Prefix) + shape.bytes());
  if (std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte{0}; })) {
    return corrupt("the splitzip body has padding that is not zero");
  }
  copy_plane(shape, body.data() + sizeof(Prefix), plane);
  return {};
}

}  // namespace

const Kernels& kernels_of(Isa isa) {
  static constexpr Kernels kScalar{encode_scalar, decode_scalar, "scalar loop"};
  if constexpr (kX86) {
    static constexpr Kernels kAvx2{encode_avx2, decode_avx2, "AVX2"};
    static constexpr Kernels kAvx512Bf16{encode_avx512_bf16, decode_avx512_bf16,
                                         "AVX-512 with VBMI"};
    if (isa == Isa::kAvx512Bf16) return kAvx512Bf16;
    if (isa >= Isa::kAvx2) return kAvx2;
  }
  return kScalar;
}

}  // namespace splitzip

std::optional<WrittenCodebook> written_codebook(const PlaneShape& shape, ByteView body) {
  using namespace splitzip;
  WrittenCodebook written;
  const std::size_t exponents = written.book.exponents.size();
  if (body.size() < sizeof(Prefix) + exponents) return std::nullopt;
  const auto prefix = load<Prefix>(body.data());
  if (prefix.mode != static_cast<std::uint8_t>(Mode::kCoded)) return std::nullopt;
  // The table has one word for each escape; in chunks of many, one for two values.
  written.escapes = static_cast<double>(prefix.table_words) / static_cast<double>(shape.elements());
  std::memcpy(written.book.exponents.data(), body.data() + sizeof(Prefix), exponents);
  return written;
}

std::string_view splitzip_description(Isa isa) { return splitzip::kernels_of(isa).description; }

SplitZipCodec::SplitZipCodec(Isa isa) : kernels_(splitzip::kernels_of(isa)) {}

std::size_t SplitZipCodec::encode(const PlaneShape& shape, const PlaneView& plane,
                                  const Codebook* book, std::span<std::byte> destination) const {
  using namespace splitzip;
  assert(shape.elements() <= kPlaneElementsMax && shape.type != ElementType::kF32);
  assert(destination.size() >= bound(shape));
  const std::size_t raw_end = raw_body_bytes(shape.bytes());
  if (!can_be_coded(shape.type)) return encode_raw(shape, plane, destination);
  // The escape table is written before its length is known; it begins behind parts of known length.
  const Sections at = sections(shape.type, shape.elements(), 0);
  if (at.end >= raw_end) return encode_raw(shape, plane, destination);
  const Codebook codebook = book != nullptr ? *book : choose_codebook(shape, plane);
  const CodeTables tables = make_tables(shape.type, codebook);
  const std::int64_t words =
      encode_chunks(kernels_, shape, plane, tables, at, raw_end, destination);
  if (words < 0) return encode_raw(shape, plane, destination);

  write_padding(at, destination.data());
  std::memcpy(destination.data() + at.codebook, tables.exponent, sizeof(tables.exponent));
  store(destination.data(), Prefix{.version = kBodyVersion,
                                   .mode = static_cast<std::uint8_t>(Mode::kCoded),
                                   .element_type = static_cast<std::uint8_t>(shape.type),
                                   .reserved_3 = 0,
                                   .elements = static_cast<std::uint32_t>(shape.elements()),
                                   .table_words = static_cast<std::uint32_t>(words),
                                   .reserved_12 = 0});
  const Sections whole = sections(shape.type, shape.elements(), static_cast<std::size_t>(words));
  std::memset(destination.data() + whole.table_end, 0, whole.end - whole.table_end);
  return whole.end;
}

Status SplitZipCodec::decode(const PlaneShape& shape, ByteView coded,
                             const PlaneSpan& plane) const {
  using namespace splitzip;
  if (coded.size() < sizeof(Prefix)) {
    return corrupt("a splitzip body of " + std::to_string(coded.size()) +
                   " bytes has no room for its prefix");
  }
  const auto prefix = load<Prefix>(coded.data());
  KVLANE_TRY(check_prefix(prefix, shape));
  if (prefix.mode == static_cast<std::uint8_t>(Mode::kRaw)) return decode_raw(shape, coded, plane);
  return decode_coded(kernels_, shape, coded, prefix.table_words, plane);
}

}  // namespace kvlane
