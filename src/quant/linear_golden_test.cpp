// The golden slabs with linear codes, made and read by an independent encoder and reader in Python:
// every tier seals the same bytes and opens the same rows, of any bytes too.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "format/frame.h"
#include "quant/golden_fixture.h"

namespace kvlane::linear_fixture {
namespace {

using golden_fixture::file_name;
using golden_fixture::read;
using golden_fixture::read_rows;

constexpr int kGoldenHeadDim = 36;

class GoldenSlabs : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) {
      GTEST_SKIP() << "this processor lacks " << isa_name(GetParam());
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Tiers, GoldenSlabs, ::testing::ValuesIn(kAllIsas),
                         [](const auto& of) { return std::string(isa_name(of.param)); });

TEST_P(GoldenSlabs, AreWhatRowsAreSealedTo) {
  const Rows rows = read_rows("linear/rows.rows");
  for (const char* name : kFormats) {
    const auto format = format_of(name, shape_of(2, kGoldenHeadDim), GetParam());
    const std::string file = "linear/" + file_name(format->name());
    const Slab slab = read(file + ".slab");
    EXPECT_EQ(seal(*format, rows), slab) << name;
    EXPECT_EQ(open(*format, slab), read_rows(file + ".opened")) << name;
  }
}

// What frames carry: tests/golden/frame/valid has some.
TEST_P(GoldenSlabs, TravelAsTheFramesSay) {
  for (const char* name : {"fp8_e4m3", "mxfp6_e2m3", "int4:sym=0", "kivi:bits=2,group=32"}) {
    const auto format = format_of(name, shape_of(2, kGoldenHeadDim), GetParam());
    const std::string family = format->name().substr(0, format->name().find(':'));
    const Slab file = read("../frame/valid/sealed_" + family + ".frame");
    const auto frame = parse_frame({file.data(), file.size()});
    ASSERT_TRUE(frame.ok()) << frame.status().message();
    EXPECT_EQ(frame->header.format, format->slab_name());
    EXPECT_EQ(frame->header.tables, format->tables());
    EXPECT_EQ(frame->header.rope_applied, format->rope_applied());
    const Slab slab = read("linear/" + file_name(format->name()) + ".slab");
    ASSERT_EQ(frame->k.size(), format->used_bytes({0, 0}, slab.data()));
    Slab packed(frame->k.size());
    format->pack({0, 0}, slab.data(), packed.data());
    EXPECT_TRUE(std::equal(packed.begin(), packed.end(), frame->k.begin())) << name;
    Slab unpacked(format->slab_bytes(), std::byte{0xA5});
    ASSERT_TRUE(format->unpack({1, 64}, frame->k, unpacked.data()).ok());
    EXPECT_EQ(unpacked, slab) << name;
  }
}

TEST_P(GoldenSlabs, OfAnyBytesOpenAlikeEverywhere) {
  for (const char* name : kFormats) {
    const auto format = format_of(name, shape_of(1, kGoldenHeadDim), GetParam());
    const std::string file = "linear/foreign." + file_name(format->name());
    EXPECT_EQ(open(*format, read(file + ".slab")), read_rows(file + ".opened")) << name;
  }
}

}  // namespace
}  // namespace kvlane::linear_fixture
