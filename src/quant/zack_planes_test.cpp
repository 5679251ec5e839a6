// Slabs of `zack` as planes: rows of what is kept, and the same slab again.
// SPDX-License-Identifier: Apache-2.0
#include "quant/zack_planes.h"

#include <gtest/gtest.h>

#include <cstring>

#include "quant/tables_fixture.h"
#include "quant/zack.h"

namespace kvlane::tables_fixture {
namespace {

class ZackPlanesOf : public testing::TestWithParam<KvShape> {
 protected:
  ZackPlanesOf() { add_zack_tables(GetParam(), true, tables_); }

  std::shared_ptr<const KvFormat> format(std::string_view text) const {
    return made(text, {.shape = GetParam(), .tables = &tables_});
  }

  KvTables tables_;
};

// What is kept of rows: of all tokens, heads and channels, in this order, K before V.
std::vector<std::uint16_t> kept(const ZackFormat& zack, int layer,
                                const std::vector<std::uint16_t>& rows) {
  std::vector<std::uint16_t> values;
  for (const bool is_key : {true, false}) {
    for (int token = 0; token < kBlockTokens; ++token) {
      for (int head = 0; head < zack.shape().kv_heads; ++head) {
        const std::uint16_t* const row = slab_row(zack.shape(), rows.data(), head, is_key, token);
        const HeadWidths widths = zack.widths(layer, head);
        values.insert(values.end(), row, row + (is_key ? widths.k : widths.v));
      }
    }
  }
  return values;
}

TEST_P(ZackPlanesOf, AreRowsOfWhatIsKeptAndComeBack) {
  const KvShape& shape = GetParam();
  const RopeTable rope(inverse_frequencies(shape.head_dim), 128);
  const auto rows = rotated_rows(shape, 5, rope, 0);
  for (const char* text : {"zack:keep=0.6", "zack:keep=1", "zack:keep=0.5,ranks=uniform,sink=1"}) {
    SCOPED_TRACE(text);
    const auto made = format(text);
    const auto& zack = dynamic_cast<const ZackFormat&>(*made);
    const SlabPlanes* const planes = zack.planes();
    ASSERT_NE(planes, nullptr);
    for (int layer = 0; layer < shape.layers; ++layer) {
      Sealed sealed(zack, {layer, 64}, rows);
      ASSERT_TRUE(sealed.status.ok());
      const std::vector<std::uint16_t> expected = kept(zack, layer, rows);
      const HeadWidths widths = planes->widths(layer);
      ASSERT_EQ(expected.size(), std::size_t{kBlockTokens} * (widths.k + widths.v));
      // Of just that size, for AddressSanitizer.
      const auto values = std::make_unique<std::uint16_t[]>(expected.size());
      planes->to_rows(layer, sealed.slab.data(), values.get());
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), values.get())) << layer;
      Lines back(zack.slab_bytes(layer));
      planes->from_rows(layer, values.get(), back.data());
      EXPECT_EQ(std::memcmp(back.data(), sealed.slab.data(), zack.slab_bytes(layer)), 0) << layer;
    }
  }
}

TEST_P(ZackPlanesOf, AreNothingOfCodes) {
  for (const char* text : {"zack:keep=0.6+int4", "zack:keep=0.6+hack", "fp8_e4m3"}) {
    EXPECT_EQ(format(text)->planes(), nullptr) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ZackPlanesOf,
                         testing::Values(KvShape{3, 2, 64, ElementType::kBf16},
                                         KvShape{2, 1, 256, ElementType::kBf16},
                                         KvShape{2, 3, 48, ElementType::kBf16}));

}  // namespace
}  // namespace kvlane::tables_fixture
