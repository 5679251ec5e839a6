// What queries read of their own block where it is not rows of 16 bits.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "quant/hack_fixture.h"

namespace kvlane::hack_fixture {
namespace {

constexpr int kHeadDim = 80;
constexpr int kHead = 1;

class OwnPage {
 public:
  explicit OwnPage(const char* name)
      : format_(format_of(name, shape_of(2, kHeadDim), Isa::kScalar)),
        plane_(format_->shape().page_plane_elements()) {}

  Rows random_rows() {
    RowMaker maker(7);
    return maker.slab(Kind::kModel, format_->shape());
  }
  // Of head kHead, K then V.
  Rows own(const Rows& rows, int tokens) const {
    Poisoned<std::uint16_t> page(2 * plane_);
    format_->own_page({1, 0}, rows.data(), kHead, tokens, page.data());
    EXPECT_TRUE(page.intact_beyond());
    return page.values();
  }
  // Tokens [0, tokens) of K or V of a page.
  Rows part(const Rows& page, bool keys, int tokens) const {
    const auto from = page.begin() + static_cast<std::ptrdiff_t>(keys ? 0 : plane_);
    return {from, from + std::ptrdiff_t{tokens} * kHeadDim};
  }
  Rows page_of(const Rows& rows) const {
    const auto from = rows.begin() + static_cast<std::ptrdiff_t>(2 * plane_) * kHead;
    return {from, from + static_cast<std::ptrdiff_t>(2 * plane_)};
  }
  const HackFormat& format() const { return *format_; }

 private:
  const std::shared_ptr<const HackFormat> format_;
  const std::size_t plane_;
};

TEST(HackOwnBlock, FormatsSayWhatTheyDo) {
  const auto of = [](const char* name) { return OwnPage(name).format().own_block(); };
  for (const char* name : {"hack", "hack:paper"}) {
    EXPECT_FALSE(of(name).coded || of(name).sealed || of(name).sees_ahead) << name;
  }
  const OwnBlock keys = of("hack:paper,ktail=code");
  EXPECT_TRUE(keys.coded && !keys.sealed && !keys.sees_ahead);
  const OwnBlock values = of("hack:paper,rqe=0");
  EXPECT_TRUE(values.coded && !values.sealed && values.sees_ahead);
  const OwnBlock diagonal = of("hack:paper,diag=int8");
  EXPECT_TRUE(!diagonal.coded && diagonal.sealed && diagonal.sees_ahead);
}

TEST(HackOwnBlock, KeysAreReadAsTheyWillBeSealedFromTheFirstTokenOn) {
  for (const char* name : {"hack:p=32,ktail=code", "hack:paper,k=4,ktail=code,mix=1"}) {
    OwnPage page(name);
    const Rows rows = page.random_rows();
    const Rows sealed = page.page_of(open(page.format(), seal(page.format(), rows)));
    const Rows before = page.page_of(rows);
    for (const int tokens : {1, 2, 33, 64}) {
      Rows others = rows;  // what later tokens' rows hold is nobody's business
      const std::size_t head = rows.size() / 2 * kHead;
      std::fill(others.begin() + static_cast<std::ptrdiff_t>(head) + tokens * kHeadDim,
                others.begin() + static_cast<std::ptrdiff_t>(head) + 64 * kHeadDim,
                std::uint16_t{0x7fc0});
      const Rows own = page.own(others, tokens);
      EXPECT_EQ(page.part(own, true, tokens), page.part(sealed, true, tokens)) << name;
      EXPECT_EQ(page.part(own, false, 64), page.part(before, false, 64)) << name;
    }
  }
}

TEST(HackOwnBlock, ValuesAreCodedOverTheTokensThatAreThere) {
  OwnPage page("hack:paper,rqe=0");
  const Rows rows = page.random_rows();
  const Rows whole = page.page_of(open(page.format(), seal(page.format(), rows)));
  const Rows before = page.page_of(rows);
  EXPECT_EQ(page.part(page.own(rows, 64), false, 64), page.part(whole, false, 64));
  EXPECT_EQ(page.part(page.own(rows, 64), true, 64), page.part(before, true, 64));
  // Two values of a channel are both ends of its range: read back as they are, or next to it.
  const Rows two = page.part(page.own(rows, 2), false, 2);
  for (std::size_t i = 0; i < two.size(); ++i) {
    const float value = to_float(bf16{page.part(before, false, 2)[i]});
    EXPECT_NEAR(to_float(bf16{two[i]}), value, 0.01F * std::abs(value) + 0.02F);
  }
}

TEST(HackOwnBlock, WhatCannotBeCodedStaysAsItIs) {
  OwnPage page("hack:paper,ktail=code,rqe=0");
  Rows rows = page.random_rows();
  const std::size_t head = rows.size() / 2 * kHead;
  rows[head + 5] = 0x7f80;              // K of the first token
  rows[head + 64 * kHeadDim] = 0x7fc0;  // V of the first token
  EXPECT_EQ(page.part(page.own(rows, 9), true, 9), page.part(page.page_of(rows), true, 9));
  EXPECT_EQ(page.part(page.own(rows, 9), false, 9), page.part(page.page_of(rows), false, 9));
}

}  // namespace
}  // namespace kvlane::hack_fixture
