// Device code of `splitzip` on emulated blocks of threads, against the scalar codec: the same
// bytes, the same verdicts.
// SPDX-License-Identifier: Apache-2.0
#include "codec/splitzip_device.h"

#include <gtest/gtest.h>

#include "codec/splitzip_device_decode.h"
#include "codec/splitzip_device_encode.h"
#include "codec/splitzip_fixture.h"
#include "gpu/emulated_block.h"

namespace kvlane::splitzip {
namespace {

using namespace splitzip_fixture;

constexpr int kThreads = 4 * gpu::kWarpThreads;

Bytes encode_emulated(const Plane& plane, const Codebook* book, std::uint64_t seed,
                      std::size_t plane_shift = 0, std::size_t body_shift = 0) {
  const AlignedBytes values(plane.bytes.size(), plane_shift);
  std::copy(plane.bytes.begin(), plane.bytes.end(), values.span().begin());
  const AlignedBytes body(raw_body_bytes(plane.bytes.size()), body_shift);
  std::fill(body.span().begin(), body.span().end(), std::byte{0xA5});
  std::uint32_t bytes = 0;
  const DeviceEncodeTask task{
      plane.shape.type,     static_cast<std::uint32_t>(plane.shape.elements()),
      values.span().data(), book != nullptr ? book->exponents.data() : nullptr,
      body.span().data(),   &bytes};
  const auto shared = std::make_unique<DeviceEncodeShared>();
  std::memset(static_cast<void*>(shared.get()), 0xEE, sizeof(*shared));
  gpu::run_block(kThreads, seed,
                 [&](gpu::EmulatedThread& thread) { encode_plane(thread, task, *shared); });
  return {body.span().begin(), body.span().begin() + bytes};
}

DeviceVerdict decode_emulated(ByteView coded, const PlaneShape& shape, std::uint64_t seed,
                              Bytes& plane, std::size_t plane_shift = 0,
                              std::size_t body_shift = 0) {
  const AlignedBytes body(coded.size(), body_shift);
  std::copy(coded.begin(), coded.end(), body.span().begin());
  const AlignedBytes values(shape.bytes(), plane_shift);
  auto verdict = static_cast<DeviceVerdict>(99);
  const DeviceDecodeTask task{shape.type,           static_cast<std::uint32_t>(shape.elements()),
                              body.span().data(),   static_cast<std::uint32_t>(coded.size()),
                              values.span().data(), &verdict};
  const auto shared = std::make_unique<DeviceDecodeShared>();
  std::memset(static_cast<void*>(shared.get()), 0xEE, sizeof(*shared));
  const int warps = seed % 5 == 4 ? 12 : 2 << seed % 5;
  const auto rings = std::make_unique<DeviceDecodeRing[]>(static_cast<std::size_t>(warps));
  std::memset(static_cast<void*>(rings.get()), 0xEE,
              static_cast<std::size_t>(warps) * sizeof(DeviceDecodeRing));
  gpu::run_block(gpu::kWarpThreads * warps, seed, [&](gpu::EmulatedThread& thread) {
    decode_plane(thread, task, *shared, rings.get());
  });
  plane.assign(values.span().begin(), values.span().end());
  return verdict;
}

const Codec& scalar() { return **find_codec("splitzip", Isa::kScalar); }

void expect_same_emulated(const Plane& plane, const Codebook* book, std::uint64_t seed,
                          std::size_t plane_shift = 0, std::size_t body_shift = 0) {
  const Bytes expected = encode_exactly(scalar(), plane, book);
  ASSERT_EQ(encode_emulated(plane, book, seed, plane_shift, body_shift), expected);
  Bytes back;
  ASSERT_EQ(decode_emulated(expected, plane.shape, seed, back, plane_shift, body_shift),
            DeviceVerdict::kDecoded);
  ASSERT_EQ(back, plane.bytes);
}

TEST(SplitZipDevice, EveryLengthAroundTheEdges) {
  for (const ElementType type : kCoded) {
    for (const std::size_t n : {0,   1,    127,  128,  249,  255,  256,  257,  383,  384, 511,
                                512, 1023, 1024, 1025, 1279, 1281, 4095, 4096, 4097, 5003}) {
      expect_same_emulated(kv_plane(type, n, 0.01, static_cast<unsigned>(n) + 1), nullptr, n);
      if (HasFatalFailure()) FAIL() << n << " values of " << element_name(type);
    }
  }
}

TEST(SplitZipDevice, AnyShareOfEscapesAndAnyCodebook) {
  Random random(7);
  for (const ElementType type : kCoded) {
    for (const double share : {0.0, 0.001, 0.02, 0.2, 0.24, 0.26, 0.5, 1.0}) {
      for (const bool window : {true, false}) {
        const Plane plane = kv_plane(type, 6000, share, random(), window ? 0 : 9);
        const Codebook book = random_codebook(type, random, window);
        expect_same_emulated(plane, &book, random());
        expect_same_emulated(plane, nullptr, random());
        if (HasFatalFailure()) FAIL() << share << " of " << element_name(type);
      }
    }
  }
}

TEST(SplitZipDevice, SomeChunksRaw) {
  Random random(3);
  for (const ElementType type : kCoded) {
    Plane plane = kv_plane(type, 256 * 40, 0.003);
    const Codebook book = random_codebook(type, random, true);
    for (const std::size_t chunk : {3, 4, 5, 17, 39}) {
      for (std::size_t i = 0; i < 256; ++i) plane.set(256 * chunk + i, random());
    }
    expect_same_emulated(plane, &book, 5);
  }
}

TEST(SplitZipDevice, EveryAlignment) {
  for (const ElementType type : kCoded) {
    const Plane plane = kv_plane(type, 1400, 0.01);
    for (std::size_t shift = 0; shift < 17; ++shift) {
      expect_same_emulated(plane, nullptr, shift, shift, 0);
      expect_same_emulated(plane, nullptr, shift, 0, shift);
    }
  }
}

// So long that small blocks come around their rings.
TEST(SplitZipDevice, LongPlanes) {
  for (const ElementType type : kCoded) {
    for (const std::size_t n : {256 * 80, 256 * 77, 256 * 99 + 3, 256 * 133 + 200}) {
      const Plane plane = kv_plane(type, n, 0.01, static_cast<unsigned>(n));
      for (std::uint64_t seed = 0; seed < 5; ++seed) expect_same_emulated(plane, nullptr, seed);
      if (HasFatalFailure()) FAIL() << n << " values of " << element_name(type);
    }
  }
}

// Counts, tables and prefixes lie, far behind the beginning too.
TEST(SplitZipDevice, DamagedLongPlanes) {
  for (unsigned seed = 0; seed < 90; ++seed) {
    Random random(seed);
    const ElementType type = kCoded[seed % 3];
    const Plane plane = kv_plane(type, 256 * 60 + seed % 2 * 77, 0.01, seed);
    Bytes body = encode_exactly(scalar(), plane, nullptr);
    const Sections at = sections(type, plane.shape.elements(), 0);
    const std::size_t counts_and_table = body.size() - at.counts;
    body[at.counts + random() % counts_and_table] ^= std::byte(1 + random() % 255);
    Bytes expected, back;
    const Status status = decode_exactly(scalar(), body, plane.shape, expected);
    const DeviceVerdict verdict = decode_emulated(body, plane.shape, seed, back);
    ASSERT_EQ(verdict == DeviceVerdict::kDecoded, status.ok()) << seed << ": " << status.message();
    if (status.ok()) {
      ASSERT_EQ(back, expected) << seed;
    }
  }
}

TEST(SplitZipDevice, BodiesOfOtherEncoders) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    const ForeignBody foreign = foreign_body(kCoded[seed % 3], seed);
    Bytes back;
    ASSERT_EQ(decode_emulated(foreign.body, foreign.plane.shape, seed, back),
              DeviceVerdict::kDecoded);
    ASSERT_EQ(back, foreign.plane.bytes) << seed;
  }
}

