// Slabs of `hack`: names, sizes, what is refused; every tier gives the same bytes and the same
// rows. What values become is tested in hack_values_test.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cpu/tiers_fixture.h"
#include "quant/hack_fixture.h"

namespace kvlane::hack_fixture {
namespace {

using tiers_fixture::vector_tiers;

std::string canonical(const std::string& text) {
  return format_of(text, shape_of(1, 128), Isa::kScalar)->name();
}

std::string refusal(const std::string& text, const KvShape& shape = shape_of(1, 128)) {
  KvFormatContext context;
  context.shape = shape;
  const auto result = make_kv_format(text, context);
  EXPECT_FALSE(result.ok()) << text;
  return result.ok() ? "" : result.status().message();
}

TEST(HackFormat, NamesSayWhatIsNotUsual) {
  EXPECT_EQ(canonical("hack"), "hack:k=2,v=2");
  EXPECT_EQ(canonical("hack:v=4,k=8"), "hack:k=8,v=4");
  EXPECT_EQ(canonical("hack:mix=1,meta=fp16,compute=int8"), "hack:k=2,v=2");
  EXPECT_EQ(canonical("hack:meta=bf16,mix=0"), "hack:k=2,v=2,mix=0,meta=bf16");
  EXPECT_EQ(canonical("hack:paper"), "hack:k=2,v=2,p=64");
  EXPECT_EQ(canonical("hack:p=64,mix=0,round=rn"), "hack:k=2,v=2,p=64");
  EXPECT_EQ(canonical("hack:round=sr,p=32,mix=1,k=4"), "hack:k=4,v=2,p=32,round=sr,mix=1");
  EXPECT_EQ(canonical("hack:compute=dequantise"), "hack:k=2,v=2,compute=dequantise");
  EXPECT_EQ(canonical("hack:compute=bf16,p=32"), "hack:k=2,v=2,p=32,compute=bf16");
  EXPECT_EQ(canonical("hack:paper,sums=stored,compute=complete"),
            "hack:k=2,v=2,p=64,compute=complete");
  EXPECT_EQ(canonical("hack:p=32,compute=complete,sums=computed,diag=int8"),
            "hack:k=2,v=2,p=32,compute=complete,sums=computed,diag=int8");
  EXPECT_EQ(canonical("hack:recent=2,sink=1"), "hack:k=2,v=2,sink=1,recent=2");
  EXPECT_EQ(canonical("hack:paper,diag=int8,rqe=0,ktail=code"),
            "hack:k=2,v=2,p=64,ktail=code,rqe=0,diag=int8");
  EXPECT_EQ(canonical("hack:paper,diag=16,rqe=1,ktail=16"), "hack:k=2,v=2,p=64");
}

TEST(HackFormat, CanonicalNamesAreTheirOwn) {
  for (const char* name : kFormats) EXPECT_EQ(canonical(name), name);
}

TEST(HackFormat, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(refusal("hack:k=3"), "KV format 'hack': k is 2, 4 or 8, not '3'");
  EXPECT_EQ(refusal("hack:p=16"), "KV format 'hack': p is 32, 64 or 128, not '16'");
  EXPECT_EQ(refusal("hack:mix=2"), "KV format 'hack': mix is 0 or 1, not '2'");
  EXPECT_EQ(refusal("hack:compute=fp8"),
            "KV format 'hack': compute is int8, bf16, dequantise or complete, not 'fp8'");
  EXPECT_EQ(refusal("hack:compute=complete"),
            "KV format 'hack': compute=complete needs p=32, 64 or 128");
  EXPECT_EQ(refusal("hack:p=64,compute=complete,sums=none"),
            "KV format 'hack': sums is stored or computed, not 'none'");
  for (const char* name :
       {"hack:sums=stored", "hack:p=64,sums=computed", "hack:p=64,compute=bf16,sums=stored"}) {
    EXPECT_EQ(refusal(name), "KV format 'hack': sums needs compute=complete");
  }
  EXPECT_EQ(refusal("hack:axes=k"), "KV format 'hack' has no parameter 'axes'");
  for (const std::string key : {"round=sr", "ktail=code", "rqe=0", "diag=int8"}) {
    EXPECT_EQ(refusal("hack:" + key),
              "KV format 'hack': " + key.substr(0, key.find('=')) + " needs p=32, 64 or 128");
  }
  EXPECT_EQ(refusal("hack:p=64,diag=int8,compute=dequantise"),
            "KV format 'hack': diag=int8 needs compute=int8 or compute=complete");
  EXPECT_EQ(refusal("hack", {1, 1, 128, ElementType::kFp16}),
            "KV format 'hack' codes bf16 rows only");
  for (const int head_dim : {8, 72, 272}) {
    EXPECT_EQ(refusal("hack", shape_of(1, head_dim)),
              "KV format 'hack' takes a head_dim that is a multiple of 16 up to 256, not " +
                  std::to_string(head_dim));
  }
}

TEST(HackFormat, BitsAValueAreThoseOfTheSpecification) {
  const std::pair<const char*, double> expected[] = {
      {"hack", 2.375},  {"hack:k=8,v=4", 6.375}, {"hack:paper", 2.5},
      {"hack:p=32", 3}, {"hack:p=128", 2.375},   {"hack:p=64,k=8,v=2,round=sr", 5.5}};
  const KvShape shape = shape_of(3, 128);
  for (const auto& [name, bits] : expected) {
    const auto format = format_of(name, shape, Isa::kScalar);
    const double values = 2.0 * 3 * 64 * 128;
    EXPECT_EQ(8.0 * static_cast<double>(format->used_bytes({0, 0}, nullptr)) / values, bits)
        << name;
    EXPECT_EQ(format->slab_bytes(), format->used_bytes({0, 0}, nullptr)) << name;
  }
}

// Two sections of 224 bytes, each with 32 zeros behind it.
TEST(HackFormat, UsedBytesLeavePaddingOut) {
  const auto format = format_of("hack", shape_of(2, 48), Isa::kScalar);
  EXPECT_EQ(format->slab_bytes(), 2 * (2 * 8 * 2 * 48 + 2 * 256U));
  EXPECT_EQ(format->used_bytes({0, 0}, nullptr), 2 * (2 * 8 * 2 * 48 + 2 * 224U));
}

TEST(HackFormat, EveryByteIsWrittenAndAlwaysTheSame) {
  for (const char* name : kFormats) {
    for (const int head_dim : kHeadDims) {
      const KvShape shape = shape_of(2, head_dim);
      RowMaker maker(2);
      for (const Isa isa : kAllIsas) {
        if (!isa_supported(isa)) continue;
        const auto format = format_of(name, shape, isa);
        const Rows rows = in_range(*format, maker.slab(Kind::kModel, shape));
        ASSERT_EQ(seal(*format, rows, 0xa5), seal(*format, rows, 0x5a))
            << name << ", head_dim " << head_dim << ", " << isa_name(isa);
      }
    }
  }
}

TEST(HackFormat, TiersSealAndOpenAlike) {
  if (vector_tiers().empty()) GTEST_SKIP() << "this processor lacks AVX2";
  for (const char* name : kFormats) {
    for (const int head_dim : kHeadDims) {
      for (const Kind kind : kKinds) {
        const KvShape shape = shape_of(2, head_dim);
        const auto scalar = format_of(name, shape, Isa::kScalar);
        RowMaker maker(static_cast<unsigned>(head_dim));
        const Rows rows = in_range(*scalar, maker.slab(kind, shape));
        const Slab slab = seal(*scalar, rows);
        const Rows opened = open(*scalar, slab);
        for (const Isa isa : vector_tiers()) {
          const auto vectors = format_of(name, shape, isa);
          ASSERT_EQ(seal(*vectors, rows), slab) << name << ", head_dim " << head_dim << ", kind "
                                                << static_cast<int>(kind) << ", " << isa_name(isa);
          ASSERT_EQ(open(*vectors, slab), opened)
              << name << ", head_dim " << head_dim << ", kind " << static_cast<int>(kind) << ", "
              << isa_name(isa);
        }
      }
    }
  }
}

// Slabs from elsewhere may hold anything. Which NaN comes of numbers that are not finite is open.
TEST(HackFormat, TiersOpenAnyBytesAlike) {
  if (vector_tiers().empty()) GTEST_SKIP() << "this processor lacks AVX2";
  const auto is_nan = [](std::uint16_t x) { return (x & 0x7fffU) > 0x7f80U; };
  std::mt19937 engine(3);
  for (const char* name : kFormats) {
    for (const int head_dim : {16, 80, 128}) {
      const KvShape shape = shape_of(2, head_dim);
      const auto scalar = format_of(name, shape, Isa::kScalar);
      for (int round = 0; round < 10; ++round) {
        Slab slab(scalar->slab_bytes());
        for (std::byte& b : slab) b = std::byte(engine() & (round % 2 == 0 ? 0xffU : 0xbbU));
        const Rows expected = open(*scalar, slab);
        for (const Isa isa : vector_tiers()) {
          const Rows rows = open(*format_of(name, shape, isa), slab);
          for (std::size_t i = 0; i < rows.size(); ++i) {
            ASSERT_TRUE(rows[i] == expected[i] || (is_nan(rows[i]) && is_nan(expected[i])))
                << name << ", head_dim " << head_dim << ", value " << i << ", " << isa_name(isa);
          }
        }
      }
    }
  }
}

class HackRefusals : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) {
      GTEST_SKIP() << "this processor lacks " << isa_name(GetParam());
    }
  }

  // Of zeros with one value in them.
  std::string message(const char* name, std::size_t at, std::uint16_t bits) {
    const auto format = format_of(name, shape_, GetParam());
    Rows rows(4 * 64 * 80);
    rows[at] = bits;
    Poisoned<std::byte> slab(format->slab_bytes());
    return format->seal({3, 128}, rows.data(), slab.data()).message();
  }

  const KvShape shape_ = shape_of(2, 80);
};

