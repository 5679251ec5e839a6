// SplitZip bodies on every tier: round trips at all edges, sizes, every damage, bodies no encoder
// of ours makes, and that all tiers do the same.
// SPDX-License-Identifier: Apache-2.0
#include "codec/splitzip.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/test_sanitizers.h"
#include "codec/splitzip_fixture.h"
#include "format/frame.h"

namespace kvlane::splitzip {
namespace {

using namespace splitzip_fixture;

class SplitZip : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) GTEST_SKIP() << "this processor lacks " << isa_name(GetParam());
    codec_ = *find_codec("splitzip", GetParam());
  }

  Bytes encode(const Plane& plane, const Codebook* book = nullptr) const {
    return encode_exactly(*codec_, plane, book);
  }
  Status decode(ByteView body, const PlaneShape& shape, Bytes& plane) const {
    return decode_exactly(*codec_, body, shape, plane);
  }
  void expect_round_trip(const Plane& plane, const Codebook* book = nullptr) const {
    const Bytes body = encode(plane, book);
    Bytes decoded;
    const Status status = decode(body, plane.shape, decoded);
    ASSERT_TRUE(status.ok()) << plane.shape.elements() << " values: " << status.message();
    EXPECT_EQ(decoded, plane.bytes) << plane.shape.elements();
    EXPECT_EQ(encode(plane, book), body) << "the same values must give the same bytes";
  }

  const Codec* codec_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Tiers, SplitZip, ::testing::ValuesIn(kAllIsas),
                         [](const auto& tier) { return std::string(isa_name(tier.param)); });

TEST_P(SplitZip, RoundTripOfAllPatterns) {
  Plane all = empty_plane(ElementType::kBf16, 65536);
  for (std::size_t i = 0; i < 65536; ++i) all.set(i, static_cast<unsigned>(i));
  expect_round_trip(all);  // 256 equally frequent exponents: raw
  EXPECT_FALSE(is_coded(encode(all)));
  // Each pattern once among enough values of one exponent to have the plane coded.
  for (unsigned first = 0; first < 65536; first += 250) {
    Plane plane = empty_plane(ElementType::kBf16, 2048);
    for (std::size_t i = 0; i < 2048; ++i) plane.set(i, 0x3F80);
    for (unsigned i = 0; i < 250 && first + i < 65536; ++i) plane.set(3 * i, first + i);
    EXPECT_TRUE(is_coded(encode(plane)));
    expect_round_trip(plane);
  }
  for (const ElementType type : {ElementType::kFp8E4m3, ElementType::kFp8E5m2}) {
    Plane plane = kv_plane(type, 16384, 0);
    for (unsigned i = 0; i < 256; ++i) plane.set(61 * i, i);
    EXPECT_TRUE(is_coded(encode(plane)));
    expect_round_trip(plane);
  }
}

TEST_P(SplitZip, RoundTripAtEveryLengthAroundTheEdges) {
  for (const ElementType type : kCoded) {
    for (std::size_t n = 0; n <= 520; ++n) expect_round_trip(kv_plane(type, n, 0.01));
    for (const std::size_t chunks : {4U, 8U, 9U}) {
      for (std::size_t n = chunks * kChunkElements - 133; n <= chunks * kChunkElements + 133; ++n) {
        expect_round_trip(kv_plane(type, n, 0.01, static_cast<unsigned>(n)));
      }
    }
  }
}

TEST_P(SplitZip, RoundTripWithAnyShareOfEscapes) {
  for (const ElementType type : kCoded) {
    for (const double escapes : {0.0, 0.001, 0.01, 0.03, 0.06, 0.1, 0.2, 0.24, 0.26, 0.5, 1.0}) {
      for (const std::size_t n : {1023U, 4096U, 8191U}) {
        expect_round_trip(kv_plane(type, n, escapes));
      }
    }
  }
}

TEST_P(SplitZip, RoundTripOfFewExponents) {
  for (const ElementType type : kCoded) {
    const int limit = 1 << fields_of(type).exponent_bits;
    for (unsigned distinct = 1; distinct <= 17 && int(distinct) <= limit; ++distinct) {
      Random rng(2);
      Plane plane = empty_plane(type, 3000);
      for (std::size_t i = 0; i < 3000; ++i) {
        const unsigned low = unsigned(limit) - distinct;
        plane.set(i, with_exponent(rng, type, low + rng() % distinct));
      }
      EXPECT_EQ(is_coded(encode(plane)), type == ElementType::kBf16 || distinct <= 8 ||
                                             (type == ElementType::kFp8E5m2 && distinct <= 16))
          << element_name(type) << " " << distinct;
      expect_round_trip(plane);
    }
  }
}

