// What tests and fuzz targets of `splitzip` share: planes, codebooks, bodies of foreign encoders,
// and buffers of exactly the promised sizes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <vector>

#include "codec/codec.h"
#include "codec/splitzip.h"
#include "codec/splitzip_kernels.h"

namespace kvlane::splitzip_fixture {

using namespace splitzip;

// Those that have a coded form.
inline constexpr ElementType kCoded[] = {ElementType::kBf16, ElementType::kFp8E4m3,
                                         ElementType::kFp8E5m2};

// 32 random bits at a time; std::mt19937 itself returns unsigned long.
struct Random {
  std::mt19937 engine;
  explicit Random(unsigned seed) : engine(seed) {}
  unsigned operator()() { return static_cast<unsigned>(engine()); }
};

inline PlaneShape shape_of(ElementType type, std::size_t elements) {
  return {type, 1, 1, static_cast<int>(elements)};
}

struct Plane {
  PlaneShape shape;
  Bytes bytes;

  void set(std::size_t i, unsigned value) {
    std::memcpy(bytes.data() + i * element_bytes(shape.type), &value, element_bytes(shape.type));
  }
  unsigned at(std::size_t i) const {
    unsigned value = 0;
    std::memcpy(&value, bytes.data() + i * element_bytes(shape.type), element_bytes(shape.type));
    return value;
  }
};

inline Plane empty_plane(ElementType type, std::size_t elements) {
  const PlaneShape shape = shape_of(type, elements);
  return {shape, Bytes(shape.bytes())};
}

// A value with this exponent; sign and mantissa are random.
inline unsigned with_exponent(Random& rng, ElementType type, unsigned exponent) {
  const Fields fields = fields_of(type);
  const unsigned width = static_cast<unsigned>(fields.exponent_bits + fields.rest_bits);
  const unsigned mantissa_bits = static_cast<unsigned>(fields.rest_bits) - 1;
  const unsigned other = rng() & ((1U << width) - 1);
  const unsigned exponent_mask = ((1U << fields.exponent_bits) - 1) << mantissa_bits;
  return (other & ~exponent_mask) | exponent << mantissa_bits;
}

// Exponents of one window as wide as the codebook, and of others with the given probability. With a
// `gap`, half of the window lies so much lower, where the type has room for that.
inline Plane kv_plane(ElementType type, std::size_t elements, double escapes, unsigned seed = 1,
                      unsigned gap = 0) {
  const unsigned window = static_cast<unsigned>(fields_of(type).codebook_entries);
  const unsigned low = type == ElementType::kBf16 ? 112 : type == ElementType::kFp8E5m2 ? 10 : 5;
  if (type != ElementType::kBf16) gap = std::min(gap, 2U);
  Random rng(seed);
  std::bernoulli_distribution escape(escapes);
  Plane plane = empty_plane(type, elements);
  for (std::size_t i = 0; i < elements; ++i) {
    unsigned exponent = low + rng() % window;
    if (exponent < low + window / 2) exponent -= gap;
    if (escape(rng.engine)) exponent = rng() % (low - gap);
    plane.set(i, with_exponent(rng, type, exponent));
  }
  return plane;
}

// 16 exponents (E4M3: 8): consecutive ones, or any.
inline Codebook random_codebook(ElementType type, Random& rng, bool window) {
  const Fields fields = fields_of(type);
  std::vector<unsigned> exponents(std::size_t{1} << fields.exponent_bits);
  std::iota(exponents.begin(), exponents.end(), 0U);
  const auto entries = static_cast<std::size_t>(fields.codebook_entries);
  std::size_t first = 0;
  if (window) {
    first = type == ElementType::kBf16 ? 110 + rng() % 4 : rng() % (exponents.size() - entries + 1);
  } else {
    std::shuffle(exponents.begin(), exponents.end(), rng.engine);
    std::sort(exponents.begin(), exponents.begin() + entries);
  }
  Codebook book;
  for (std::size_t code = 0; code < entries; ++code) {
    book.exponents[code] = static_cast<std::uint8_t>(exponents[first + code]);
  }
  return book;
}

inline Prefix prefix_of(const Bytes& body) {
  Prefix prefix{};
  std::memcpy(&prefix, body.data(), sizeof(prefix));
  return prefix;
}

inline bool is_coded(const Bytes& body) { return prefix_of(body).mode == 1; }

// Encodes from a heap block of the plane's size into one of exactly bound() bytes, full of garbage.
inline Bytes encode_exactly(const Codec& codec, const Plane& plane, const Codebook* book) {
  const std::size_t bound = codec.bound(plane.shape);
  const auto source = std::make_unique<std::byte[]>(plane.bytes.size());
  std::copy(plane.bytes.begin(), plane.bytes.end(), source.get());
  const auto block = std::make_unique<std::byte[]>(bound);
  std::fill_n(block.get(), bound, std::byte{0xA5});
  const std::size_t bytes = codec.encode(plane.shape, ByteView(source.get(), plane.bytes.size()),
                                         book, {block.get(), bound});
  return {block.get(), block.get() + std::min(bytes, bound)};
}

// Decodes from and to heap blocks of the exact sizes, for AddressSanitizer.
inline Status decode_exactly(const Codec& codec, ByteView body, const PlaneShape& shape,
                             Bytes& plane) {
  const auto copy = std::make_unique<std::byte[]>(body.size());
  std::copy(body.begin(), body.end(), copy.get());
  const auto values = std::make_unique<std::byte[]>(shape.bytes());
  const Status status =
      codec.decode(shape, {copy.get(), body.size()}, std::span(values.get(), shape.bytes()));
  plane.assign(values.get(), values.get() + shape.bytes());
  return status;
}

// Zeros that begin `shift` behind a multiple of 64, and end where their heap block does.
class AlignedBytes {
 public:
  AlignedBytes(std::size_t bytes, std::size_t shift)
      : block_(static_cast<std::byte*>(::operator new(shift + bytes, kAlign))),
        bytes_(block_.get() + shift, bytes) {
    std::fill(bytes_.begin(), bytes_.end(), std::byte{0});
  }