INSTANTIATE_TEST_SUITE_P(Tiers, HackRefusals, ::testing::ValuesIn(kAllIsas),
                         [](const auto& of) { return std::string(isa_name(of.param)); });

TEST_P(HackRefusals, WhatIsNotFiniteByLayerHeadAndToken) {
  for (const char* name : kFormats) {
    EXPECT_EQ(message(name, 70 * 80, 0x7fc1),
              "V of layer 3, KV head 0, token 134 is nan: KV formats take finite numbers only");
    EXPECT_EQ(message(name, 4 * 64 * 80 - 1, 0xff80),
              "V of layer 3, KV head 1, token 191 is -inf: KV formats take finite numbers only");
    EXPECT_EQ(message(name, 0, 0x7f80),
              "K of layer 3, KV head 0, token 128 is inf: KV formats take finite numbers only");
  }
}

TEST_P(HackRefusals, WhatIsBeyondTheRange) {
  const std::string end = ", the largest that scales of this KV format hold";
  EXPECT_EQ(message("hack:paper", 79, 0xc780),
            "K of layer 3, KV head 0, token 128 is -65536, beyond 65504" + end);
  EXPECT_EQ(message("hack:mix=0", 70 * 80, 0x4681),
            "V of layer 3, KV head 0, token 134 is 16512, beyond 16384" + end);
  // Runs of 16 channels: the value is divided by 4.
  EXPECT_EQ(message("hack", 3 * 64 * 80, 0x4781),
            "V of layer 3, KV head 1, token 128 is 16512, beyond 16384" + end);
  EXPECT_EQ(message("hack:mix=0,meta=bf16", 2 * 64 * 80, 0x5b81),
            "K of layer 3, KV head 1, token 128 is 7.26205e+16, beyond 7.20576e+16" + end);
  EXPECT_EQ(message("hack:paper,meta=bf16", 0, 0x7181),
            "K of layer 3, KV head 0, token 128 is 1.27755e+30, beyond 1.26765e+30" + end);
}

