// Sealing for attention on codes on a GPU: whole slabs against the scalar encoder byte for byte,
// with poison around them. Skipped where no GPU is. Tests whose names begin with Small are for
// compute-sanitizer.
// SPDX-License-Identifier: Apache-2.0
#include "quant/hack_seal_gpu.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/bf16.h"
#include "gpu/gpu_fixture.h"
#include "quant/hack_kernels.h"
#include "quant/hadamard.h"

namespace kvlane {
namespace {

using gpu_fixture::check;
using gpu_fixture::DeviceBytes;
using gpu_fixture::values_of;
using gpu_fixture::view;

struct SealFormat {
  int k_bits, v_bits, partition;  // 0: by both
  bool mix;
};
constexpr SealFormat kSealFormats[] = {{2, 2, 0, true},   {2, 2, 0, false},  {4, 4, 0, true},
                                       {8, 2, 0, true},   {2, 2, 64, false}, {4, 2, 32, false},
                                       {2, 4, 128, true}, {8, 8, 64, false}};

class HackSealGpuTest : public gpu_fixture::GpuTest {
 protected:
  static constexpr int kHeads = 2, kBlocks = 3;  // of which two are sealed, in another order

  void expect_right(const SealFormat& format, int d, DeviceBytes::Around around) {
    const bool both = format.partition == 0;
    const hack::Plane k{format.k_bits, both ? hack::Axis::kBoth : hack::Axis::kToken,
                        format.partition, hack::Meta::kFp16};
    const hack::Plane v{format.v_bits, both ? hack::Axis::kBoth : hack::Axis::kChannel,
                        std::min(format.partition, kBlockTokens), hack::Meta::kFp16};
    const hack::PageLayout layout = hack::page_layout(k, v, {d, d});
    const std::size_t values = std::size_t{kBlockTokens} * d, page_values = 2 * values;
    const auto rows = rows_of(kBlocks * kHeads * page_values);
    const std::vector<HackSealPlace> places = {{2, 0}, {0, 2}};
    Bytes expected(kBlocks * kHeads * layout.bytes, DeviceBytes::kPoison);
    for (const HackSealPlace& place : places) {
      for (int part = 0; part < 2 * kHeads; ++part) {
        const bool keys = part % 2 == 0;
        seal(rows.data() + (place.rows * 2 * kHeads + part) * values, keys ? k : v, keys, d,
             format.mix, layout,
             expected.data() + (place.sealed * kHeads + part / 2) * layout.bytes);
      }
    }
    const DeviceBytes on_device(stream(), view(rows), 0, around);
    const DeviceBytes of_places(stream(), view(places), 0, around);
    const DeviceBytes slabs(stream(), Bytes(expected.size(), DeviceBytes::kPoison), 0, around);
    const DeviceBytes beyond(stream(), Bytes(places.size() * kHeads * 2 * 4), 0, around);
    check(seal_hack_on_gpu({.places = reinterpret_cast<const HackSealPlace*>(of_places.data()),
                            .rows = on_device.data(),
                            .rows_block_bytes = kHeads * page_values * 2,
                            .slabs = slabs.data(),
                            .block_bytes = kHeads * layout.bytes,
                            .kv_heads = kHeads,
                            .head_dim = d,
                            .k = k,
                            .v = v,
                            .layout = layout,
                            .mix = format.mix ? channel_mix(d) : kNoMix,
                            .beyond = reinterpret_cast<std::uint32_t*>(beyond.data())},
                           places.size(), stream()));
    check(stream().synchronize());
    ASSERT_EQ(slabs.read(), expected) << "head_dim " << d << ", partition " << format.partition;
    for (const std::uint32_t wrong : values_of<std::uint32_t>(beyond.read())) EXPECT_EQ(wrong, 0U);
  }

 private:
  static std::vector<std::uint16_t> rows_of(std::size_t count) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> rows(count);
    for (auto& x : rows) x = to_bf16(2 + 3 * normal(random)).bits;
    return rows;
  }
  static void seal(const std::uint16_t* rows, const hack::Plane& plane, bool keys, int d, bool mix,
                   const hack::PageLayout& layout, std::byte* page) {
    std::vector<float> values(std::size_t{kBlockTokens} * d);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = to_float(bf16{rows[i]});
    if (mix) mix_channels_scalar(values.data(), kBlockTokens, d);
    std::byte* const metadata = page + (keys ? layout.k_metadata : layout.v_metadata);
    std::byte* const end = page + (keys ? layout.v_metadata : layout.bytes);
    std::fill(metadata, end, std::byte{0});
    hack::seal_scalar({plane,
                       keys ? hack::Part::kKeys : hack::Part::kValues,
                       d,
                       hack::Rounding::kNearest,
                       {},
                       values.data(),
                       page + (keys ? 0 : layout.v_codes),
                       metadata});
  }
};

TEST_F(HackSealGpuTest, SmallOneOfEachKernel) {
  for (const SealFormat& format : {kSealFormats[0], kSealFormats[4]}) {
    for (const int d : {64, 128, 256}) {
      expect_right(format, d, DeviceBytes::Around::kNothing);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(HackSealGpuTest, EveryFormatAndHeadDim) {
  for (const SealFormat& format : kSealFormats) {
    for (int d = 16; d <= 256; d += 16) {
      expect_right(format, d, DeviceBytes::Around::kPoison);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace kvlane
