// Ranks get formats of their heads where there are such slabs, and else of all heads.
// SPDX-License-Identifier: Apache-2.0
#include "quant/heads_together.h"

#include <gtest/gtest.h>

#include <string>

#include "quant/tables_fixture.h"

namespace kvlane::tables_fixture {
namespace {

constexpr KvShape kWholeShape{2, 4, 32, ElementType::kBf16};

class RankFormat : public testing::Test {
 protected:
  RankFormat() : rope_(inverse_frequencies(kWholeShape.head_dim), 256) {
    add_kvquant_tables(kWholeShape, tables_);
    add_cachegen_tables(kWholeShape, {to_bits(plain_rows(kWholeShape, 1))}, tables_);
    add_zack_tables(kWholeShape, true, tables_);
    add_zack_kvquant_tables("zack:keep=0.5", kWholeShape, tables_);
  }

  RopeTable rope_;
  KvTables tables_;
  const KvFormatContext whole_{.shape = kWholeShape, .rope = &rope_, .tables = &tables_};
};

TEST_F(RankFormat, HasTheHeadsOfTheRankWhereSlabsCanHaveThem) {
  for (const char* const name : {"fp8_e4m3", "mxfp4", "int8", "kivi", "hack", "hack:paper",
                                 "zack:keep=0.5", "zack:keep=0.5+hack", "zack:keep=0.5+int4"}) {
    const auto format = make_rank_format(name, whole_, 1, 3);
    ASSERT_TRUE(format.ok()) << name << ": " << format.status().message();
    EXPECT_FALSE(codes_heads_together(**format)) << name;
    EXPECT_EQ((*format)->shape().kv_heads, 3) << name;
  }
}

TEST_F(RankFormat, HasAllHeadsWhereTheyAreCodedTogether) {
  for (const char* const name : {"kvquant", "cachegen", "zack:keep=0.5+kvquant"}) {
    const auto format = make_rank_format(name, whole_, 1, 3);
    ASSERT_TRUE(format.ok()) << name << ": " << format.status().message();
    EXPECT_TRUE(codes_heads_together(**format)) << name;
    EXPECT_EQ((*format)->shape().kv_heads, 4) << name;
    EXPECT_EQ((*format)->slab_bytes(), made(name, whole_)->slab_bytes()) << name;
    // And there is no such format of some heads.
    KvFormatContext part = whole_;
    part.heads = {1, 4};
    part.shape.kv_heads = 3;
    const Status refused = make_kv_format(name, part).status();
    EXPECT_EQ(refused.code(), Code::kUnsupported);
    EXPECT_NE(refused.message().find("codes all KV heads of a layer together"), std::string::npos)
        << refused.message();
  }
}

TEST_F(RankFormat, IsNoneForRowsAndSaysWhatIsWrong) {
  const auto rows = make_rank_format("bf16", whole_, 0, 2);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(*rows, nullptr);
  const Status unknown = make_rank_format("mp3", whole_, 0, 2).status();
  EXPECT_EQ(unknown.code(), Code::kInvalidArgument);
  EXPECT_NE(unknown.message().find("no KV format 'mp3'"), std::string::npos);
  const Status wrong = make_rank_format("kivi:bits=9", whole_, 0, 2).status();
  EXPECT_EQ(wrong.code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvlane::tables_fixture