TEST_P(SplitZip, RoundTripOfNansInfinitiesZerosAndSubnormals) {
  Plane plane = empty_plane(ElementType::kBf16, 512);
  std::size_t i = 0;
  for (unsigned payload = 0; payload < 128; ++payload) {
    for (const unsigned top : {0x7F80U, 0xFF80U, 0x0000U, 0x8000U}) plane.set(i++, top | payload);
  }
  EXPECT_TRUE(is_coded(encode(plane)));
  expect_round_trip(plane);
}

TEST_P(SplitZip, Fp16PlanesAreAlwaysRaw) {
  for (const std::size_t n : {0U, 1U, 5U, 1024U, 5000U}) {
    const Plane zeros = empty_plane(ElementType::kFp16, n);
    EXPECT_FALSE(is_coded(encode(zeros)));
    expect_round_trip(zeros);
  }
}

TEST_P(SplitZip, SizesAreThoseOfTheSpecification) {
  // No escapes, whole chunks: bits of code and rest, a byte a chunk, prefix and codebook.
  const Bytes body = encode(kv_plane(ElementType::kBf16, 64 * 1024, 0));
  EXPECT_EQ(body.size(), 64U + 64 * 1024 * 3 / 2 + 256);
  for (const ElementType type : {ElementType::kFp8E4m3, ElementType::kFp8E5m2}) {
    EXPECT_EQ(encode(kv_plane(type, 64 * 1024, 0)).size(), 64U + 64 * 1024 * 7 / 8 + 256);
  }
  EXPECT_EQ(encode(empty_plane(ElementType::kBf16, 0)).size(), 16U);
  EXPECT_EQ(encode(empty_plane(ElementType::kBf16, 1)).size(), 32U);
  for (std::size_t n = 0; n < 3000; ++n) {
    EXPECT_LE(codec_->bound(shape_of(ElementType::kBf16, n)), 2 * n + 30) << n;
    EXPECT_LE(codec_->bound(shape_of(ElementType::kFp8E5m2, n)), n + 31) << n;
  }
  // Planes of one exponent are coded exactly when that is shorter; padding decides around 256.
  for (std::size_t n = 0; n <= 384; ++n) {
    const bool shorter = (n >= 249 && n <= 256) || (n >= 313 && n <= 320) || n >= 345;
    EXPECT_EQ(is_coded(encode(empty_plane(ElementType::kBf16, n))), shorter) << n;
  }
}

TEST_P(SplitZip, TheRatioAtKnownShares) {
  const std::size_t n = 1 << 20;
  for (const auto& [escapes, ratio] : {std::pair{0.0, 1.330}, {0.005, 1.321}, {0.02, 1.295}}) {
    const double bytes =
        static_cast<double>(encode(kv_plane(ElementType::kBf16, n, escapes)).size());
    EXPECT_NEAR(2.0 * static_cast<double>(n) / bytes, ratio, 0.002) << escapes;
  }
  for (const auto& [escapes, ratio] : {std::pair{0.0, 1.138}, {0.005, 1.125}, {0.02, 1.088}}) {
    const double bytes =
        static_cast<double>(encode(kv_plane(ElementType::kFp8E5m2, n, escapes)).size());
    EXPECT_NEAR(static_cast<double>(n) / bytes, ratio, 0.002) << escapes;
  }
}

TEST_P(SplitZip, CodebookIsTheMostFrequentSmallerFirstInAscendingOrder) {
  Random rng(3);
  Plane plane = empty_plane(ElementType::kBf16, 420);
  // 200 ... 209 are frequent; 20 others are equally rare, so the six smallest of them get in.
  for (unsigned i = 0; i < 420; ++i) {
    plane.set(i, with_exponent(rng, ElementType::kBf16, i < 400 ? 200 + i % 10 : 460 - i));
  }
  const Bytes body = encode(plane);
  ASSERT_TRUE(is_coded(body));
  const unsigned expected[] = {41,  42,  43,  44,  45,  46,  200, 201,
                               202, 203, 204, 205, 206, 207, 208, 209};
  for (std::size_t c = 0; c < 16; ++c) EXPECT_EQ(body[16 + c], std::byte(expected[c])) << c;
  EXPECT_EQ(prefix_of(body).table_words, 14U);
}

