// All tiers seal the same bytes of pages for attention on codes and open the same rows.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <iterator>

#include "quant/hack_format.h"
#include "quant/linear_fixture.h"

namespace kvlane {
namespace {

using linear_fixture::Kind;
using linear_fixture::kKinds;
using linear_fixture::Poisoned;
using linear_fixture::RowMaker;
using linear_fixture::Rows;
using linear_fixture::Slab;

// Every axis, width and type; floats with all their bits come of mixing.
constexpr const char* kNames[] = {"hack:k=2,v=2",
                                  "hack:k=4,v=4",
                                  "hack:k=8,v=8",
                                  "hack:k=4,v=2,mix=0",
                                  "hack:k=2,v=8,meta=bf16",
                                  "hack:k=8,v=4,mix=0,meta=bf16",
                                  "hack:k=2,v=2,p=32",
                                  "hack:k=4,v=4,p=64,mix=1",
                                  "hack:k=8,v=8,p=128,mix=1",
                                  "hack:k=8,v=2,p=64,mix=1,meta=bf16",
                                  "hack:k=2,v=8,p=128,meta=bf16",
                                  "hack:k=4,v=4,p=32,mix=1,meta=bf16",
                                  "hack:k=2,v=2,p=128,round=sr",
                                  "hack:k=4,v=8,p=64,round=sr,mix=1",
                                  "hack:k=8,v=4,p=32,round=sr,mix=1,meta=bf16"};

// Runs of each length to mix, partitions that end short, and both limits.
constexpr int kHeadDims[] = {16, 48, 64, 80, 96, 112, 128, 192, 208, 256};

constexpr SlabPlace kPlace = {3, 64 * 1021};

std::shared_ptr<const KvFormat> format_of(const char* name, int kv_heads, int head_dim, Isa isa) {
  KvFormatContext context;
  context.shape = {4, kv_heads, head_dim, ElementType::kBf16};
  context.isa = isa;
  auto result = make_kv_format(name, context);
  EXPECT_TRUE(result.ok()) << name << ": " << result.status().message();
  return *result;
}

// Magnitudes that fp16 can be the metadata of after mixing, too: 2^10 at most.
std::uint16_t moderate(std::uint16_t bits) {
  constexpr std::uint16_t kMost = 0x4480;
  return (bits & 0x7fffU) <= kMost ? bits : static_cast<std::uint16_t>((bits & 0x807fU) | 0x4400U);
}

struct SealedSlab {
  Status status;
  Slab slab;
};
SealedSlab seal(const KvFormat& format, const Rows& rows) {
  Poisoned<std::byte> slab(format.slab_bytes());
  Status status = format.seal(kPlace, rows.data(), slab.data());
  EXPECT_TRUE(slab.intact_beyond()) << format.name();
  return {std::move(status), slab.values()};
}

class HackTiers : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) {
      GTEST_SKIP() << "this processor lacks " << isa_name(GetParam());
    }
  }
};

// Those that have the scalar code for a judge.
class HackFastTiers : public HackTiers {};

const auto kTierName = [](const auto& of) { return std::string(isa_name(of.param)); };
INSTANTIATE_TEST_SUITE_P(All, HackTiers, ::testing::ValuesIn(kAllIsas), kTierName);
INSTANTIATE_TEST_SUITE_P(Fast, HackFastTiers,
                         ::testing::Values(Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16), kTierName);

void expect_the_same(const KvFormat& format, const KvFormat& judge, Kind kind) {
  RowMaker maker(11);
  Rows rows = maker.slab(kind, judge.shape());
  for (std::uint16_t& x : rows) x = moderate(x);
  const SealedSlab expected = seal(judge, rows);
  const SealedSlab sealed = seal(format, rows);
  ASSERT_TRUE(expected.status.ok()) << expected.status.message();
  ASSERT_TRUE(sealed.status.ok()) << sealed.status.message();
  ASSERT_TRUE(sealed.slab == expected.slab);
  ASSERT_TRUE(linear_fixture::open(format, sealed.slab) ==
              linear_fixture::open(judge, sealed.slab));
}

TEST_P(HackFastTiers, SealAndOpenAsTheScalarCode) {
  int turn = 0;
  for (const char* name : kNames) {
    for (const int head_dim : kHeadDims) {
      const auto judge = format_of(name, 2, head_dim, Isa::kScalar);
      const auto format = format_of(name, 2, head_dim, GetParam());
      // Each name has each kind, not with every head_dim.
      for (const Kind kind : {Kind::kModel, kKinds[turn++ % std::size(kKinds)]}) {
        expect_the_same(*format, *judge, kind);
        ASSERT_FALSE(HasFatalFailure())
            << name << ", head_dim " << head_dim << ", kind " << static_cast<int>(kind);
      }
    }
  }
}

