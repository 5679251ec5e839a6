// Formats with linear codes: names, sizes, what is refused; every tier gives the same bytes and the
// same rows. What the codes are is tested in linear_codes_test.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cpu/tiers_fixture.h"
#include "quant/linear_fixture.h"

namespace kvlane::linear_fixture {
namespace {

using tiers_fixture::vector_tiers;

std::string canonical(const std::string& text) {
  const auto format = format_of(text, shape_of(1, 128), Isa::kScalar);
  return format->name();
}

std::string refusal(const std::string& text, KvShape shape = shape_of(1, 128)) {
  KvFormatContext context;
  context.shape = shape;
  const auto result = make_kv_format(text, context);
  EXPECT_FALSE(result.ok()) << text;
  return result.ok() ? "" : result.status().message();
}

TEST(LinearFormat, NamesSayEveryParameter) {
  EXPECT_EQ(canonical("fp8_e4m3"), "fp8_e4m3");
  EXPECT_EQ(canonical("mxfp4:recent=2"), "mxfp4:recent=2");
  EXPECT_EQ(canonical("mxfp4:recent=2,sink=1"), "mxfp4:sink=1,recent=2");
  EXPECT_EQ(canonical("int8"), "int8:sym=1");
  EXPECT_EQ(canonical("int4"), "int4:sym=0");
  EXPECT_EQ(canonical("int4:sink=3,sym=1"), "int4:sym=1,sink=3");
  EXPECT_EQ(canonical("kivi"), "kivi:bits=2,group=32");
  EXPECT_EQ(canonical("kivi:recent=2,group=64"), "kivi:bits=2,group=64,recent=2");
}

TEST(LinearFormat, CanonicalNamesAreTheirOwn) {
  for (const char* name : kFormats) {
    EXPECT_EQ(canonical(canonical(name)), canonical(name));
  }
}

TEST(LinearFormat, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(refusal("kivi:bits=3"), "KV format 'kivi': bits is 2 or 4, not '3'");
  EXPECT_EQ(refusal("kivi:group=128"), "KV format 'kivi': group is 32 or 64, not '128'");
  EXPECT_EQ(refusal("int8:sym=2"), "KV format 'int8': sym is 0 or 1, not '2'");
  EXPECT_EQ(refusal("mxfp4:group=32"), "KV format 'mxfp4' has no parameter 'group'");
  EXPECT_EQ(refusal("mxfp4", {1, 1, 128, ElementType::kFp16}),
            "KV format 'mxfp4' codes bf16 rows only");
  EXPECT_EQ(refusal("int4", shape_of(1, 257)),
            "KV format 'int4' takes a head_dim of 1 to 256, not 257");
}

TEST(LinearFormat, BitsAValueAreThoseOfTheSpecification) {
  const std::pair<const char*, double> expected[] = {{"fp8_e4m3", 8 + 1.0 / 1024},
                                                     {"mxfp8_e5m2", 8.25},
                                                     {"mxfp6_e3m2", 6.25},
                                                     {"mxfp4", 4.25},
                                                     {"int8:sym=1", 8.125},
                                                     {"int8:sym=0", 8.25},
                                                     {"int4:sym=1", 4.125},
                                                     {"int4:sym=0", 4.25},
                                                     {"kivi", 3},
                                                     {"kivi:group=64", 2.5},
                                                     {"kivi:bits=4", 5},
                                                     {"kivi:bits=4,group=64", 4.5}};
  const KvShape shape = shape_of(3, 128);
  RowMaker maker(1);
  const Rows rows = maker.slab(Kind::kModel, shape);
  for (const auto& [name, bits] : expected) {
    const auto format = format_of(name, shape, Isa::kScalar);
    const Slab slab = seal(*format, rows);
    const double values = 2.0 * 3 * 64 * 128;
    EXPECT_EQ(8.0 * static_cast<double>(format->used_bytes({0, 0}, slab.data())) / values, bits)
        << name;
    EXPECT_EQ(format->slab_bytes() % 64, 0U);
    EXPECT_LT(format->slab_bytes() - format->used_bytes({0, 0}, slab.data()), 3 * 4 * 64U) << name;
  }
}

TEST(LinearFormat, EveryByteIsWrittenAndAlwaysTheSame) {
  for (const char* name : kFormats) {
    for (const int head_dim : kHeadDims) {
      const KvShape shape = shape_of(2, head_dim);
      RowMaker maker(2);
      const Rows rows = maker.slab(Kind::kModel, shape);
      for (const Isa isa : kAllIsas) {
        if (!isa_supported(isa)) continue;
        const auto format = format_of(name, shape, isa);
        ASSERT_EQ(seal(*format, rows, 0xa5), seal(*format, rows, 0x5a))
            << name << ", head_dim " << head_dim << ", " << isa_name(isa);
      }
    }
  }
}

TEST(LinearFormat, TiersSealAndOpenAlike) {
  if (vector_tiers().empty()) GTEST_SKIP() << "this processor lacks AVX2";
  for (const char* name : kFormats) {
    for (const int head_dim : kHeadDims) {
      for (const Kind kind : kKinds) {
        const KvShape shape = shape_of(2, head_dim);
        RowMaker maker(static_cast<unsigned>(head_dim));
        const Rows rows = maker.slab(kind, shape);
        const auto scalar = format_of(name, shape, Isa::kScalar);
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

// Otherwise the tests of tiers would hold the scalar kernels against themselves.
TEST(LinearFormat, EveryTierHasKernelsForEveryFormat) {
  for (const char* name : kFormats) {
    const auto format = format_of(name, shape_of(1, 128), Isa::kScalar);
    for (const linear::Plane& plane : {format->k(), format->v()}) {
      for (const Isa isa : vector_tiers()) {
        EXPECT_NE(linear::seal_kernel(plane, isa), &linear::seal_scalar) << name;
        EXPECT_NE(linear::open_kernel(plane, isa), &linear::open_scalar) << name;
      }
    }
  }
}

// Slabs from elsewhere may hold anything: scales that are NaN, infinite, negative or out of BF16's
// range, patterns no encoder makes.
TEST(LinearFormat, TiersOpenAnyBytesAlike) {
  if (vector_tiers().empty()) GTEST_SKIP() << "this processor lacks AVX2";
  std::mt19937 engine(3);
  for (const char* name : kFormats) {
    for (const int head_dim : {64, 80, 128}) {
      const KvShape shape = shape_of(2, head_dim);
      const auto scalar = format_of(name, shape, Isa::kScalar);
      for (int round = 0; round < 20; ++round) {
        Slab slab(scalar->slab_bytes());
        for (std::byte& b : slab) b = std::byte(engine() & (round % 2 == 0 ? 0xffU : 0x7bU));
        const Rows opened = open(*scalar, slab);
        for (const Isa isa : vector_tiers()) {
          ASSERT_EQ(open(*format_of(name, shape, isa), slab), opened)
              << name << ", head_dim " << head_dim << ", " << isa_name(isa);
        }
      }
    }
  }
}

TEST(LinearFormat, EveryScaleOpensAlike) {
  for (const char* name : kFormats) {
    const KvShape shape = shape_of(1, 32);
    const auto scalar = format_of(name, shape, Isa::kScalar);
    const linear::Plane& plane = scalar->k();
    if (plane.entry != linear::Entry::kE8m0) continue;
    std::mt19937 engine(4);
    Slab slab(scalar->slab_bytes());
    for (std::byte& b : slab) b = std::byte(engine());
    for (int e = 0; e < 256; ++e) {
      std::memset(slab.data() + scalar->layout().k_metadata, e, linear::metadata_bytes(plane, 32));
      const Rows rows = open(*scalar, slab);
      for (const Isa isa : kAllIsas) {
        if (!isa_supported(isa)) continue;
        ASSERT_EQ(open(*format_of(name, shape, isa), slab), rows) << name << ", scale " << e;
      }
      if (e == 255) {
        EXPECT_EQ(Rows(rows.begin(), rows.begin() + 64 * 32), Rows(64 * 32, 0x7fc0)) << name;
      }
    }
  }
}

TEST(LinearFormat, WhatIsNotFiniteIsRefusedByLayerAndToken) {
  const KvShape shape = shape_of(2, 80);
  for (const char* name : kFormats) {
    for (const Isa isa : kAllIsas) {
      if (!isa_supported(isa)) continue;
      const auto format = format_of(name, shape, isa);
      RowMaker maker(5);
      Poisoned<std::byte> slab(format->slab_bytes());
      const auto message = [&](std::size_t at, std::uint16_t bits) {
        Rows rows = maker.slab(Kind::kModel, shape);
        rows[at] = bits;
        const Status status = format->seal({3, 128}, rows.data(), slab.data());
        EXPECT_EQ(status.code(), Code::kInvalidArgument);
        return status.message();
      };
      const std::size_t v_of_head_1 = 3 * 64 * 80;
      EXPECT_EQ(message(70 * 80, 0x7fc1),
                "V of layer 3, KV head 0, token 134 is nan: KV formats take finite numbers only");
      EXPECT_EQ(message(v_of_head_1 + 64 * 80 - 1, 0xff80),
                "V of layer 3, KV head 1, token 191 is -inf: KV formats take finite numbers only");
      EXPECT_EQ(message(0, 0x7f80),
                "K of layer 3, KV head 0, token 128 is inf: KV formats take finite numbers only");
      if (format->k().entry != linear::Entry::kE8m0) {
        EXPECT_EQ(message(79, 0xc780),
                  "K of layer 3, KV head 0, token 128 is -65536, beyond 65504, the largest that "
                  "FP16 scales hold");
      }
    }
  }
}

}  // namespace
}  // namespace kvlane::linear_fixture
