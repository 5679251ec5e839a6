// Sealing narrow pages on a GPU: whole slabs against words put together as spec/slab_zack.md has
// them, with poison around them. Skipped where no GPU is. Tests whose names begin with Small are
// for compute-sanitizer.
// SPDX-License-Identifier: Apache-2.0
#include "quant/zack_seal_gpu.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/bf16.h"
#include "format/head_widths.h"
#include "format/shape.h"
#include "gpu/gpu_fixture.h"

namespace kvlane {
namespace {

using gpu_fixture::check;
using gpu_fixture::DeviceBytes;
using gpu_fixture::values_of;
using gpu_fixture::view;

class ZackSealGpuTest : public gpu_fixture::GpuTest {
 protected:
  static constexpr int kBlocks = 3;  // of which two are sealed, in another order

  void expect_right(const std::vector<HeadWidths>& widths, int d, DeviceBytes::Around around,
                    int bad = -1) {
    const int kv_heads = static_cast<int>(widths.size());
    const std::size_t plane = std::size_t{kBlockTokens} * d, slab = 2 * plane * kv_heads;
    std::vector<std::uint16_t> rows = rows_of(kBlocks * slab);
    if (bad >= 0) rows[2 * slab + bad * plane + plane / 2 + 1] = 0x7FC0;
    std::vector<NarrowHead> heads;
    std::int32_t bytes = 0;
    for (const HeadWidths& head : widths) {
      heads.push_back({bytes, head.k, head.v});
      bytes += 2 * kBlockTokens * (head.k + head.v);
    }
    const std::vector<HackSealPlace> places = {{2, 0}, {-1, -1}, {0, 2}};
    std::vector<std::uint16_t> expected(std::size_t{kBlocks} * bytes / 2, kPoison);
    for (const HackSealPlace& place : places) {
      if (place.rows < 0) continue;
      for (int head = 0; head < kv_heads; ++head) {
        seal(rows.data() + place.rows * slab + 2 * plane * head, widths[head], d,
             expected.data() + (place.sealed * std::size_t(bytes) + heads[head].page) / 2);
      }
    }
    const DeviceBytes of_rows(stream(), view(rows), 0, around);
    const DeviceBytes of_places(stream(), view(places), 0, around);
    const DeviceBytes of_heads(stream(), view(heads), 0, around);
    const DeviceBytes slabs(stream(), Bytes(expected.size() * 2, DeviceBytes::kPoison), 0, around);
    const DeviceBytes beyond(stream(), Bytes(places.size() * kv_heads * 2 * 4), 0, around);
    check(seal_narrow_on_gpu({.places = reinterpret_cast<const HackSealPlace*>(of_places.data()),
                              .rows = of_rows.data(),
                              .rows_block_bytes = 2 * slab,
                              .slabs = slabs.data(),
                              .block_bytes = std::size_t(bytes),
                              .kv_heads = kv_heads,
                              .head_dim = d,
                              .heads = reinterpret_cast<const NarrowHead*>(of_heads.data()),
                              .beyond = reinterpret_cast<std::uint32_t*>(beyond.data())},
                             places.size(), stream()));
    check(stream().synchronize());
    if (bad < 0) {
      ASSERT_EQ(values_of<std::uint16_t>(slabs.read()), expected) << "head_dim " << d;
    }
    const auto wrong = values_of<std::uint32_t>(beyond.read());
    for (int i = 0; i < static_cast<int>(wrong.size()); ++i) EXPECT_EQ(wrong[i], i == bad ? 1 : 0);
  }

 private:
  static constexpr std::uint16_t kPoison = 0xA5A5;
  static_assert(DeviceBytes::kPoison == std::byte{0xA5});

  static std::vector<std::uint16_t> rows_of(std::size_t count) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> rows(count);
    for (auto& x : rows) x = to_bf16(3 * normal(random)).bits;
    return rows;
  }
  // spec/slab_zack.md, section 3.
  static void seal(const std::uint16_t* rows, HeadWidths kept, int d, std::uint16_t* page) {
    for (int t = 0; t < kBlockTokens; ++t) {
      for (int i = 0; i < kept.k; ++i) {
        page[2 * (i / 2 * kBlockTokens + t) + i % 2] = rows[t * d + i];
      }
      for (int i = 0; i < kept.v; ++i) {
        page[kBlockTokens * kept.k + 2 * (t / 2 * kept.v + i) + t % 2] =
            rows[(kBlockTokens + t) * d + i];
      }
    }
  }
};

TEST_F(ZackSealGpuTest, SmallPages) {
  expect_right({{16, 48}, {64, 16}}, 64, DeviceBytes::Around::kNothing);
  expect_right({{128, 80}}, 128, DeviceBytes::Around::kNothing);
}

TEST_F(ZackSealGpuTest, EveryHeadDimAndWidth) {
  for (int d = 16; d <= 256; d += 16) {
    for (int width = 16; width <= d; width += 16) {
      expect_right({{width, d + 16 - width}, {d, width}}, d, DeviceBytes::Around::kPoison);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(ZackSealGpuTest, SaysWhereAValueIsNoNumber) {
  for (int plane = 0; plane < 4; ++plane) {
    expect_right({{16, 48}, {64, 16}}, 64, DeviceBytes::Around::kPoison, plane);
  }
}

}  // namespace
}  // namespace kvlane
