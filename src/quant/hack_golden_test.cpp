// The golden slabs of `hack`, made and read by an independent encoder and reader in Python: every
// tier seals the same bytes and opens the same rows, of any bytes too.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "format/frame.h"
#include "quant/golden_fixture.h"
#include "quant/hack_fixture.h"

namespace kvlane::hack_fixture {
namespace {

using golden_fixture::file_name;
using golden_fixture::read;
using golden_fixture::read_rows;

// Where these slabs lie: random numbers follow from it.
constexpr SlabPlace kPlace{3, 4160};

struct Golden {
  const char* name;
  const char* rows;
  int head_dim;
};

constexpr Golden kGolden[] = {
    {"hack:k=2,v=2", "usual-48", 48},
    {"hack:k=4,v=2", "usual-48", 48},
    {"hack:k=8,v=8", "usual-16", 16},
    {"hack:k=2,v=4,mix=0", "usual-48", 48},
    {"hack:k=2,v=8,mix=0", "usual-16", 16},
    {"hack:k=4,v=8,meta=bf16", "usual-16", 16},
    {"hack:k=2,v=2,mix=0,meta=bf16", "wide-16", 16},
    {"hack:k=2,v=2,p=64", "large-48", 48},
    {"hack:k=8,v=4,p=32", "large-48", 48},
    {"hack:k=4,v=8,p=128,meta=bf16", "wide-16", 16},
    {"hack:k=2,v=2,p=32,round=sr,mix=1", "usual-48", 48},
    {"hack:k=8,v=4,p=128,round=sr", "usual-16", 16},
};

class HackGoldenSlabs : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) {
      GTEST_SKIP() << "this processor lacks " << isa_name(GetParam());
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Tiers, HackGoldenSlabs, ::testing::ValuesIn(kAllIsas),
                         [](const auto& of) { return std::string(isa_name(of.param)); });

TEST_P(HackGoldenSlabs, AreWhatRowsAreSealedTo) {
  for (const Golden& golden : kGolden) {
    const auto format = format_of(golden.name, shape_of(2, golden.head_dim), GetParam());
    EXPECT_EQ(format->name(), golden.name);
    const std::string file = "hack/" + file_name(golden.name);
    const Slab expected = read(file + ".slab");
    ASSERT_EQ(format->slab_bytes(), expected.size()) << golden.name;
    const Rows rows = read_rows(std::string("hack/") + golden.rows + ".rows");
    Poisoned<std::byte> slab(format->slab_bytes());
    const Status status = format->seal(kPlace, rows.data(), slab.data());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(slab.intact_beyond()) << golden.name;
    EXPECT_EQ(slab.values(), expected) << golden.name;
    EXPECT_EQ(open(*format, expected), read_rows(file + ".opened")) << golden.name;
  }
}

// In memory, where attention wants them.
TEST_P(HackGoldenSlabs, HaveSumsOfTheirCodesWithTheCompleteForm) {
  for (const auto& [name, of] : {std::pair{"hack:k=2,v=2,p=64,compute=complete", kGolden[7]},
                                 {"hack:k=8,v=4,p=32,compute=complete", kGolden[8]}}) {
    const auto format = format_of(name, shape_of(2, of.head_dim), GetParam());
    ASSERT_EQ(format->slab_name(), of.name);
    const Slab expected = read("hack/" + file_name(name) + ".slab");
    ASSERT_EQ(format->slab_bytes(), expected.size()) << name;
    const Rows rows = read_rows(std::string("hack/") + of.rows + ".rows");
    Poisoned<std::byte> slab(format->slab_bytes());
    ASSERT_TRUE(format->seal(kPlace, rows.data(), slab.data()).ok());
    EXPECT_EQ(slab.values(), expected) << name;
  }
}

// What frames carry: tests/golden/frame/valid has one.
TEST_P(HackGoldenSlabs, TravelAsTheFrameSays) {
  const auto format =
      format_of("hack:k=2,v=4,mix=0,compute=dequantise", shape_of(2, 48), GetParam());
  const Slab file = read("../frame/valid/sealed_hack.frame");
  const auto frame = parse_frame({file.data(), file.size()});
  ASSERT_TRUE(frame.ok()) << frame.status().message();
  EXPECT_EQ(frame->header.format, format->slab_name());
  EXPECT_EQ(frame->header.tables, format->tables());
  EXPECT_EQ(frame->header.rope_applied, format->rope_applied());
  const Slab slab = read("hack/" + file_name(format->slab_name()) + ".slab");
  ASSERT_EQ(frame->k.size(), format->used_bytes(kPlace, slab.data()));
  Slab packed(frame->k.size());
  format->pack(kPlace, slab.data(), packed.data());
  EXPECT_TRUE(std::equal(packed.begin(), packed.end(), frame->k.begin()));
  Slab unpacked(format->slab_bytes(), std::byte{0xA5});
  ASSERT_TRUE(format->unpack(kPlace, frame->k, unpacked.data()).ok());
  EXPECT_EQ(unpacked, slab);
}

// The specification does not say which NaN; the reader writes 7FC0.
Rows with_one_nan(Rows rows) {
  for (std::uint16_t& x : rows) x = (x & 0x7fffU) > 0x7f80U ? 0x7fc0 : x;
  return rows;
}

TEST_P(HackGoldenSlabs, OfAnyBytesOpenAlikeEverywhere) {
  for (const Golden& golden : kGolden) {
    const auto format = format_of(golden.name, shape_of(1, golden.head_dim), GetParam());
    const std::string file = "hack/foreign." + file_name(golden.name);
    EXPECT_EQ(with_one_nan(open(*format, read(file + ".slab"))), read_rows(file + ".opened"))
        << golden.name;
  }
}

}  // namespace
}  // namespace kvlane::hack_fixture
