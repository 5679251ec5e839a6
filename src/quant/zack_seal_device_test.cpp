// Device code of sealing narrow pages on emulated blocks of threads, against the format's encoder
// byte for byte.
// SPDX-License-Identifier: Apache-2.0
#include "quant/zack_seal_device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "gpu/emulated_block.h"
#include "quant/tables_fixture.h"
#include "quant/zack.h"

namespace kvlane {
namespace {

using Aligned = std::vector<gpu::Words4>;

Aligned filled_words(std::size_t bytes, std::uint32_t with) {
  return Aligned(bytes / sizeof(gpu::Words4), {{with, with, with, with}});
}

constexpr int kLayer = 1;
constexpr std::uint32_t kPoison = 0xA5A5A5A5;

std::shared_ptr<const KvFormat> make_on_host(const char* name, const KvShape& shape) {
  KvTables tables;
  tables_fixture::add_zack_tables(shape, true, tables);
  auto made = make_kv_format(name, {.shape = shape, .tables = &tables});
  EXPECT_TRUE(made.ok()) << made.status().message();
  return *made;
}

struct SealedHeads {
  Aligned slabs;  // of three blocks: the second one is written
  std::vector<std::uint32_t> beyond;
};

// The third of three blocks of rows.
SealedHeads seal_heads_on_device(const KvFormat& format, const std::vector<std::uint16_t>& rows,
                                 std::uint64_t seed) {
  const KvShape& shape = format.shape();
  const std::size_t slab = format.slab_bytes(kLayer);
  SealedHeads sealed{filled_words(3 * slab, kPoison),
                     std::vector<std::uint32_t>(2 * shape.kv_heads, 7)};
  Aligned all = filled_words(3 * shape.slab_bytes(), ~0U);
  auto* const third = reinterpret_cast<std::byte*>(all.data()) + 2 * shape.slab_bytes();
  std::memcpy(third, rows.data(), shape.slab_bytes());
  std::vector<NarrowHead> heads;
  for (int i = 0; i < shape.kv_heads; ++i) {
    const HeadWidths kept = dynamic_cast<const ZackFormat&>(format).widths(kLayer, i);
    const auto page = static_cast<std::int32_t>(format.page_place(kLayer, i).offset);
    heads.push_back({page, kept.k, kept.v});
  }
  const HackSealPlace place{2, 1};
  const ZackSealBatch batch{.places = &place,
                            .rows = reinterpret_cast<const std::byte*>(all.data()),
                            .rows_block_bytes = shape.slab_bytes(),
                            .slabs = reinterpret_cast<std::byte*>(sealed.slabs.data()),
                            .block_bytes = slab,
                            .kv_heads = shape.kv_heads,
                            .head_dim = shape.head_dim,
                            .heads = heads.data(),
                            .beyond = sealed.beyond.data()};
  for (int part = 0; part < 2 * shape.kv_heads; ++part) {
    std::uint32_t wrong = 9;
    gpu::run_block(64, seed++, [&](gpu::EmulatedThread& thread) {
      part % 2 == 0 ? seal_narrow_part<true>(thread, batch, 0, part / 2, wrong)
                    : seal_narrow_part<false>(thread, batch, 0, part / 2, wrong);
    });
  }
  return sealed;
}

void expect_right(const KvFormat& format, std::uint64_t seed) {
  const KvShape& shape = format.shape();
  const std::size_t slab = format.slab_bytes(kLayer);
  const auto rows = tables_fixture::to_bits(tables_fixture::plain_rows(shape, seed));
  Aligned expected = filled_words(3 * slab, kPoison);
  ASSERT_TRUE(
      format.seal({kLayer, 0}, rows.data(), reinterpret_cast<std::byte*>(expected.data()) + slab)
          .ok());
  const SealedHeads sealed = seal_heads_on_device(format, rows, seed);
  EXPECT_EQ(0, std::memcmp(sealed.slabs.data(), expected.data(), 3 * slab))
      << format.name() << ", head_dim " << shape.head_dim;
  for (const std::uint32_t beyond : sealed.beyond) EXPECT_EQ(beyond, 0U);
}

TEST(ZackSealDevice, TheBytesOfTheFormat) {
  for (const int head_dim : {16, 32, 64, 80, 128, 256}) {
    const KvShape shape{2, 3, head_dim, ElementType::kBf16};
    for (const char* name : {"zack:keep=1", "zack:keep=0.6", "zack:keep=0.5,ranks=uniform"}) {
      if (head_dim == 16 && std::string_view(name) != "zack:keep=1") continue;
      expect_right(*make_on_host(name, shape), head_dim);
    }
  }
}

TEST(ZackSealDevice, NoOrderOfThreadsChangesAByte) {
  const auto format = make_on_host("zack:keep=0.6", {2, 2, 96, ElementType::kBf16});
  for (const std::uint64_t seed : {1, 2, 3, 4}) expect_right(*format, seed);
}

// Also in channels that are dropped.
TEST(ZackSealDevice, SaysWhereAValueIsNoNumber) {
  const KvShape shape{2, 2, 80, ElementType::kBf16};
  const auto format = make_on_host("zack:keep=0.5", shape);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    for (const int plane : {0, 3}) {
      for (const int at : {0, 79, 63 * 80 + 33, 64 * 80 - 1}) {
        auto rows = tables_fixture::to_bits(tables_fixture::plain_rows(shape, 3));
        rows[plane * shape.page_plane_elements() + at] = to_bf16(bad).bits;
        const SealedHeads sealed = seal_heads_on_device(*format, rows, 7);
        for (int i = 0; i < 4; ++i) EXPECT_EQ(sealed.beyond[i], i == plane ? 1U : 0U) << at;
      }
    }
  }
  auto rows = tables_fixture::to_bits(tables_fixture::plain_rows(shape, 3));
  rows[5] = 0x7F7F;  // the largest number
  rows[6] = 0xFF7F;
  rows[7] = 0x8001;
  EXPECT_EQ(seal_heads_on_device(*format, rows, 7).beyond, std::vector<std::uint32_t>(4, 0));
}

}  // namespace
}  // namespace kvlane
