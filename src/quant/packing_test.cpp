// What travels of sealed slabs, in every format: it comes back bit for bit, and what is not whole
// or not right is refused or opens to something, within its bounds.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "quant/kv_format.h"
#include "quant/tables_fixture.h"

namespace kvlane::tables_fixture {
namespace {

constexpr const char* kNames[] = {
    "fp8_e4m3",
    "fp8_e5m2",
    "mxfp8_e4m3",
    "mxfp8_e5m2",
    "mxfp6_e2m3",
    "mxfp6_e3m2",
    "mxfp4",
    "int8:sym=0",
    "int8:sym=1",
    "int4:sym=0",
    "int4:sym=1",
    "kivi:bits=2,group=32",
    "kivi:bits=4,group=64",
    "hack:k=2,v=2",
    "hack:k=8,v=4,meta=bf16",
    "hack:p=32",
    "hack:p=64,k=4,v=2,compute=complete",
    "cachegen:form=code,level=1",
    "cachegen:form=code,level=3",
    "cachegen:form=paper",
    "kvquant:bits=2,outliers=0",
    "kvquant:bits=3,outliers=1,room=token",
    "kvquant:bits=4,outliers=1,room=slab",
    "zack:keep=0.7",
    "zack:keep=0.5,ranks=uniform",
    "zack:keep=0.7+hack",
    "zack:bits=3.5+hack",
    "zack:keep=0.7+kivi:bits=2",
    "zack:keep=0.7+kvquant:bits=3",
    "zack:keep=0.7+kvquant:bits=2,outliers=0",
};
const KvShape kPackedShape{2, 2, 48, ElementType::kBf16};
constexpr SlabPlace kPlace{1, 64};

class Packing : public testing::TestWithParam<const char*> {
 protected:
  Packing() : rope_(inverse_frequencies(kPackedShape.head_dim), 256) {
    rows_ = rotated_rows(kPackedShape, 3, rope_, kPlace.position);
    add_kvquant_tables(kPackedShape, tables_);
    add_cachegen_tables(kPackedShape, {rows_}, tables_);
    add_zack_tables(kPackedShape, true, tables_);
    add_zack_kvquant_tables("zack:keep=0.7", kPackedShape, tables_);
    format_ = made(GetParam(), {.shape = kPackedShape, .rope = &rope_, .tables = &tables_});
    sealed_ = std::make_unique<Sealed>(*format_, kPlace, rows_);
    EXPECT_TRUE(sealed_->status.ok()) << sealed_->status.message();
    packed_.resize(format_->used_bytes(kPlace, slab()));
    format_->pack(kPlace, slab(), packed_.data());
  }

  const std::byte* slab() const { return sealed_->slab.data(); }
  // From memory of just that size, for AddressSanitizer, into a slab of garbage.
  Status unpack(ByteView bytes, Lines& to) const {
    const auto copy = std::make_unique<std::byte[]>(bytes.size());
    std::copy(bytes.begin(), bytes.end(), copy.get());
    return format_->unpack(kPlace, {copy.get(), bytes.size()}, to.data());
  }

  RopeTable rope_;
  KvTables tables_;
  std::vector<std::uint16_t> rows_;
  std::shared_ptr<const KvFormat> format_;
  std::unique_ptr<Sealed> sealed_;
  Bytes packed_;
};

TEST_P(Packing, GivesTheSlabBack) {
  Lines back(format_->slab_bytes());
  const Status status = unpack(packed_, back);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(std::memcmp(back.data(), slab(), format_->slab_bytes()), 0);
  EXPECT_LT(packed_.size(), kPackedShape.slab_bytes());
}

// Who says so is believed: such slabs are copied as they are.
TEST_P(Packing, WhatPacksAsItLiesDoesSo) {
  const std::size_t bytes = format_->slab_bytes(kPlace.layer);
  if (!format_->packs_as_it_lies(kPlace.layer)) return;
  ASSERT_EQ(packed_.size(), bytes);
  EXPECT_EQ(std::memcmp(packed_.data(), slab(), bytes), 0);
  Bytes others(bytes);
  for (std::size_t i = 0; i < bytes; ++i) others[i] = static_cast<std::byte>(i * 41 >> 3);
  Lines back(bytes);
  ASSERT_TRUE(unpack(others, back).ok());
  EXPECT_EQ(std::memcmp(back.data(), others.data(), bytes), 0);
}

TEST_P(Packing, EveryOtherLengthIsRefused) {
  Lines back(format_->slab_bytes());
  for (std::size_t length = 0; length < packed_.size(); ++length) {
    EXPECT_EQ(unpack(ByteView(packed_).first(length), back).code(), Code::kCorrupt) << length;
  }
  Bytes longer = packed_;
  for (const std::size_t more : {1UL, 3UL, 64UL, 100000UL}) {
    longer.resize(packed_.size() + more);
    EXPECT_EQ(unpack(longer, back).code(), Code::kCorrupt) << more;
  }
}

// Refused, or opened to something: sanitizers see the rest.
TEST_P(Packing, ChangedBitsStayInside) {
  int refused = 0;
  for (std::size_t bit = 0; bit < 8 * packed_.size(); bit += bit < 8 * 64 ? 1 : 23) {
    Bytes changed = packed_;
    changed[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
    Lines back(format_->slab_bytes());
    if (!unpack(changed, back).ok()) {
      ++refused;
      continue;
    }
    EXPECT_LE(format_->used_bytes(kPlace, back.data()), format_->slab_bytes());
    if (bit % 64 != 0) continue;
    EXPECT_EQ(open(*format_, kPlace, back.data()).size(), rows_.size());
  }
  // Those that say where something lies.
  const std::string_view name = GetParam();
  const bool has_lengths =
      name.starts_with("cachegen") || name.find("kvquant") != std::string_view::npos;
  EXPECT_EQ(refused > 0, has_lengths) << refused;
}

// Of those that devices have.
TEST(PackingAsItLies, SlabsOfUsualHeadsDo) {
  for (const char* const name : {"hack", "hack:k=4,v=4", "hack:p=64", "zack:keep=0.5"}) {
    const KvShape shape{2, 2, 64, ElementType::kBf16};
    const RopeTable rope(inverse_frequencies(shape.head_dim), 256);
    KvTables tables;
    add_zack_tables(shape, true, tables);
    const auto format = made(name, {.shape = shape, .rope = &rope, .tables = &tables});
    EXPECT_TRUE(format->packs_as_it_lies(0) && format->packs_as_it_lies(1)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Packing, testing::ValuesIn(kNames), [](const auto& of) {
  std::string name = of.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

TEST(TablesId, IsThatOfTheFormatsOwnTablesInAnyOrder) {
  KvTables tables;
  tables.values["kvquant.layers.0.k.o0.low"] = {1, 2};
  tables.values["cachegen.layers.0.k.bins16"] = {3};
  const std::uint64_t id = tables_id(tables, "kvquant");
  tables.values["cachegen.layers.0.k.bins16"] = {4};
  tables.values["kvquantile.x"] = {1};
  EXPECT_EQ(tables_id(tables, "kvquant"), id);
  tables.values["kvquant.layers.0.k.o0.low"] = {1, 2.5F};
  EXPECT_NE(tables_id(tables, "kvquant"), id);
  KvTables renamed;
  renamed.values["kvquant.layers.0.k.o0.high"] = {1, 2};
  EXPECT_NE(tables_id(renamed, "kvquant"), id);
}

}  // namespace
}  // namespace kvlane::tables_fixture