TEST_P(SplitZip, AGivenCodebookIsUsedAndWritten) {
  const Plane plane = kv_plane(ElementType::kBf16, 8192, 0);  // exponents 112 ... 127
  Codebook best;
  for (std::size_t c = 0; c < 16; ++c) best.exponents[c] = static_cast<std::uint8_t>(112 + c);
  EXPECT_EQ(encode(plane, &best), encode(plane));
  // Without its last exponent, and with a gap: every 127 is an escape.
  Codebook poor = best;
  poor.exponents[15] = 200;
  const Bytes body = encode(plane, &poor);
  ASSERT_TRUE(is_coded(body));
  EXPECT_EQ(body[31], std::byte{200});
  EXPECT_NEAR(prefix_of(body).table_words, 512, 100);
  expect_round_trip(plane, &poor);
  // One that fits nothing makes planes raw, not wrong.
  Codebook useless;
  for (std::size_t c = 0; c < 16; ++c) useless.exponents[c] = static_cast<std::uint8_t>(c);
  EXPECT_FALSE(is_coded(encode(plane, &useless)));
  expect_round_trip(plane, &useless);
}

TEST_P(SplitZip, AChunkIsRawFrom128EscapesOn) {
  for (const ElementType type : kCoded) {
    for (const std::size_t escapes : {127U, 128U}) {
      Random rng(4);
      Plane plane = kv_plane(type, 8192, 0);
      for (std::size_t i = 0; i < escapes; ++i) {
        plane.set(2048 + 2 * i, with_exponent(rng, type, 1));
      }
      const Bytes body = encode(plane);
      ASSERT_TRUE(is_coded(body));
      EXPECT_EQ(prefix_of(body).table_words, escapes == 127 ? 127U : 128U);
      const Sections at = sections(type, 8192, prefix_of(body).table_words);
      EXPECT_EQ(body[at.counts + 8], escapes == 127 ? std::byte{127} : std::byte{255});
      expect_round_trip(plane);
    }
  }
}

// A plane that ends close to the size at which it turns raw, from both sides: encoders must agree
// on the very word.
TEST_P(SplitZip, TurnsRawExactlyWhereTheCodedBodyIsNotShorter) {
  const std::size_t n = 16 * kChunkElements;
  const std::size_t raw = raw_body_bytes(2 * n);
  for (std::size_t words = 980; words <= 1024; ++words) {
    Random rng(9);
    Plane plane = kv_plane(ElementType::kBf16, n, 0);
    for (std::size_t i = 0; i < words; ++i) {
      plane.set(4 * i, with_exponent(rng, ElementType::kBf16, 1));
    }
    const Sections at = sections(ElementType::kBf16, n, words);
    Codebook book;
    for (std::size_t c = 0; c < 16; ++c) book.exponents[c] = static_cast<std::uint8_t>(112 + c);
    const Bytes body = encode(plane, &book);
    EXPECT_EQ(body.size(), std::min(at.end, raw)) << words;
    EXPECT_EQ(is_coded(body), at.end < raw) << words;
  }
}

// ------------------------------------------------------------------------------------------------
// Damage. A body alone has no checksum, so some changes give other valid bodies; none may lead out
// of the buffers, which have exact sizes.

std::vector<Plane> sample_planes() {
  std::vector<Plane> planes = {kv_plane(ElementType::kBf16, 20, 0),
                               kv_plane(ElementType::kBf16, 251, 0.02)};
  for (const ElementType type : kCoded) {
    Plane mixed = kv_plane(type, 4 * 1024 + 301, 0.01);
    const Plane noise = kv_plane(type, 256, 1.0);
    std::copy(noise.bytes.begin(), noise.bytes.end(),
              mixed.bytes.begin() + 1024 * element_bytes(type));  // one raw chunk
    planes.push_back(mixed);
  }
  return planes;
}

TEST_P(SplitZip, EveryTruncationIsCorrupt) {
  for (const Plane& plane : sample_planes()) {
    const Bytes body = encode(plane);
    Bytes decoded;
    for (std::size_t length = 0; length < body.size(); ++length) {
      ASSERT_EQ(decode(ByteView(body).first(length), plane.shape, decoded).code(), Code::kCorrupt)
          << length << " of " << body.size();
    }
  }
}