  std::span<std::byte> span() const { return bytes_; }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Free {
    void operator()(std::byte* block) const { ::operator delete(block, kAlign); }
  };
  std::unique_ptr<std::byte[], Free> block_;
  std::span<std::byte> bytes_;
};

// ------------------------------------------------------------------------------------------------
// A generator of valid bodies that our encoder never makes: written from spec/splitzip.md, field by
// field.

struct ForeignBody {
  Plane plane;
  Bytes body;
};

namespace foreign {

// One group of fields, packed: `width` bits each, those of one byte `step` apart.
inline void pack(const std::vector<unsigned>& fields, unsigned width, Bytes& out) {
  for (std::size_t first = 0; first < fields.size(); first += kGroupElements) {
    const std::size_t length = std::min(kGroupElements, fields.size() - first);
    const std::size_t step = (length * width + 7) / 8;
    Bytes packed(step);
    for (std::size_t p = 0; p < length; ++p) {
      packed[p % step] |= std::byte(fields[first + p] << (p / step * width));
    }
    out.insert(out.end(), packed.begin(), packed.end());
  }
}

inline void pack_bits(const std::vector<unsigned>& bits, Bytes& out) {
  for (std::size_t first = 0; first < bits.size(); first += kGroupElements) {
    const std::size_t length = std::min(kGroupElements, bits.size() - first);
    Bytes packed((length + 7) / 8);
    for (std::size_t p = 0; p < length; ++p) packed[p / 8] |= std::byte(bits[first + p] << p % 8);
    out.insert(out.end(), packed.begin(), packed.end());
  }
}

inline std::size_t value_at(ElementType type, std::size_t place, std::size_t elements) {
  const std::size_t group = place / 128 * 128;
  if (type != ElementType::kBf16 || group + 128 > elements) return place;
  const std::size_t a = place % 128 / 64, k = place % 64 / 2, h = place % 2;
  return group + 64 * a + 32 * h + k;
}

inline std::vector<unsigned> masked(std::vector<unsigned> fields, unsigned shift, unsigned mask) {
  for (unsigned& field : fields) field = field >> shift & mask;
  return fields;
}

inline void pad(Bytes& body, std::size_t alignment) {
  body.resize((body.size() + alignment - 1) / alignment * alignment);
}

}  // namespace foreign

inline ForeignBody foreign_body(ElementType type, unsigned seed) {
  Random rng(seed);
  const std::size_t n = rng() % 3000;
  const Fields bits = fields_of(type);
  const auto entries = static_cast<unsigned>(bits.codebook_entries);
  const unsigned window = 1 + rng() % (1U << bits.exponent_bits);
  const Codebook book = random_codebook(type, rng, seed % 2 == 0);
  ForeignBody made{empty_plane(type, n), {}};
  std::vector<unsigned> codes, rests;
  Bytes counts, table;
  for (std::size_t first = 0; first < n; first += kChunkElements) {
    const std::size_t length = std::min(kChunkElements, n - first);
    const bool raw = rng() % 4 == 0;
    const unsigned escape_every = 1 + rng() % 64;
    unsigned escapes = 0;
    for (std::size_t p = 0; p < length; ++p) {
      // As many escapes as a chunk may have, with exponents in and out of the codebook, and codes
      // that mean nothing under escapes and in raw chunks.
      const bool escape = !raw && escapes < kChunkEscapesMax && rng() % escape_every == 0;
      codes.push_back(rng() % entries);
      const unsigned exponent = raw || escape ? rng() % window : book.exponents[codes.back()];
      const unsigned value = with_exponent(rng, type, exponent);
      const unsigned width = static_cast<unsigned>(bits.exponent_bits + bits.rest_bits);
      rests.push_back((value << 1 | value >> (width - 1)) & ((1U << bits.rest_bits) - 1));
      made.plane.set(foreign::value_at(type, first + p, n), value);
      if (escape) table.push_back(std::byte(p));
      if (escape || raw) table.push_back(std::byte(exponent));
      escapes += escape ? 1 : 0;
    }
    if (raw) foreign::pad(table, 2);
    counts.push_back(raw ? std::byte{255} : std::byte(escapes));
  }
  const Prefix prefix{1,
                      1,
                      static_cast<std::uint8_t>(type),
                      0,
                      static_cast<std::uint32_t>(n),
                      static_cast<std::uint32_t>(table.size() / 2),
                      0};
  Bytes& body = made.body;
  const auto append = [&body](const void* from, std::size_t bytes) {
    const auto* const begin = static_cast<const std::byte*>(from);
    body.insert(body.end(), begin, begin + bytes);
  };
  append(&prefix, sizeof(prefix));
  append(book.exponents.data(), entries);
  foreign::pad(body, 64);
  const bool e4m3 = type == ElementType::kFp8E4m3;
  foreign::pack(e4m3 ? rests : codes, 4, body);
  foreign::pad(body, 64);
  if (type == ElementType::kBf16) {
    for (const unsigned rest : rests) body.push_back(std::byte(rest));
  } else {
    foreign::pack(foreign::masked(e4m3 ? codes : rests, 0, 3), 2, body);
    foreign::pad(body, 64);
    foreign::pack_bits(foreign::masked(e4m3 ? codes : rests, 2, 1), body);
  }
  foreign::pad(body, 64);
  append(counts.data(), counts.size());
  foreign::pad(body, 2);
  append(table.data(), table.size());
  foreign::pad(body, 64);
  return made;
}

}  // namespace kvlane::splitzip_fixture