TEST_P(HackFastTiers, OpenAnyBytesAsTheScalarCode) {
  std::mt19937 engine(12);
  for (const char* name : kNames) {
    for (const int head_dim : kHeadDims) {
      const auto judge = format_of(name, 1, head_dim, Isa::kScalar);
      const auto format = format_of(name, 1, head_dim, GetParam());
      for (int round = 0; round < 2; ++round) {
        Slab slab(judge->slab_bytes());
        for (std::byte& byte : slab) byte = static_cast<std::byte>(engine());
        ASSERT_TRUE(linear_fixture::open(*format, slab) == linear_fixture::open(*judge, slab))
            << name << ", head_dim " << head_dim;
      }
    }
  }
}

TEST_P(HackFastTiers, RefuseRowsAsTheScalarCode) {
  for (const char* name : kNames) {
    const auto judge = format_of(name, 1, 80, Isa::kScalar);
    const auto format = format_of(name, 1, 80, GetParam());
    // Around what each type of metadata can say, one value in a page of zeros.
    for (const float x : {16384.0F, -16512.0F, 65280.0F, -65536.0F, 1e30F, -1.3e30F, 3e38F}) {
      for (const std::size_t at : {0U, 79U, 64U * 80 - 1, 64U * 80, 2U * 64 * 80 - 1}) {
        Rows rows(std::size_t{2} * 64 * 80);
        rows[at] = to_bf16(x).bits;
        const SealedSlab expected = seal(*judge, rows);
        const SealedSlab sealed = seal(*format, rows);
        ASSERT_EQ(sealed.status.ok(), expected.status.ok()) << name << ", " << x;
        ASSERT_EQ(sealed.status.message(), expected.status.message()) << name << ", " << x;
        if (sealed.status.ok()) {
          ASSERT_TRUE(sealed.slab == expected.slab) << name << ", " << x;
        }
      }
    }
  }
}

// Sums that overflow, and differences of those: no value is left that could be compared with a
// limit.
TEST_P(HackTiers, RefuseRowsWhoseMixIsNotANumber) {
  const std::uint16_t most = to_bf16(3e38F).bits;
  const std::uint16_t least = most | 0x8000U;
  const std::uint16_t run[16] = {most, most, least, least, most, least, least, most,
                                 most, most, most,  most,  most, least, most,  least};
  const auto format = format_of("hack:k=2,v=2,meta=bf16", 1, 16, GetParam());
  Rows rows;
  for (int token = 0; token < 2 * kBlockTokens; ++token) rows.insert(rows.end(), run, run + 16);
  EXPECT_FALSE(seal(*format, rows).status.ok());
}

// The last code and a random number next to 1 round to the code after it, once in 65536 times. Rows
// of first and last codes read as they are.
TEST_P(HackTiers, NoDrawGoesBeyondTheLastCode) {
  constexpr int kHeads = 8;
  const auto format = format_of("hack:k=8,v=8,p=64,round=sr", kHeads, 256, GetParam());
  Rows rows(std::size_t{kHeads} * 2 * kBlockTokens * 256);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = to_bf16((i + i / 256) % 4 == 0 ? 0.0F : 255.0F).bits;
  }
  const SealedSlab sealed = seal(*format, rows);
  ASSERT_TRUE(sealed.status.ok()) << sealed.status.message();
  EXPECT_TRUE(linear_fixture::open(*format, sealed.slab) == rows);
}

// Planes that no name says, whose partitions are no whole vectors, and K by channel.
TEST_P(HackFastTiers, LeaveOtherPlanesToTheScalarCode) {
  using hack::Axis;
  using hack::Part;
  const hack::Plane others[] = {{2, Axis::kToken, 24, hack::Meta::kFp16},
                                {4, Axis::kChannel, 16, hack::Meta::kFp16}};
  for (const hack::Plane& plane : others) {
    const Part part = plane.axis == Axis::kToken ? Part::kKeys : Part::kValues;
    EXPECT_EQ(hack::seal_kernel(plane, part, hack::Rounding::kNearest, GetParam()),
              hack::seal_scalar);
    EXPECT_EQ(hack::open_kernel(plane, part, GetParam()), hack::open_scalar);
  }
  const hack::Plane by_channel{2, Axis::kChannel, 64, hack::Meta::kFp16};
  EXPECT_EQ(hack::open_kernel(by_channel, Part::kKeys, GetParam()), hack::open_scalar);
}

// Every way to round, and each NaN.
TEST_P(HackTiers, NarrowToBf16) {
  constexpr int kHeadDim = 256;
  for (const std::uint32_t low : {0U, 1U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
    for (std::uint32_t first = 0; first < 0x10000; first += kBlockTokens * kHeadDim) {
      alignas(64) float values[kBlockTokens * kHeadDim];
      Poisoned<std::uint16_t> rows(std::size_t{kBlockTokens} * kHeadDim);
      for (int i = 0; i < kBlockTokens * kHeadDim; ++i) {
        values[i] = std::bit_cast<float>((first + i) << 16 | low);
      }
      hack::row_kernels(GetParam()).narrow(values, kHeadDim, false, rows.data());
      for (int i = 0; i < kBlockTokens * kHeadDim; ++i) {
        const auto x = std::bit_cast<float>((first + i) << 16 | low);
        ASSERT_EQ(rows.data()[i], x == x ? to_bf16(x).bits : hack::kNanBf16) << x;
      }
    }
  }
}

}  // namespace
}  // namespace kvlane