TEST_P(HackRefusals, NothingAtTheEdgeOfTheRange) {
  for (const unsigned sign : {0x0000U, 0x8000U}) {
    const auto value = [&](unsigned bits) { return static_cast<std::uint16_t>(bits | sign); };
    EXPECT_EQ(message("hack:paper", 79, value(0x477f)), "");
    EXPECT_EQ(message("hack:mix=0", 79, value(0x4680)), "");
    EXPECT_EQ(message("hack", 79, value(0x4780)), "");
    EXPECT_EQ(message("hack:mix=0,meta=bf16", 79, value(0x5b80)), "");
    EXPECT_EQ(message("hack:paper,meta=bf16", 79, value(0x7180)), "");
  }
}

// Mixing a row such as this makes NaN where it would make infinities, and zeros elsewhere.
TEST_P(HackRefusals, WhatMixingMakesNan) {
  const auto format = format_of("hack:meta=bf16", shape_of(1, 16), GetParam());
  Rows rows(2 * 64 * 16);
  for (int i = 0; i < 8; ++i) {
    rows[5 * 16 + i] = i == 2 || i == 3 ? 0xff7f : 0x7f7f;
    rows[5 * 16 + 8 + i] = 0;
  }
  Poisoned<std::byte> slab(format->slab_bytes());
  const Status status = format->seal({3, 128}, rows.data(), slab.data());
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("K of layer 3, KV head 0, token 133 is "), std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace kvlane::hack_fixture
