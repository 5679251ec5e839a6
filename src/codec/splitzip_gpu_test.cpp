// Kernels of `splitzip` on a GPU, against the scalar codec: the same bytes, the same verdicts, and
// nothing written beside. Skipped where no GPU is; there splitzip_device_test.cpp runs the same
// device code on emulated threads. Tests whose names begin with Small are for compute-sanitizer.
// SPDX-License-Identifier: Apache-2.0
#include "codec/splitzip_gpu.h"

#include <gtest/gtest.h>

#include "codec/gpu_codec_fixture.h"
#include "format/frame.h"

namespace kvlane::splitzip {
namespace {

using namespace gpu_codec_fixture;
using namespace splitzip_fixture;

constexpr ElementType kAll[] = {ElementType::kBf16, ElementType::kFp8E4m3, ElementType::kFp8E5m2,
                                ElementType::kFp16};

class SplitZipGpuTest : public gpu_fixture::GpuTest {};

PlaneCase case_of(Plane plane, std::optional<Codebook> book = std::nullopt) {
  return {plane.shape, std::move(plane.bytes), book};
}

Plane any_bits(ElementType type, std::size_t elements, unsigned seed) {
  Random random(seed);
  Plane plane = empty_plane(type, elements);
  for (std::size_t i = 0; i < elements; ++i) plane.set(i, random());
  return plane;
}

// Damage of one kind: cut off, or some bytes replaced, half of them where the structure is.
void damage(Bytes& body, Random& random) {
  const unsigned kind = random() % 8;
  if (kind == 0) body.resize(random() % (body.size() + 1));
  for (unsigned i = 0; kind != 0 && i < kind && !body.empty(); ++i) {
    const std::size_t reach =
        random() % 2 == 0 ? std::min<std::size_t>(80, body.size()) : body.size();
    body[random() % reach] = std::byte(random());
  }
}

std::vector<BodyCase> damaged_bodies(ElementType type, unsigned count) {
  std::vector<BodyCase> cases;
  for (unsigned seed = 0; seed < count; ++seed) {
    Random random(seed);
    ForeignBody foreign = foreign_body(type, seed / 10);
    damage(foreign.body, random);
    cases.push_back({foreign.plane.shape, std::move(foreign.body)});
  }
  return cases;
}

TEST_F(SplitZipGpuTest, SmallLengths) {
  for (const ElementType type : kAll) {
    std::vector<PlaneCase> cases;
    for (const std::size_t n : {0, 1, 127, 129, 255, 256, 257, 1023, 1024, 1025, 2563}) {
      const bool coded = type != ElementType::kFp16;
      cases.push_back(case_of(coded ? kv_plane(type, n, 0.01, static_cast<unsigned>(n) + 1)
                                    : any_bits(type, n, 5)));
    }
    expect_same<SplitZipGpu>(stream(), cases);
    if (HasFatalFailure()) FAIL() << element_name(type);
  }
}

TEST_F(SplitZipGpuTest, SmallDamage) {
  for (const ElementType type : kCoded) {
    EXPECT_GT(expect_same_verdicts<SplitZipGpu>(stream(), damaged_bodies(type, 60)), 20);
  }
}

TEST_F(SplitZipGpuTest, EveryLengthAroundTheEdges) {
  for (const ElementType type : kAll) {
    std::vector<PlaneCase> cases;
    for (const std::size_t n : {0,    1,    2,    127,  128,   129,   249,   255,   256,  257,
                                383,  384,  511,  512,  1023,  1024,  1025,  1279,  1281, 4095,
                                4096, 4097, 5003, 8191, 16384, 16385, 65535, 65536, 65537}) {
      const bool coded = type != ElementType::kFp16;
      cases.push_back(case_of(coded ? kv_plane(type, n, 0.01, static_cast<unsigned>(n) + 1)
                                    : any_bits(type, n, 5)));
    }
    expect_same<SplitZipGpu>(stream(), cases);
    if (HasFatalFailure()) FAIL() << element_name(type);
  }
}

TEST_F(SplitZipGpuTest, AnyShareOfEscapesAndAnyCodebook) {
  Random random(7);
  for (const ElementType type : kCoded) {
    std::vector<PlaneCase> cases;
    for (const double share : {0.0, 0.001, 0.02, 0.2, 0.24, 0.26, 0.4, 0.5, 0.8, 1.0}) {
      for (const bool window : {true, false}) {
        for (const std::size_t n : {6000, 40000}) {
          const Plane plane = kv_plane(type, n, share, random(), window ? 0 : 9);
          cases.push_back(case_of(plane, random_codebook(type, random, window)));
          cases.push_back(case_of(plane));
        }
      }
    }
    expect_same<SplitZipGpu>(stream(), cases);
    if (HasFatalFailure()) FAIL() << element_name(type);
  }
}

// Also more escapes in a warp's run than it has shared memory for.
TEST_F(SplitZipGpuTest, SomeChunksRaw) {
  Random random(3);
  for (const ElementType type : kCoded) {
    std::vector<PlaneCase> cases;
    for (const unsigned every : {2, 3, 7, 13, 40}) {
      Plane plane = kv_plane(type, 256 * 200 + 77, 0.003, every);
      for (std::size_t i = 0; i < plane.shape.elements(); ++i) {
        if (i / 256 % every == 1) plane.set(i, random());
      }
      cases.push_back(case_of(plane, random_codebook(type, random, true)));
      cases.push_back(case_of(plane));
    }
    expect_same<SplitZipGpu>(stream(), cases);
  }
}

TEST_F(SplitZipGpuTest, EveryAlignment) {
  for (const ElementType type : kAll) {
    std::vector<PlaneCase> cases;
    for (std::size_t shift = 0; shift < 33; ++shift) {
      const bool coded = type != ElementType::kFp16;
      PlaneCase one = case_of(coded ? kv_plane(type, 5000, 0.01) : any_bits(type, 5000, 1));
      one.plane_shift = shift;
      cases.push_back(one);
      one.body_shift = 32 - shift;
      cases.push_back(one);
      one.plane_shift = 0;
      cases.push_back(one);
    }
    expect_same<SplitZipGpu>(stream(), cases);
    if (HasFatalFailure()) FAIL() << element_name(type);
  }
}

// NaN with all payloads, infinities, both zeros: all bits that there are.
TEST_F(SplitZipGpuTest, EveryValue) {
  for (const ElementType type : kAll) {
    const std::size_t values = std::size_t{1} << (8 * element_bytes(type));
    Plane all = empty_plane(type, std::max<std::size_t>(values, 4096));
    for (std::size_t i = 0; i < all.shape.elements(); ++i) all.set(i, static_cast<unsigned>(i));
    Plane scattered = all;
    for (std::size_t i = 0; i < all.shape.elements(); ++i) {
      scattered.set(i, static_cast<unsigned>(i * 40503));
    }
    expect_same<SplitZipGpu>(stream(), {case_of(all), case_of(scattered)});
  }
}

// Those of a layer of a long prompt.
TEST_F(SplitZipGpuTest, ManyPlanesInOneLaunch) {
  for (const ElementType type : kCoded) {
    std::vector<PlaneCase> cases;
    for (unsigned i = 0; i < 300; ++i) {
      cases.push_back(case_of(kv_plane(type, 64 * 8 * (i % 7 == 0 ? 80 : 128), 0.003, i % 5)));
    }
    expect_same<SplitZipGpu>(stream(), cases);
  }
}

TEST_F(SplitZipGpuTest, TheLargestPlane) {
  Plane plane = kv_plane(ElementType::kBf16, 1 << 20, 0.003);
  const Bytes part = plane.bytes;
  while (plane.bytes.size() < 2 * kPlaneElementsMax) {
    plane.bytes.insert(plane.bytes.end(), part.begin(), part.end());
  }
  plane.shape = shape_of(ElementType::kBf16, kPlaneElementsMax);
  expect_same<SplitZipGpu>(stream(), {case_of(std::move(plane))});
}

TEST_F(SplitZipGpuTest, TheSameBytesEveryTime) {
  std::vector<PlaneCase> cases;
  for (unsigned i = 0; i < 40; ++i) {
    cases.push_back(case_of(kv_plane(kCoded[0], 64 * 8 * 128, 0.02, i)));
  }
  const auto first = encode_all<SplitZipGpu>(stream(), cases, DeviceBytes::Around::kPoison);
  for (int run = 0; run < 10; ++run) {
    ASSERT_TRUE(encode_all<SplitZipGpu>(stream(), cases, DeviceBytes::Around::kPoison) == first);
  }
}

TEST_F(SplitZipGpuTest, BodiesOfOtherEncoders) {
  for (const ElementType type : kCoded) {
    std::vector<BodyCase> cases;
    std::vector<Bytes> planes;
    for (unsigned seed = 0; seed < 200; ++seed) {
      ForeignBody foreign = foreign_body(type, seed);
      cases.push_back({foreign.plane.shape, std::move(foreign.body), seed % 3, seed % 2});
      planes.push_back(std::move(foreign.plane.bytes));
    }
    const auto decoded = decode_all<SplitZipGpu>(stream(), cases, DeviceBytes::Around::kPoison);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      ASSERT_EQ(decoded[i].verdict, DeviceVerdict::kDecoded) << i;
      ASSERT_EQ(decoded[i].plane, planes[i]) << i;
    }
  }
}

TEST_F(SplitZipGpuTest, DamagedBodiesAreJudgedAsTheScalarDecoderDoes) {
  for (const ElementType type : kCoded) {
    EXPECT_GT(expect_same_verdicts<SplitZipGpu>(stream(), damaged_bodies(type, 2000)), 1000);
  }
}

TEST_F(SplitZipGpuTest, EveryPrefixAndEveryByteOfABody) {
  for (const ElementType type : kCoded) {
    const Plane plane = kv_plane(type, type == ElementType::kBf16 ? 700 : 1500, 0.01);
    const Bytes body = encode_exactly(**find_codec("splitzip", Isa::kScalar), plane, nullptr);
    ASSERT_TRUE(is_coded(body));
    std::vector<BodyCase> cases;
    for (std::size_t bytes = 0; bytes < body.size(); ++bytes) {
      cases.push_back({plane.shape, Bytes(body.begin(), body.begin() + std::ptrdiff_t(bytes))});
      for (const unsigned change : {0x01, 0x80, 0xFF}) {
        Bytes changed = body;
        changed[bytes] ^= std::byte(change);
        cases.push_back({plane.shape, std::move(changed)});
      }
    }
    Bytes longer = body;
    longer.push_back(std::byte{0});
    cases.push_back({plane.shape, longer});
    const std::size_t prefixes = body.size();
    EXPECT_GT(expect_same_verdicts<SplitZipGpu>(stream(), cases), static_cast<int>(prefixes));
  }
}

TEST_F(SplitZipGpuTest, RefusesWhatItCannotDo) {
  check(splitzip::encode_on_gpu(ElementType::kBf16, nullptr, 0, stream()));
  check(splitzip::decode_on_gpu(ElementType::kBf16, nullptr, 0, stream()));
  EXPECT_EQ(splitzip::encode_on_gpu(ElementType::kF32, nullptr, 1, stream()).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(splitzip::decode_on_gpu(ElementType::kF32, nullptr, 1, stream()).code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvlane::splitzip
