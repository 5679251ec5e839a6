// Device code of `splitzip:channel` on emulated blocks of threads, against the scalar codec: the
// same bytes, the same verdicts.
// SPDX-License-Identifier: Apache-2.0
#include "codec/channel_device.h"

#include <gtest/gtest.h>

#include "codec/channel_device_decode.h"
#include "codec/channel_device_encode.h"
#include "codec/channel_fixture.h"
#include "gpu/emulated_block.h"

namespace kvlane::channel {
namespace {

using splitzip_fixture::AlignedBytes;
using splitzip_fixture::decode_exactly;
using namespace channel_fixture;

constexpr int kThreads = 4 * gpu::kWarpThreads;

Bytes encode_emulated(const PlaneShape& shape, const Bytes& plane, std::uint64_t seed,
                      std::size_t plane_shift = 0, std::size_t body_shift = 0) {
  const AlignedBytes values(plane.size(), plane_shift);
  std::copy(plane.begin(), plane.end(), values.span().begin());
  const AlignedBytes body(raw_body_bytes(plane.size()), body_shift);
  std::fill(body.span().begin(), body.span().end(), std::byte{0xA5});
  std::uint32_t bytes = 0;
  const DeviceEncodeTask task{shape, values.span().data(), body.span().data(), &bytes};
  const auto shared = std::make_unique<DeviceEncodeShared>();
  std::memset(static_cast<void*>(shared.get()), 0xEE, sizeof(*shared));
  gpu::run_block(kThreads, seed,
                 [&](gpu::EmulatedThread& thread) { encode_plane(thread, task, *shared); });
  return {body.span().begin(), body.span().begin() + bytes};
}

DeviceVerdict decode_emulated(const PlaneShape& shape, ByteView coded, std::uint64_t seed,
                              Bytes& plane, std::size_t plane_shift = 0,
                              std::size_t body_shift = 0) {
  const AlignedBytes body(coded.size(), body_shift);
  std::copy(coded.begin(), coded.end(), body.span().begin());
  const AlignedBytes values(shape.bytes(), plane_shift);
  auto verdict = static_cast<DeviceVerdict>(99);
  const DeviceDecodeTask task{shape, body.span().data(), static_cast<std::uint32_t>(coded.size()),
                              values.span().data(), &verdict};
  const auto shared = std::make_unique<DeviceDecodeShared>();
  std::memset(static_cast<void*>(shared.get()), 0xEE, sizeof(*shared));
  gpu::run_block(kThreads, seed,
                 [&](gpu::EmulatedThread& thread) { decode_plane(thread, task, *shared); });
  plane.assign(values.span().begin(), values.span().end());
  return verdict;
}

void expect_same_emulated(const PlaneShape& shape, double noise, unsigned seed,
                          std::size_t plane_shift = 0, std::size_t body_shift = 0) {
  const Bytes plane = kv_plane(shape, noise, seed);
  const Bytes expected = encode_scalar(shape, plane);
  ASSERT_EQ(encode_emulated(shape, plane, seed, plane_shift, body_shift), expected);
  Bytes back;
  ASSERT_EQ(decode_emulated(shape, expected, seed, back, plane_shift, body_shift),
            DeviceVerdict::kDecoded);
  ASSERT_EQ(back, plane);
}

TEST(ChannelDevice, ShapesOfModelsAndOddOnes) {
  const int shapes[][3] = {{0, 64, 64},  {1, 0, 64},   {1, 1, 1},    {1, 5, 3},   {1, 64, 64},
                           {2, 64, 64},  {8, 64, 128}, {2, 63, 64},  {3, 65, 96}, {1, 130, 80},
                           {1, 64, 256}, {2, 17, 130}, {1, 200, 63}, {5, 4, 8},   {1, 64, 72}};
  unsigned seed = 1;
  for (const auto& [heads, rows, channels] : shapes) {
    for (const double noise : {0.0, 0.01}) {
      expect_same_emulated({ElementType::kBf16, heads, rows, channels}, noise, ++seed);
      if (HasFatalFailure()) FAIL() << heads << " x " << rows << " x " << channels;
    }
  }
}

TEST(ChannelDevice, AnyShareOfNoise) {
  for (const double noise : {0.03, 0.1, 0.2, 0.25, 0.3, 0.35, 0.5, 1.0}) {
    expect_same_emulated({ElementType::kBf16, 2, 64, 128}, noise, 9);
    expect_same_emulated({ElementType::kBf16, 2, 40, 48}, noise, 9);
    if (HasFatalFailure()) FAIL() << noise;
  }
}

TEST(ChannelDevice, OtherTypesAreRaw) {
  for (const ElementType type :
       {ElementType::kFp16, ElementType::kFp8E4m3, ElementType::kFp8E5m2}) {
    const PlaneShape shape{type, 2, 33, 48};
    const Bytes plane(shape.bytes(), std::byte{3});
    const Bytes expected = encode_scalar(shape, plane);
    EXPECT_EQ(encode_emulated(shape, plane, 1), expected);
    Bytes back;
    EXPECT_EQ(decode_emulated(shape, expected, 1, back), DeviceVerdict::kDecoded);
    EXPECT_EQ(back, plane);
  }
}

TEST(ChannelDevice, EveryAlignment) {
  for (std::size_t shift = 0; shift < 17; ++shift) {
    expect_same_emulated({ElementType::kBf16, 1, 64, 64}, 0.01, 3, shift, 0);
    expect_same_emulated({ElementType::kBf16, 1, 64, 64}, 0.01, 3, 0, shift);
  }
}

TEST(ChannelDevice, DamagedBodiesAreJudgedAsTheScalarDecoderDoes) {
  const int shapes[][3] = {{1, 64, 64}, {1, 13, 40}, {2, 64, 128}, {1, 66, 64}};
  int refused = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    Random random(seed);
    const auto& [heads, rows, channels] = shapes[seed % 4];
    const PlaneShape shape{ElementType::kBf16, heads, rows, channels};
    Bytes body = encode_scalar(shape, kv_plane(shape, 0.02, seed));
    const Sections at = sections(shape);
    if (seed % 16 == 15) body.resize(random() % (body.size() + 1));
    for (unsigned i = 0; seed % 16 != 15 && i < 1 + seed % 3; ++i) {
      const std::size_t where[] = {0, at.counts, at.codes, at.tails, random() % body.size()};
      const std::size_t place = where[random() % 5] + random() % 16;
      if (place < body.size()) body[place] = std::byte(random());
    }
    Bytes expected, back;
    const Status status = decode_exactly(scalar(), body, shape, expected);
    const DeviceVerdict verdict = decode_emulated(shape, body, seed, back);
    ASSERT_EQ(verdict == DeviceVerdict::kDecoded, status.ok()) << seed << ": " << status.message();
    ASSERT_EQ(verdict == DeviceVerdict::kUnsupported, status.code() == Code::kUnsupported) << seed;
    refused += status.ok() ? 0 : 1;
    if (status.ok()) {
      ASSERT_EQ(back, expected) << seed;
    }
  }
  EXPECT_GT(refused, 200);
}

}  // namespace
}  // namespace kvlane::channel
