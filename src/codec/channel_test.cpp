// Bodies of splitzip:channel: every tier gives the same bytes and the same verdicts; round trips of
// all shapes, sizes, every damage, and bodies no encoder of ours makes.
// SPDX-License-Identifier: Apache-2.0
#include "codec/channel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "codec/channel_fixture.h"
#include "cpu/memory.h"
#include "cpu/tiers_fixture.h"
#include "format/frame.h"

namespace kvlane::channel {
namespace {

using splitzip_fixture::Random;
using tiers_fixture::tiers;
using Plane = std::vector<std::uint16_t>;

PlaneShape shape_of(int heads, int rows, int channels) {
  return {ElementType::kBf16, heads, rows, channels};
}

std::string to_string(const PlaneShape& shape) {
  return std::to_string(shape.kv_heads) + " x " + std::to_string(shape.rows) + " x " +
         std::to_string(shape.head_dim);
}

// Into a heap block of exactly bound() bytes, full of garbage before.
Bytes encode_on(Isa isa, const PlaneShape& shape, ByteView plane) {
  const ChannelCodec codec(isa);
  const std::size_t bound = codec.bound(shape);
  const auto block = std::make_unique<std::byte[]>(bound);
  std::memset(block.get(), 0xA5, bound);
  const std::size_t bytes = codec.encode(shape, plane, nullptr, {block.get(), bound});
  EXPECT_LE(bytes, bound);
  return {block.get(), block.get() + bytes};
}

// From and to heap blocks of the exact sizes, for AddressSanitizer.
Status decode_on(Isa isa, const PlaneShape& shape, ByteView body, Bytes& plane) {
  const auto copy = std::make_unique<std::byte[]>(body.size());
  std::copy(body.begin(), body.end(), copy.get());
  const auto values = std::make_unique<std::byte[]>(shape.bytes());
  const Status status = ChannelCodec(isa).decode(shape, {copy.get(), body.size()},
                                                 std::span(values.get(), shape.bytes()));
  plane.assign(values.get(), values.get() + shape.bytes());
  return status;
}

// The verdict all tiers agree on; `plane` is filled when it is good.
Status decode(const PlaneShape& shape, ByteView body, Bytes& plane) {
  const Status status = decode_on(Isa::kScalar, shape, body, plane);
  for (const Isa isa : tiers()) {
    Bytes other;
    const Status verdict = decode_on(isa, shape, body, other);
    EXPECT_EQ(verdict.code(), status.code()) << isa_name(isa);
    EXPECT_EQ(verdict.message(), status.message()) << isa_name(isa);
    if (status.ok()) {
      EXPECT_EQ(other, plane) << isa_name(isa);
    }
  }
  return status;
}

// The body all tiers agree on.
Bytes encode(const PlaneShape& shape, ByteView plane) {
  const Bytes body = encode_on(Isa::kScalar, shape, plane);
  for (const Isa isa : tiers()) {
    EXPECT_EQ(encode_on(isa, shape, plane), body) << isa_name(isa) << ", " << to_string(shape);
  }
  return body;
}

Bytes encode(const PlaneShape& shape, const Plane& plane) {
  return encode(shape, std::as_bytes(std::span(plane)));
}

Prefix prefix_of(const Bytes& body) {
  Prefix prefix{};
  std::memcpy(&prefix, body.data(), sizeof(prefix));
  return prefix;
}

bool is_coded(const Bytes& body) { return prefix_of(body).mode == 1; }

void expect_round_trip(const PlaneShape& shape, ByteView plane) {
  const Bytes body = encode(shape, plane);
  EXPECT_EQ(body.size() % kBodyAlignment, 0U);
  Bytes decoded;
  const Status status = decode(shape, body, decoded);
  ASSERT_TRUE(status.ok()) << to_string(shape) << ": " << status.message();
  EXPECT_TRUE(std::equal(decoded.begin(), decoded.end(), plane.begin(), plane.end()));
}

void expect_round_trip(const PlaneShape& shape, const Plane& plane) {
  expect_round_trip(shape, std::as_bytes(std::span(plane)));
}

Plane kv_values(const PlaneShape& shape, double noise = 0, unsigned seed = 1) {
  const Bytes bytes = channel_fixture::kv_plane(shape, noise, seed);
  Plane plane(shape.elements());
  std::memcpy(plane.data(), bytes.data(), bytes.size());
  return plane;
}

TEST(Channel, EveryWidthAndHeightOfATile) {
  for (int channels = 1; channels <= 66; ++channels) {
    for (const int rows : {1, 2, 3, 4, 5, 8, 31, 33, 62, 63, 64, 65}) {
      const PlaneShape shape = shape_of(2, rows, channels);
      expect_round_trip(shape, kv_values(shape, 0.01, static_cast<unsigned>(rows)));
    }
  }
  for (int rows = 1; rows <= 130; ++rows) {
    const PlaneShape shape = shape_of(1, rows, 64);
    expect_round_trip(shape, kv_values(shape, 0.01, static_cast<unsigned>(rows)));
  }
}

TEST(Channel, ShapesOfModelsAndOddOnes) {
  const PlaneShape shapes[] = {shape_of(8, 64, 128),  shape_of(1, 64, 576), shape_of(32, 64, 96),
                               shape_of(1, 200, 256), shape_of(5, 10, 80),  shape_of(3, 7, 4096),
                               shape_of(1024, 1, 1),  shape_of(1024, 2, 3), shape_of(1, 1000, 1)};
  for (const PlaneShape& shape : shapes) {
    for (const double noise : {0.0, 0.1}) expect_round_trip(shape, kv_values(shape, noise));
  }
}

TEST(Channel, EmptyPlanesAreAPrefix) {
  for (const PlaneShape& shape : {shape_of(0, 0, 0), shape_of(4, 0, 128), shape_of(1, 64, 0)}) {
    EXPECT_EQ(encode(shape, Plane{}).size(), 16U);
    expect_round_trip(shape, Plane{});
  }
}

TEST(Channel, RoundTripWithAnyShareOfNoise) {
  const PlaneShape shape = shape_of(2, 64, 128);
  for (const double noise : {0.0, 0.001, 0.01, 0.1, 0.2, 0.3, 0.4, 0.5, 0.9, 1.0}) {
    const Plane plane = kv_values(shape, noise);
    EXPECT_EQ(is_coded(encode(shape, plane)), noise < 0.25) << noise;
    expect_round_trip(shape, plane);
  }
}

TEST(Channel, EveryPatternAmongOrdinaryValues) {
  const PlaneShape shape = shape_of(1, 64, 64);
  for (unsigned first = 0; first < 65536; first += 512) {
    Plane plane(shape.elements(), 0x3F80);
    for (unsigned i = 0; i < 512; ++i) plane[8 * i + 3] = static_cast<std::uint16_t>(first + i);
    EXPECT_TRUE(is_coded(encode(shape, plane)));
    expect_round_trip(shape, plane);
  }
}

// Bases at both ends of the range, where bases and anchors differ across its end.
TEST(Channel, ExponentsAtTheEndsOfTheRange) {
  const PlaneShape shape = shape_of(1, 64, 64);
  Random rng(2);
  for (const unsigned centre : {0U, 1U, 2U, 9U, 252U, 254U, 255U}) {
    Plane plane(shape.elements());
    for (std::uint16_t& value : plane) {
      const unsigned exponent = std::clamp(centre + rng() % 6, 3U, 258U) - 3;
      value = static_cast<std::uint16_t>((rng() & 0x807FU) | exponent << 7);
    }
    EXPECT_TRUE(is_coded(encode(shape, plane)));
    expect_round_trip(shape, plane);
  }
}

TEST(Channel, OtherTypesAreRaw) {
  for (const ElementType type :
       {ElementType::kFp16, ElementType::kFp8E4m3, ElementType::kFp8E5m2}) {
    const PlaneShape shape{type, 2, 64, 65};
    const Bytes plane(shape.bytes(), std::byte{0x3C});
    const Bytes body = encode(shape, plane);
    EXPECT_FALSE(is_coded(body));
    EXPECT_EQ(body.size(), raw_body_bytes(shape.bytes()));
    expect_round_trip(shape, plane);
  }
}

TEST(Channel, SizesAreThoseOfTheSpecification) {
  // One exponent: nothing escapes. Two tiles: counts and anchors fill 48 bytes of the first 64.
  const PlaneShape flat = shape_of(1, 64, 128);
  EXPECT_EQ(encode(flat, Plane(flat.elements(), 0x3F80)).size(), 64U + 64 + 2048 + 8192);
  for (int n = 1; n < 600; ++n) {
    const PlaneShape shape = shape_of(1, 1, n);
    EXPECT_LE(ChannelCodec(Isa::kScalar).bound(shape), 2 * std::size_t(n) + 30) << n;
    EXPECT_LE(encode(shape, kv_values(shape, 0.5)).size(), 2 * std::size_t(n) + 30) << n;
  }
  const PlaneShape shape = shape_of(16, 64, 128);
  const double bytes = static_cast<double>(encode(shape, kv_values(shape)).size());
  EXPECT_NEAR(static_cast<double>(shape.bytes()) / bytes, 1.49, 0.01);
}

TEST(Channel, LargePlanesGoAroundTheCachesAndHaveTheSameBytes) {
  const PlaneShape shape = shape_of(64, 64, 1024 + 128);
  const Plane plane = kv_values(shape, 0.01);
  const std::size_t bound = ChannelCodec(Isa::kScalar).bound(shape);
  for (const std::size_t shift : {std::size_t{0}, std::size_t{16}}) {  // aligned, and not
    std::optional<Bytes> expected;
    for (const Isa isa : tiers()) {
      auto body = PageBuffer::allocate(bound + shift);
      auto back = PageBuffer::allocate(shape.bytes() + shift);
      ASSERT_TRUE(body.ok() && back.ok());
      const ChannelCodec codec(isa);
      const ByteView values = std::as_bytes(std::span(plane));
      const std::size_t bytes = codec.encode(shape, values, nullptr, {body->data() + shift, bound});
      const ByteView coded(body->data() + shift, bytes);
      if (!expected) expected.emplace(coded.begin(), coded.end());
      EXPECT_TRUE(std::equal(coded.begin(), coded.end(), expected->begin(), expected->end()));
      ASSERT_TRUE(codec.decode(shape, coded, std::span(back->data() + shift, shape.bytes())).ok());
      EXPECT_EQ(std::memcmp(back->data() + shift, plane.data(), shape.bytes()), 0);
    }
  }
}

// Golden files are frames, which have at most 64 rows. Length and checksum (FNV-1a) are those of
// the second encoder, in tests/test_spec_decoder.py, whose bodies the reader in spec/decoder reads.
TEST(Channel, MoreRowsThanATileAsTheSecondEncoderHasThem) {
  const PlaneShape shape = shape_of(2, 130, 131);
  Plane plane(shape.elements());
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < plane.size(); ++i) {
    state = state * 1664525 + 1013904223;
    const auto below = static_cast<unsigned>(std::countl_zero(state >> 16 | 1U << 8)) - 16;
    const bool outlier = (state >> 20 & 63) == 0;
    const unsigned exponent =
        outlier ? state >> 8 & 255 : 120 + static_cast<unsigned>(i % 131 % 5) - below;
    plane[i] = static_cast<std::uint16_t>((state >> 7 & 0x8000) | exponent << 7 | (state & 127));
  }
  const Bytes body = encode(shape, plane);
  EXPECT_TRUE(is_coded(body));
  EXPECT_EQ(body.size(), 45632U);
  std::uint64_t checksum = 14695981039346656037U;
  for (const std::byte b : body) {
    checksum = (checksum ^ std::to_integer<std::uint64_t>(b)) * 1099511628211U;
  }
  EXPECT_EQ(checksum, 3937359373327168065U);
}

// ------------------------------------------------------------------------------------------------
// Damage. A body alone has no checksum, so some changes give other valid bodies; none may lead out
// of the buffers, which have exact sizes.

struct Sample {
  PlaneShape shape;
  Bytes body;
};

std::vector<Sample> samples() {
  std::vector<Sample> made;
  for (const PlaneShape& shape :
       {shape_of(1, 64, 32), shape_of(2, 9, 70), shape_of(1, 66, 33), shape_of(1, 1, 3)}) {
    made.push_back({shape, encode(shape, kv_values(shape, 0.02))});
  }
  return made;
}

TEST(Channel, EveryTruncationIsCorrupt) {
  for (const Sample& sample : samples()) {
    Bytes plane;
    for (std::size_t length = 0; length < sample.body.size(); ++length) {
      ASSERT_EQ(decode(sample.shape, ByteView(sample.body).first(length), plane).code(),
                Code::kCorrupt)
          << length << " of " << sample.body.size();
    }
  }
}

TEST(Channel, TrailingBytesAreCorrupt) {
  for (Sample& sample : samples()) {
    Bytes plane;
    for (int extra = 0; extra < 33; ++extra) {
      sample.body.push_back(std::byte{0});
      EXPECT_EQ(decode(sample.shape, sample.body, plane).code(), Code::kCorrupt);
    }
  }
}

TEST(Channel, EveryChangedByteIsRefusedOrDecodesInBounds) {
  for (Sample& sample : samples()) {
    Bytes plane;
    for (std::size_t at = 0; at < sample.body.size(); ++at) {
      for (const unsigned change : {0x01U, 0x80U, 0xFFU}) {
        sample.body[at] ^= std::byte(change);
        const Status status = decode(sample.shape, sample.body, plane);
        // The prefix leaves no freedom: any change must be noticed.
        EXPECT_TRUE(at >= sizeof(Prefix) || !status.ok()) << at;
        if (!status.ok()) {
          EXPECT_EQ(status.code(), at == 0 ? Code::kUnsupported : Code::kCorrupt) << at;
        }
        sample.body[at] ^= std::byte(change);
      }
    }
  }
}

TEST(Channel, OtherShapesAndTypesThanTheBodysAreCorrupt) {
  const PlaneShape shape = shape_of(2, 32, 64);
  const Bytes body = encode(shape, kv_values(shape));
  Bytes plane;
  for (const PlaneShape& other : {shape_of(1, 64, 64), shape_of(2, 64, 32), shape_of(2, 32, 63),
                                  shape_of(0, 32, 64), shape_of(4, 16, 64)}) {
    EXPECT_EQ(decode(other, body, plane).code(), Code::kCorrupt) << to_string(other);
  }
  EXPECT_EQ(decode({ElementType::kFp16, 2, 32, 64}, body, plane).code(), Code::kCorrupt);
}

// ------------------------------------------------------------------------------------------------
// Valid bodies that our encoder never makes: all codes are random, and so are bases and anchors.

// Random packed codes; escapes with the given probability.
Bytes random_codes(Random& rng, std::size_t count, double escapes, std::size_t& escaped) {
  Bytes packed(packed_bytes(count));
  std::bernoulli_distribution escape(escapes);
  escaped = 0;
  for (std::size_t first = 0; first < count; first += kGroupCodes) {
    const std::size_t length = std::min(kGroupCodes, count - first);
    const std::size_t bytes = group_bytes(length);
    for (std::size_t i = 0; i < length; ++i) {
      const unsigned code = escape(rng.engine) ? kEscape : rng() % kEscape;
      escaped += code == kEscape ? 1 : 0;
      packed[first / 4 + i % bytes] |= std::byte(code << 2 * (i / bytes));
    }
  }
  return packed;
}

// Every tenth is a full tile of which everything escapes from every layer: no tile has more
// elements.
Sample foreign_body(unsigned seed) {
  Random rng(seed);
  const bool most = seed % 10 == 0;
  const int rows = most ? kTileRows : 1 + static_cast<int>(rng() % 64);
  const int channels = most ? kTileChannels : 1 + static_cast<int>(rng() % 64);
  Sample made{shape_of(1, rows, channels), {}};
  const Sections at = sections(made.shape);
  const double share = most ? 1 : static_cast<double>(rng() % 5) / 4.0;
  std::bernoulli_distribution escape(most ? 1 : static_cast<double>(rng() % 5) / 4.0);
  made.body.resize(at.tails);
  const Prefix prefix{
      1, 1, 2, 0, 1, static_cast<std::uint32_t>(rows), static_cast<std::uint32_t>(channels)};
  std::memcpy(made.body.data(), &prefix, sizeof(prefix));
  made.body[at.anchors] = std::byte(rng() & 0xFFU);
  std::size_t escaped = 0;
  std::size_t total = 0;
  const auto put = [&](const Bytes& part, std::size_t place) {
    std::copy(part.begin(), part.end(), made.body.begin() + place);
    total += escaped;
  };
  put(random_codes(rng, channels, share, escaped), at.base_codes);
  for (int row = 0; row < rows; row += 4) {  // a group of rows is packed like a layer
    const int there = std::min(4, rows - row);
    Bytes codes(channels);
    for (int k = 0; k < there; ++k) {
      for (std::byte& packed : codes) {
        const unsigned code = escape(rng.engine) ? kEscape : rng() % kEscape;
        total += code == kEscape ? 1 : 0;
        packed |= std::byte(code << 2 * k);
      }
    }
    escaped = 0;
    put(codes, at.codes + std::size_t(row) / 4 * channels);
  }
  for (std::size_t i = at.sign_mantissa; i < at.tails; ++i) made.body[i] = std::byte(rng() & 0xFFU);
  TileCounts counts{};
  for (int layer = 0; layer < kLayers; ++layer) {
    counts.escapes[layer] = static_cast<std::uint16_t>(total);
    Bytes part(total);
    if (layer + 1 < kLayers) {
      part = random_codes(rng, total, share, escaped);
      total = escaped;
    } else {
      for (std::byte& raw : part) raw = std::byte(rng() & 0xFFU);
    }
    made.body.insert(made.body.end(), part.begin(), part.end());
  }
  std::memcpy(made.body.data() + at.counts, &counts, sizeof(counts));
  made.body.resize((made.body.size() + 15) / 16 * 16);
  return made;
}

TEST(Channel, BodiesOfOtherEncodersDecodeAlike) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const Sample made = foreign_body(seed);
    Bytes plane;
    const Status status = decode(made.shape, made.body, plane);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status.message();
    expect_round_trip(made.shape, plane);
  }
}

TEST(Channel, DamagedBodiesOfOtherEncodersStayInBounds) {
  Random rng(5);
  int refused = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    Sample made = foreign_body(seed);
    const Sections at = sections(made.shape);
    for (int change = 0; change < 4; ++change) {
      // Mostly where bytes decide what is read and written.
      const std::size_t tables = rng() % 2 == 0 ? at.counts : at.tails;
      const std::size_t place = rng() % 3 == 0 ? rng() % made.body.size() : tables + rng() % 8;
      if (place < made.body.size()) made.body[place] = std::byte(rng() & 0xFFU);
    }
    Bytes plane;
    refused += decode(made.shape, made.body, plane).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 300);  // the rest are other valid bodies
}

}  // namespace
}  // namespace kvlane::channel
