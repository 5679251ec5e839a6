// SplitZip bodies: round trips at all edges, sizes, every damage, and bodies no encoder of ours
// makes.
// SPDX-License-Identifier: Apache-2.0
#include "codec/splitzip.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "format/frame.h"

namespace kvlane {
namespace {

using namespace splitzip;
using Plane = std::vector<std::uint16_t>;

const SplitZipCodec kCodec;

PlaneShape shape_of(std::size_t elements, ElementType type = ElementType::kBf16) {
  return {type, 1, 1, static_cast<int>(elements)};
}

// Encodes into a heap block of exactly bound() bytes, full of garbage before.
Bytes encode(const Plane& plane, ElementType type = ElementType::kBf16) {
  const PlaneShape shape = shape_of(plane.size(), type);
  const std::size_t bound = kCodec.bound(shape);
  const auto block = std::make_unique<std::byte[]>(bound);
  std::memset(block.get(), 0xA5, bound);
  const std::size_t bytes =
      kCodec.encode(shape, std::as_bytes(std::span(plane)), nullptr, {block.get(), bound});
  EXPECT_LE(bytes, bound);
  return {block.get(), block.get() + bytes};
}

// Decodes from and to heap blocks of the exact sizes, for AddressSanitizer.
Status decode(ByteView body, std::size_t elements, Plane& plane,
              ElementType type = ElementType::kBf16) {
  const auto copy = std::make_unique<std::byte[]>(body.size());
  std::copy(body.begin(), body.end(), copy.get());
  const auto values = std::make_unique<std::uint16_t[]>(elements);
  const Status status = kCodec.decode(shape_of(elements, type), {copy.get(), body.size()},
                                      std::as_writable_bytes(std::span(values.get(), elements)));
  plane.assign(values.get(), values.get() + elements);
  return status;
}

Prefix prefix_of(const Bytes& body) {
  Prefix prefix{};
  std::memcpy(&prefix, body.data(), sizeof(prefix));
  return prefix;
}

bool is_coded(const Bytes& body) { return prefix_of(body).mode == 1; }

void expect_round_trip(const Plane& plane, ElementType type = ElementType::kBf16) {
  const Bytes body = encode(plane, type);
  EXPECT_EQ(body.size() % kAlignment, 0U);
  Plane decoded;
  const Status status = decode(body, plane.size(), decoded, type);
  ASSERT_TRUE(status.ok()) << plane.size() << " values: " << status.message();
  EXPECT_EQ(decoded, plane);
  EXPECT_EQ(encode(plane, type), body) << "the same values must give the same bytes";
}

// 32 random bits at a time; std::mt19937 itself returns unsigned long.
struct Random {
  std::mt19937 engine;
  explicit Random(unsigned seed) : engine(seed) {}
  unsigned operator()() { return static_cast<unsigned>(engine()); }
};

std::uint16_t with_exponent(Random& rng, unsigned exponent) {
  const unsigned bits = rng();
  return static_cast<std::uint16_t>((bits & 0x807FU) | exponent << 7);
}

// Exponents 112 ... 127, and an escape (exponent 10 ... 109) with the given probability.
Plane kv_plane(std::size_t elements, double escapes, unsigned seed = 1) {
  Random rng(seed);
  std::bernoulli_distribution escape(escapes);
  Plane plane(elements);
  for (std::uint16_t& value : plane) {
    value = with_exponent(rng, escape(rng.engine) ? 10 + rng() % 100 : 112 + rng() % 16);
  }
  return plane;
}

TEST(SplitZip, RoundTripOfAllPatternsInEveryOrderOfMagnitude) {
  Plane all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  expect_round_trip(all);  // 256 equally frequent exponents: raw
  EXPECT_FALSE(is_coded(encode(all)));
  // Each pattern once among enough values of one exponent to have the plane coded.
  for (std::size_t first = 0; first < all.size(); first += 200) {
    Plane plane(1024, 0x3F80);
    std::copy_n(all.begin() + first, std::min<std::size_t>(200, all.size() - first), plane.begin());
    EXPECT_TRUE(is_coded(encode(plane)));
    expect_round_trip(plane);
  }
}

TEST(SplitZip, RoundTripAtEveryLengthAroundTheEdges) {
  for (std::size_t n = 0; n <= 200; ++n) expect_round_trip(kv_plane(n, 0.01));
  for (const std::size_t chunks : {1U, 2U, 3U}) {
    for (std::size_t n = chunks * kChunkElements - 33; n <= chunks * kChunkElements + 33; ++n) {
      expect_round_trip(kv_plane(n, 0.01, static_cast<unsigned>(n)));
    }
  }
}

TEST(SplitZip, RoundTripWithAnyShareOfEscapes) {
  for (const double escapes : {0.0, 0.001, 0.01, 0.1, 0.2, 0.24, 0.25, 0.26, 0.5, 1.0}) {
    for (const std::size_t n : {1023U, 4096U, 8191U}) expect_round_trip(kv_plane(n, escapes));
  }
}

TEST(SplitZip, RoundTripOfFewExponents) {
  Random rng(2);
  for (unsigned distinct = 1; distinct <= 17; ++distinct) {
    Plane plane(3000);
    for (std::uint16_t& value : plane)
      value = with_exponent(rng, 240 + rng() % distinct - distinct / 2);
    EXPECT_TRUE(is_coded(encode(plane)));
    expect_round_trip(plane);
  }
}

TEST(SplitZip, RoundTripOfNansInfinitiesZerosAndSubnormals) {
  Plane plane;
  for (unsigned payload = 0; payload < 128; ++payload) {
    for (const unsigned top : {0x7F80U, 0xFF80U, 0x0000U, 0x8000U}) {
      plane.push_back(static_cast<std::uint16_t>(top | payload));
    }
  }
  EXPECT_TRUE(is_coded(encode(plane)));
  expect_round_trip(plane);
}

TEST(SplitZip, Fp16PlanesAreAlwaysRaw) {
  for (const std::size_t n : {0U, 1U, 5U, 1024U, 5000U}) {
    const Plane zeros(n, 0);
    EXPECT_FALSE(is_coded(encode(zeros, ElementType::kFp16)));
    expect_round_trip(zeros, ElementType::kFp16);
    expect_round_trip(kv_plane(n, 0.5), ElementType::kFp16);
  }
}

TEST(SplitZip, SizesAreThoseOfTheSpecification) {
  // No escapes, whole chunks: 12 bits a value, 2 bytes a chunk, prefix and codebook.
  const Bytes body = encode(kv_plane(64 * 1024, 0));
  EXPECT_EQ(body.size(), 32U + 64 * 1024 * 3 / 2 + 128);
  EXPECT_EQ(encode(Plane{}).size(), 16U);
  EXPECT_EQ(encode(Plane(1, 0)).size(), 32U);
  for (std::size_t n = 0; n < 3000; ++n) {
    EXPECT_LE(kCodec.bound(shape_of(n)), 2 * n + 30) << n;
  }
  // Planes of one exponent are coded exactly when that is shorter; padding decides around 100.
  for (std::size_t n = 0; n <= 200; ++n) {
    const bool shorter = (n >= 89 && n <= 96) || n >= 105;
    EXPECT_EQ(is_coded(encode(Plane(n, 0x3F80))), shorter) << n;
  }
}

TEST(SplitZip, TheRatioAtKnownShares) {
  const std::size_t n = 1 << 20;
  for (const auto& [escapes, ratio] : {std::pair{0.0, 1.332}, {0.005, 1.318}, {0.02, 1.280}}) {
    const double bytes = static_cast<double>(encode(kv_plane(n, escapes)).size());
    EXPECT_NEAR(2.0 * static_cast<double>(n) / bytes, ratio, 0.002) << escapes;
  }
}

TEST(SplitZip, CodebookIsTheMostFrequentSmallerFirstInAscendingOrder) {
  Random rng(3);
  Plane plane;
  // 200 ... 209 are frequent; 20 others are equally rare, so the six smallest of them get in.
  for (int i = 0; i < 200; ++i)
    plane.push_back(with_exponent(rng, 200 + static_cast<unsigned>(i) % 10));
  for (unsigned e = 60; e > 40; --e) plane.push_back(with_exponent(rng, e));
  const Bytes body = encode(plane);
  ASSERT_TRUE(is_coded(body));
  const unsigned expected[] = {41,  42,  43,  44,  45,  46,  200, 201,
                               202, 203, 204, 205, 206, 207, 208, 209};
  for (std::size_t c = 0; c < 16; ++c) EXPECT_EQ(body[16 + c], std::byte(expected[c])) << c;
  EXPECT_EQ(prefix_of(body).escapes, 14U);
}

TEST(SplitZip, AChunkIsRawFrom256EscapesOn) {
  Random rng(4);
  for (const std::size_t escapes : {255U, 256U}) {
    Plane plane = kv_plane(8192, 0);
    for (std::size_t i = 0; i < escapes; ++i) plane[2048 + 3 * i] = with_exponent(rng, 1);
    const Bytes body = encode(plane);
    ASSERT_TRUE(is_coded(body));
    const Prefix prefix = prefix_of(body);
    EXPECT_EQ(prefix.escapes, escapes == 255 ? 255U : 0U);
    EXPECT_EQ(prefix.raw_exponents, escapes == 255 ? 0U : 1024U);
    expect_round_trip(plane);
  }
}

// ------------------------------------------------------------------------------------------------
// Damage. A body alone has no checksum, so some changes give other valid bodies; none may lead out
// of the buffers, which have exact sizes.

std::vector<Plane> sample_planes() {
  Plane mixed = kv_plane(4 * 1024 + 301, 0.01);
  const Plane noise = kv_plane(1024, 1.0);
  std::copy(noise.begin(), noise.end(), mixed.begin() + 1024);  // one raw chunk
  return {kv_plane(90, 0), kv_plane(97, 0.02), kv_plane(20, 0), mixed};
}

TEST(SplitZip, EveryTruncationIsCorrupt) {
  for (const Plane& plane : sample_planes()) {
    const Bytes body = encode(plane);
    Plane decoded;
    for (std::size_t length = 0; length < body.size(); ++length) {
      ASSERT_EQ(decode(ByteView(body).first(length), plane.size(), decoded).code(), Code::kCorrupt)
          << length << " of " << body.size();
    }
  }
}

TEST(SplitZip, TrailingBytesAreCorrupt) {
  for (const Plane& plane : sample_planes()) {
    Bytes body = encode(plane);
    Plane decoded;
    for (int extra = 0; extra < 33; ++extra) {
      body.push_back(std::byte{0});
      EXPECT_EQ(decode(body, plane.size(), decoded).code(), Code::kCorrupt);
    }
  }
}

TEST(SplitZip, EveryChangedByteIsRefusedOrDecodesInBounds) {
  for (const Plane& plane : sample_planes()) {
    Bytes body = encode(plane);
    Plane decoded;
    for (std::size_t at = 0; at < body.size(); ++at) {
      for (const unsigned change : {0x01U, 0x80U, 0xFFU}) {
        body[at] ^= std::byte(change);
        const Status status = decode(body, plane.size(), decoded);
        // The prefix leaves no freedom: any change must be noticed.
        EXPECT_TRUE(at >= sizeof(Prefix) || !status.ok()) << at;
        if (!status.ok()) {
          EXPECT_EQ(status.code(), at == 0 ? Code::kUnsupported : Code::kCorrupt) << at;
        }
        body[at] ^= std::byte(change);
      }
    }
  }
}

TEST(SplitZip, OtherCountsAndTypesThanTheBodysAreCorrupt) {
  const Plane plane = kv_plane(1025, 0.01);
  const Bytes body = encode(plane);
  Plane decoded;
  for (const std::size_t n : {0U, 1U, 1024U, 1026U, 2049U}) {
    EXPECT_EQ(decode(body, n, decoded).code(), Code::kCorrupt) << n;
  }
  EXPECT_EQ(decode(body, 1025, decoded, ElementType::kFp16).code(), Code::kCorrupt);
}

// ------------------------------------------------------------------------------------------------
// A generator of valid bodies that our encoder never makes.

struct ForeignBody {
  Plane plane;
  Bytes body;
};

ForeignBody foreign_body(unsigned seed) {
  Random rng(seed);
  const std::size_t n = rng() % 5000;
  const unsigned window = 1 + rng() % 256;
  // Any 16 exponents, not the most frequent ones.
  std::vector<unsigned> exponents(256);
  for (unsigned e = 0; e < 256; ++e) exponents[e] = e;
  std::shuffle(exponents.begin(), exponents.end(), rng.engine);
  std::vector<unsigned> codebook(exponents.begin(), exponents.begin() + 16);
  std::sort(codebook.begin(), codebook.end());

  ForeignBody made;
  Bytes codes((n + 1) / 2), sign_mantissa, values, raw_exponents;
  std::vector<std::uint16_t> counts, positions;
  const auto set_code = [&](std::size_t i, unsigned code) {
    codes[i / 2] |= std::byte(i % 2 == 0 ? code << 4 : code);
  };
  for (std::size_t first = 0; first < n; first += kChunkElements) {
    const std::size_t length = std::min(kChunkElements, n - first);
    const bool raw = rng() % 4 == 0;
    const unsigned escape_every = 1 + rng() % 64;
    std::size_t escapes = 0;
    for (std::size_t i = 0; i < length; ++i) {
      // As many escapes as a chunk may have, with exponents in and out of the codebook, and codes
      // that mean nothing under escapes and in raw chunks.
      const bool escape = !raw && escapes < kChunkEscapesMax && rng() % escape_every == 0;
      const unsigned code = rng() % 16;
      const unsigned exponent = raw || escape ? rng() % window : codebook[code];
      set_code(first + i, code);
      made.plane.push_back(with_exponent(rng, exponent));
      sign_mantissa.push_back(
          std::byte((made.plane.back() >> 8 & 0x80U) | (made.plane.back() & 0x7FU)));
      if (raw) raw_exponents.push_back(std::byte(exponent));
      if (!escape) continue;
      positions.push_back(static_cast<std::uint16_t>(i));
      values.push_back(std::byte(exponent));
      ++escapes;
    }
    counts.push_back(raw ? kRawChunk : static_cast<std::uint16_t>(escapes));
  }
  ByteWriter out;
  const Prefix prefix{1,
                      1,
                      2,
                      0,
                      static_cast<std::uint32_t>(n),
                      static_cast<std::uint32_t>(positions.size()),
                      static_cast<std::uint32_t>(raw_exponents.size())};
  const auto pad = [&] {
    while (out.bytes().size() % 16 != 0) out.write(std::uint8_t{0});
  };
  out.write_bytes(std::as_bytes(std::span(&prefix, 1)));
  for (const unsigned e : codebook) out.write(static_cast<std::uint8_t>(e));
  out.write_bytes(codes);
  pad();
  out.write_bytes(sign_mantissa);
  pad();
  for (const std::uint16_t count : counts) out.write(count);
  for (const std::uint16_t position : positions) out.write(position);
  out.write_bytes(values);
  out.write_bytes(raw_exponents);
  pad();
  made.body = out.take();
  return made;
}

TEST(SplitZip, BodiesOfOtherEncodersDecode) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    const ForeignBody made = foreign_body(seed);
    Plane decoded;
    const Status status = decode(made.body, made.plane.size(), decoded);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.message();
    ASSERT_EQ(decoded, made.plane) << "seed " << seed;
  }
}

TEST(SplitZip, DamagedBodiesOfOtherEncodersStayInBounds) {
  Random rng(5);
  int refused = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    ForeignBody made = foreign_body(seed);
    // Mostly in the tables, where bytes decide what is read and written.
    const Prefix prefix = prefix_of(made.body);
    const std::size_t tables =
        sections(prefix.elements, prefix.escapes, prefix.raw_exponents).counts;
    for (int change = 0; change < 8; ++change) {
      const std::size_t at = rng() % 2 == 0 && tables < made.body.size()
                                 ? tables + rng() % (made.body.size() - tables)
                                 : rng() % made.body.size();
      made.body[at] = std::byte(rng() & 0xFFU);
    }
    Plane decoded;
    refused += decode(made.body, made.plane.size(), decoded).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 250);  // the rest are other valid bodies
}

}  // namespace
}  // namespace kvlane