TEST(SplitZipDevice, DamagedBodiesAreJudgedAsTheScalarDecoderDoes) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    Random random(seed);
    ForeignBody foreign = foreign_body(kCoded[seed % 3], seed / 10);
    const unsigned kind = random() % 8;
    if (kind == 0) foreign.body.resize(random() % (foreign.body.size() + 1));
    for (unsigned i = 0; kind != 0 && i < kind && !foreign.body.empty(); ++i) {
      // Half of the damage where the structure is.
      const std::size_t reach =
          random() % 2 == 0 ? std::min<std::size_t>(80, foreign.body.size()) : foreign.body.size();
      foreign.body[random() % reach] = std::byte(random());
    }
    Bytes expected, back;
    const Status status = decode_exactly(scalar(), foreign.body, foreign.plane.shape, expected);
    const DeviceVerdict verdict = decode_emulated(foreign.body, foreign.plane.shape, seed, back);
    ASSERT_EQ(verdict == DeviceVerdict::kDecoded, status.ok()) << seed << ": " << status.message();
    ASSERT_EQ(verdict == DeviceVerdict::kUnsupported, status.code() == Code::kUnsupported) << seed;
    if (status.ok()) {
      ASSERT_EQ(back, expected) << seed;
    }
  }
}

}  // namespace
}  // namespace kvlane::splitzip