TEST_P(SplitZip, TrailingBytesAreCorrupt) {
  for (const Plane& plane : sample_planes()) {
    Bytes body = encode(plane);
    Bytes decoded;
    for (int extra = 0; extra < 130; ++extra) {
      body.push_back(std::byte{0});
      EXPECT_EQ(decode(body, plane.shape, decoded).code(), Code::kCorrupt);
    }
  }
}

TEST_P(SplitZip, EveryChangedByteIsRefusedOrDecodesInBounds) {
  for (const Plane& plane : sample_planes()) {
    Bytes body = encode(plane);
    Bytes decoded;
    for (std::size_t at = 0; at < body.size(); ++at) {
      for (const unsigned change : {0x01U, 0x80U, 0xFFU}) {
        body[at] ^= std::byte(change);
        const Status status = decode(body, plane.shape, decoded);
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

TEST_P(SplitZip, OtherCountsAndTypesThanTheBodysAreCorrupt) {
  const Plane plane = kv_plane(ElementType::kBf16, 1025, 0.01);
  const Bytes body = encode(plane);
  Bytes decoded;
  for (const std::size_t n : {0U, 1U, 1024U, 1026U, 2049U}) {
    EXPECT_EQ(decode(body, shape_of(ElementType::kBf16, n), decoded).code(), Code::kCorrupt) << n;
  }
  for (const ElementType type :
       {ElementType::kFp16, ElementType::kFp8E4m3, ElementType::kFp8E5m2}) {
    EXPECT_EQ(decode(body, shape_of(type, 1025), decoded).code(), Code::kCorrupt);
  }
}

// ------------------------------------------------------------------------------------------------
// Bodies of other encoders.

TEST_P(SplitZip, BodiesOfOtherEncodersDecode) {
  for (unsigned seed = 0; seed < 500; ++seed) {
    const ForeignBody made = foreign_body(kCoded[seed % 3], seed);
    Bytes decoded;
    const Status status = decode(made.body, made.plane.shape, decoded);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.message();
    ASSERT_EQ(decoded, made.plane.bytes) << "seed " << seed;
  }
}

TEST_P(SplitZip, DamagedBodiesOfOtherEncodersAreJudgedAsTheScalarDecoderDoes) {
  const Codec& scalar = **find_codec("splitzip", Isa::kScalar);
  Random rng(5);
  int refused = 0;
  for (unsigned seed = 0; seed < 1000; ++seed) {
    ForeignBody made = foreign_body(kCoded[seed % 3], seed);
    const Prefix prefix = prefix_of(made.body);
    const std::size_t tables =
        sections(made.plane.shape.type, prefix.elements, prefix.table_words).counts;
    for (unsigned change = 0; change < 1 + seed % 8; ++change) {
      // Mostly in the tables, where bytes decide what is read and written.
      const std::size_t at = rng() % 2 == 0 && tables < made.body.size()
                                 ? tables + rng() % (made.body.size() - tables)
                                 : rng() % made.body.size();
      made.body[at] = std::byte(rng() & 0xFFU);
    }
    Bytes decoded, expected;
    const Status status = decode(made.body, made.plane.shape, decoded);
    const Status judged = decode_exactly(scalar, made.body, made.plane.shape, expected);
    ASSERT_EQ(status.code(), judged.code()) << seed;
    ASSERT_EQ(status.message(), judged.message()) << seed;
    if (status.ok()) {
      ASSERT_EQ(decoded, expected) << seed;
    }
    refused += status.ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 500);  // the rest are other valid bodies
}

// ------------------------------------------------------------------------------------------------
// All tiers do the same.

class SplitZipTiers : public SplitZip {
 protected:
  void expect_as_scalar(const Plane& plane, const Codebook* book) const {
    const Codec& scalar = **find_codec("splitzip", Isa::kScalar);
    const Bytes body = encode(plane, book);
    ASSERT_EQ(body, encode_exactly(scalar, plane, book)) << plane.shape.elements();
    Bytes decoded;
    ASSERT_TRUE(decode(body, plane.shape, decoded).ok()) << plane.shape.elements();
    ASSERT_EQ(decoded, plane.bytes) << plane.shape.elements();
  }
};

INSTANTIATE_TEST_SUITE_P(Tiers, SplitZipTiers, ::testing::ValuesIn(kAllIsas),
                         [](const auto& tier) { return std::string(isa_name(tier.param)); });

TEST_P(SplitZipTiers, EqualAtEveryLength) {
  Random rng(6);
  for (const ElementType type : kCoded) {
    for (std::size_t n = 0; n <= 5000; n += kSanitized ? 3 : 1) {
      const double escapes[] = {0, 0.001, 0.02, 0.1, 0.3};
      const Plane plane =
          kv_plane(type, n, escapes[n % 5], static_cast<unsigned>(n), n % 3 == 0 ? 40 : 0);
      const Codebook book = random_codebook(type, rng, n % 2 == 0);
      expect_as_scalar(plane, n % 7 < 3 ? nullptr : &book);
    }
  }
}

TEST_P(SplitZipTiers, EqualOnNoiseNansAndEscapesOnly) {
  Random rng(7);
  for (const ElementType type : kCoded) {
    for (int round = 0; round < 300; ++round) {
      Plane plane = empty_plane(type, 2000 + rng() % 3000);
      // A slowly changing mixture, so that raw chunks and coded ones lie side by side.
      for (std::size_t i = 0; i < plane.shape.elements(); ++i) {
        const unsigned kind =
            static_cast<unsigned>(i) / 300 * 7 % 5 + static_cast<unsigned>(round) % 2;
        const unsigned exponents = 1U << fields_of(type).exponent_bits;
        const unsigned exponent = kind == 0   ? exponents - 1
                                  : kind == 1 ? rng() % exponents
                                              : exponents / 2 + rng() % 6;
        plane.set(i, with_exponent(rng, type, exponent));
      }
      const Codebook book = random_codebook(type, rng, round % 2 == 0);
      expect_as_scalar(plane, round % 3 == 0 ? nullptr : &book);
    }
  }
}

TEST_P(SplitZipTiers, EqualAtEveryAlignment) {
  for (const ElementType type : kCoded) {
    const Plane plane = kv_plane(type, 3 * 1024 + 200, 0.01);
    const Bytes expected = encode(plane);
    for (std::size_t shift = 0; shift < 64; ++shift) {
      Bytes source(plane.bytes.size() + 64), body(codec_->bound(plane.shape) + 64);
      std::copy(plane.bytes.begin(), plane.bytes.end(), source.begin() + shift);
      const std::span destination = std::span(body).subspan(63 - shift, codec_->bound(plane.shape));
      const std::size_t bytes = codec_->encode(
          plane.shape, ByteView(source).subspan(shift, plane.bytes.size()), nullptr, destination);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), destination.begin(),
                             destination.begin() + bytes))
          << shift;
      Bytes decoded(plane.bytes.size() + 64);
      const std::span values = std::span(decoded).subspan(shift, plane.bytes.size());
      ASSERT_TRUE(codec_->decode(plane.shape, destination.first(bytes), values).ok());
      ASSERT_TRUE(std::equal(values.begin(), values.end(), plane.bytes.begin())) << shift;
    }
  }
}

// Long enough for kernels to write past the caches, on aligned and on other buffers.
TEST_P(SplitZipTiers, EqualWhereOutputIsStreamed) {
  const std::size_t n = kStreamingBytes / 2 + 777;
  Plane plane = kv_plane(ElementType::kBf16, n, 0.003);
  const Plane noise = kv_plane(ElementType::kBf16, 1000, 1.0);
  std::copy(noise.bytes.begin(), noise.bytes.end(), plane.bytes.begin() + 123456);
  const Bytes expected = encode_exactly(**find_codec("splitzip", Isa::kScalar), plane, nullptr);
  for (const std::size_t shift : {0U, 16U}) {
    const AlignedBytes body(codec_->bound(plane.shape), shift);
    const std::size_t bytes = codec_->encode(plane.shape, plane.bytes, nullptr, body.span());
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), body.span().begin(),
                           body.span().begin() + bytes));
    const AlignedBytes decoded(plane.bytes.size(), shift);
    ASSERT_TRUE(codec_->decode(plane.shape, body.span().first(bytes), decoded.span()).ok());
    ASSERT_TRUE(std::equal(plane.bytes.begin(), plane.bytes.end(), decoded.span().begin()));
  }
}

}  // namespace
}  // namespace kvlane::splitzip
