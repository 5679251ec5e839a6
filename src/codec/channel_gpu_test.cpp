// Kernels of `splitzip:channel` on a GPU, against the scalar codec: the same bytes, the same
// verdicts, and nothing written beside. Skipped where no GPU is; there channel_device_test.cpp runs
// the same device code on emulated threads. Tests whose names begin with Small are for
// compute-sanitizer.
// SPDX-License-Identifier: Apache-2.0
#include "codec/channel_gpu.h"

#include <gtest/gtest.h>

#include "codec/channel.h"
#include "codec/channel_fixture.h"
#include "codec/gpu_codec_fixture.h"
#include "format/frame.h"

namespace kvlane::channel {
namespace {

using namespace gpu_codec_fixture;
using channel_fixture::encode_scalar;
using channel_fixture::kv_plane;
using splitzip_fixture::Random;

class ChannelGpuTest : public gpu_fixture::GpuTest {};

PlaneShape bf16_shape(int heads, int rows, int channels) {
  return {ElementType::kBf16, heads, rows, channels};
}

PlaneCase case_of(const PlaneShape& shape, double noise, unsigned seed) {
  return {shape, kv_plane(shape, noise, seed)};
}

std::vector<BodyCase> damaged_bodies(unsigned count) {
  const PlaneShape shapes[] = {bf16_shape(1, 64, 64), bf16_shape(1, 13, 40), bf16_shape(2, 64, 128),
                               bf16_shape(1, 66, 64)};
  std::vector<BodyCase> cases;
  for (unsigned seed = 0; seed < count; ++seed) {
    Random random(seed);
    const PlaneShape& shape = shapes[seed % 4];
    Bytes body = encode_scalar(shape, kv_plane(shape, 0.02, seed));
    const channel::Sections at = channel::sections(shape);
    if (seed % 16 == 15) body.resize(random() % (body.size() + 1));
    for (unsigned i = 0; seed % 16 != 15 && i < 1 + seed % 3; ++i) {
      const std::size_t where[] = {0, at.counts, at.codes, at.tails, random() % body.size()};
      const std::size_t place = where[random() % 5] + random() % 16;
      if (place < body.size()) body[place] = std::byte(random());
    }
    cases.push_back({shape, std::move(body)});
  }
  return cases;
}

TEST_F(ChannelGpuTest, SmallShapes) {
  std::vector<PlaneCase> cases;
  unsigned seed = 1;
  for (const PlaneShape& shape :
       {bf16_shape(0, 64, 64), bf16_shape(1, 0, 64), bf16_shape(1, 1, 1), bf16_shape(1, 64, 64),
        bf16_shape(2, 63, 64), bf16_shape(1, 65, 96), bf16_shape(2, 17, 130)}) {
    cases.push_back(case_of(shape, 0.01, ++seed));
  }
  cases.push_back(case_of(bf16_shape(1, 64, 128), 0.25, ++seed));
  expect_same<ChannelGpu>(stream(), cases);
}

TEST_F(ChannelGpuTest, SmallDamage) {
  EXPECT_GT(expect_same_verdicts<ChannelGpu>(stream(), damaged_bodies(60)), 20);
}

TEST_F(ChannelGpuTest, ShapesOfModelsAndOddOnes) {
  std::vector<PlaneCase> cases;
  unsigned seed = 1;
  for (const PlaneShape& shape :
       {bf16_shape(0, 64, 64),  bf16_shape(1, 0, 64),   bf16_shape(1, 1, 1),
        bf16_shape(1, 5, 3),    bf16_shape(1, 64, 64),  bf16_shape(2, 64, 64),
        bf16_shape(8, 64, 128), bf16_shape(2, 63, 64),  bf16_shape(3, 65, 96),
        bf16_shape(1, 130, 80), bf16_shape(1, 64, 256), bf16_shape(2, 17, 130),
        bf16_shape(1, 200, 63), bf16_shape(5, 4, 8),    bf16_shape(1, 64, 72),
        bf16_shape(4, 64, 192), bf16_shape(1, 64, 576), bf16_shape(29, 64, 64),
        bf16_shape(3, 63, 257), bf16_shape(1, 2000, 64)}) {
    for (const double noise : {0.0, 0.01}) cases.push_back(case_of(shape, noise, ++seed));
  }
  expect_same<ChannelGpu>(stream(), cases);
}

TEST_F(ChannelGpuTest, AnyShareOfNoise) {
  std::vector<PlaneCase> cases;
  for (const double noise : {0.001, 0.03, 0.1, 0.2, 0.25, 0.3, 0.35, 0.5, 1.0}) {
    cases.push_back(case_of(bf16_shape(2, 64, 128), noise, 9));
    cases.push_back(case_of(bf16_shape(2, 40, 48), noise, 9));
    cases.push_back(case_of(bf16_shape(8, 64, 128), noise, 10));
  }
  expect_same<ChannelGpu>(stream(), cases);
}

TEST_F(ChannelGpuTest, OtherTypesAreRaw) {
  for (const ElementType type :
       {ElementType::kFp16, ElementType::kFp8E4m3, ElementType::kFp8E5m2}) {
    const PlaneShape shape{type, 2, 33, 49};
    expect_same<ChannelGpu>(stream(), {{shape, Bytes(shape.bytes(), std::byte{3})}});
  }
}

TEST_F(ChannelGpuTest, EveryAlignment) {
  std::vector<PlaneCase> cases;
  for (std::size_t shift = 0; shift < 33; ++shift) {
    for (const PlaneShape& shape :
         {bf16_shape(1, 64, 64), bf16_shape(2, 64, 128), bf16_shape(1, 64, 68)}) {
      PlaneCase one = case_of(shape, 0.01, 3);
      one.plane_shift = shift;
      cases.push_back(one);
      one.body_shift = 32 - shift;
      cases.push_back(one);
      one.plane_shift = 0;
      cases.push_back(one);
    }
  }
  expect_same<ChannelGpu>(stream(), cases);
}

TEST_F(ChannelGpuTest, EveryValue) {
  const PlaneShape shape = bf16_shape(8, 64, 128);
  Bytes all(shape.bytes()), scattered(shape.bytes());
  for (std::size_t i = 0; i < shape.elements(); ++i) {
    const auto value = static_cast<std::uint16_t>(i), other = static_cast<std::uint16_t>(i * 40503);
    std::memcpy(all.data() + 2 * i, &value, 2);
    std::memcpy(scattered.data() + 2 * i, &other, 2);
  }
  expect_same<ChannelGpu>(stream(), {{shape, all}, {shape, scattered}});
}

TEST_F(ChannelGpuTest, ManyPlanesInOneLaunch) {
  std::vector<PlaneCase> cases;
  for (unsigned i = 0; i < 300; ++i) {
    cases.push_back(
        case_of(i % 7 == 0 ? bf16_shape(8, 50, 80) : bf16_shape(8, 64, 128), 0.003, i % 5));
  }
  expect_same<ChannelGpu>(stream(), cases);
}

TEST_F(ChannelGpuTest, TheLargestPlane) {
  const Bytes part = kv_plane(bf16_shape(1, 64, 1024), 0.003, 1);
  PlaneCase one{bf16_shape(1024, 64, 1024), {}};
  ASSERT_EQ(one.shape.elements(), kPlaneElementsMax);
  while (one.plane.size() < one.shape.bytes()) {
    one.plane.insert(one.plane.end(), part.begin(), part.end());
  }
  expect_same<ChannelGpu>(stream(), {one});
}

TEST_F(ChannelGpuTest, TheSameBytesEveryTime) {
  std::vector<PlaneCase> cases;
  for (unsigned i = 0; i < 40; ++i) cases.push_back(case_of(bf16_shape(8, 64, 128), 0.02, i));
  const auto first = encode_all<ChannelGpu>(stream(), cases, DeviceBytes::Around::kPoison);
  for (int run = 0; run < 10; ++run) {
    ASSERT_TRUE(encode_all<ChannelGpu>(stream(), cases, DeviceBytes::Around::kPoison) == first);
  }
}

TEST_F(ChannelGpuTest, DamagedBodiesAreJudgedAsTheScalarDecoderDoes) {
  EXPECT_GT(expect_same_verdicts<ChannelGpu>(stream(), damaged_bodies(2000)), 1000);
}

TEST_F(ChannelGpuTest, EveryPrefixAndEveryByteOfABody) {
  const PlaneShape shape = bf16_shape(1, 21, 30);
  const Bytes body = encode_scalar(shape, kv_plane(shape, 0.02, 1));
  ASSERT_LT(body.size(), shape.bytes());
  std::vector<BodyCase> cases;
  for (std::size_t bytes = 0; bytes < body.size(); ++bytes) {
    cases.push_back({shape, Bytes(body.begin(), body.begin() + std::ptrdiff_t(bytes))});
    for (const unsigned change : {0x01, 0x80, 0xFF}) {
      Bytes changed = body;
      changed[bytes] ^= std::byte(change);
      cases.push_back({shape, std::move(changed)});
    }
  }
  Bytes longer = body;
  longer.push_back(std::byte{0});
  cases.push_back({shape, longer});
  const std::size_t prefixes = body.size();
  EXPECT_GT(expect_same_verdicts<ChannelGpu>(stream(), cases), static_cast<int>(prefixes));
}

TEST_F(ChannelGpuTest, LaunchesNothing) {
  check(channel::encode_on_gpu(nullptr, 0, stream()));
  check(channel::decode_on_gpu(nullptr, 0, stream()));
}

}  // namespace
}  // namespace kvlane::channel
