// Device code of sealing for attention on codes on emulated blocks of threads, against the scalar
// encoder byte for byte.
// SPDX-License-Identifier: Apache-2.0
#include "quant/hack_seal_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "gpu/emulated_block.h"
#include "quant/hack_kernels.h"
#include "quant/hadamard.h"

namespace kvlane {
namespace {

struct alignas(64) CodeLine {
  std::byte bytes[64];
};
using CodeLines = std::vector<CodeLine>;

CodeLines filled(std::size_t bytes, int with) {
  CodeLines lines((bytes + sizeof(CodeLine) - 1) / sizeof(CodeLine));
  std::fill_n(reinterpret_cast<std::byte*>(lines.data()), lines.size() * sizeof(CodeLine),
              std::byte(with));
  return lines;
}
std::byte* bytes_of(CodeLines& lines) { return reinterpret_cast<std::byte*>(lines.data()); }

struct Case {
  int bits, partition;  // 0: by both
  bool keys, mix;
  int head_dim;
};

hack::Plane plane_of(const Case& c) {
  const hack::Axis axis = c.partition == 0 ? hack::Axis::kBoth
                          : c.keys         ? hack::Axis::kToken
                                           : hack::Axis::kChannel;
  return {c.bits, axis, c.keys ? c.partition : std::min(c.partition, kBlockTokens),
          hack::Meta::kFp16};
}

template <bool kKeys, bool kBoth, int kDim>
void seal_as(const HackSealPart& part, std::uint64_t seed) {
  const auto shared = std::make_unique<HackSealShared<kDim>>();
  std::memset(static_cast<void*>(shared.get()), 0xFF, sizeof(*shared));
  gpu::run_block(kHackSealWarps * gpu::kWarpThreads, seed, [&](gpu::EmulatedThread& thread) {
    seal_part<kKeys, kBoth>(thread, part, *shared);
  });
}
template <int kDim>
void seal_in(const Case& c, const HackSealPart& part, std::uint64_t seed) {
  if (c.partition == 0) {
    c.keys ? seal_as<true, true, kDim>(part, seed) : seal_as<false, true, kDim>(part, seed);
  } else {
    c.keys ? seal_as<true, false, kDim>(part, seed) : seal_as<false, false, kDim>(part, seed);
  }
}

struct SealedPart {
  CodeLines codes, metadata;
  std::uint32_t beyond = 7;
};

std::size_t metadata_space(const Case& c) {
  return (hack::metadata_bytes(plane_of(c), c.head_dim) + 63) / 64 * 64;
}

SealedPart seal_on_device(const Case& c, const std::vector<std::uint16_t>& rows,
                          std::uint64_t seed) {
  SealedPart sealed{filled(hack::codes_bytes(plane_of(c), c.head_dim), 0xFF),
                    filled(metadata_space(c), 0xFF)};
  CodeLines of_rows = filled(rows.size() * 2, 0);
  std::memcpy(of_rows.data(), rows.data(), rows.size() * 2);
  const HackSealPart part{.rows = bytes_of(of_rows),
                          .codes = bytes_of(sealed.codes),
                          .metadata = bytes_of(sealed.metadata),
                          .metadata_bytes = static_cast<std::int32_t>(metadata_space(c)),
                          .head_dim = c.head_dim,
                          .bits = c.bits,
                          .partition = plane_of(c).partition,
                          .mix = c.mix ? channel_mix(c.head_dim) : kNoMix,
                          .limit = c.partition == 0 ? 0x1p14F : kFp16Max,
                          .beyond = &sealed.beyond};
  c.head_dim <= 64    ? seal_in<64>(c, part, seed)
  : c.head_dim <= 128 ? seal_in<128>(c, part, seed)
                      : seal_in<256>(c, part, seed);
  return sealed;
}

SealedPart seal_on_cpu(const Case& c, const std::vector<std::uint16_t>& rows) {
  SealedPart sealed{filled(hack::codes_bytes(plane_of(c), c.head_dim), 0),
                    filled(metadata_space(c), 0), 0};
  CodeLines of_rows = filled(rows.size() * sizeof(float), 0);
  auto* const values = reinterpret_cast<float*>(of_rows.data());
  for (std::size_t i = 0; i < rows.size(); ++i) values[i] = to_float(bf16{rows[i]});
  if (c.mix) mix_channels_scalar(values, kBlockTokens, c.head_dim);
  hack::seal_scalar({plane_of(c),
                     c.keys ? hack::Part::kKeys : hack::Part::kValues,
                     c.head_dim,
                     hack::Rounding::kNearest,
                     {},
                     values,
                     bytes_of(sealed.codes),
                     bytes_of(sealed.metadata)});
  return sealed;
}

bool same(const CodeLines& a, const CodeLines& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(CodeLine)) == 0;
}

// Channels with means, tokens of many sizes, one that is constant and one of zeros of either sign;
// a channel that is constant.
std::vector<std::uint16_t> model_rows(int head_dim, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> means(head_dim);
  for (float& x : means) x = 3 * normal(random);
  std::vector<std::uint16_t> rows(std::size_t{kBlockTokens} * head_dim);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto token = static_cast<int>(i / head_dim), channel = static_cast<int>(i % head_dim);
    const float size = channel == 5 ? 0.0F : std::exp2(static_cast<float>(token % 7 - 3));
    float x = means[channel] + size * normal(random);
    if (token == 40) x = 1.5F;
    if (token == 41) x = channel % 2 == 0 ? 0.0F : -0.0F;
    rows[i] = to_bf16(x).bits;
  }
  return rows;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int head_dim : {16, 64, 80, 96, 128, 256}) {
    for (const int partition : {0, 32, 64, 128}) {
      for (const int bits : {2, 4, 8}) {
        for (const bool keys : {true, false}) {
          // The others differ in nothing but the number of registers.
          if (bits != 2 && head_dim != 80 && head_dim != 128) continue;
          all.push_back({bits, partition, keys, partition == 0 || bits == 4, head_dim});
        }
      }
    }
  }
  return all;
}

TEST(HackSealDevice, TheBytesOfTheScalarEncoder) {
  for (const Case& c : cases()) {
    const auto rows = model_rows(c.head_dim, 1);
    const SealedPart expected = seal_on_cpu(c, rows), sealed = seal_on_device(c, rows, 5);
    const auto where = testing::Message()
                       << c.bits << " bits, partition " << c.partition << (c.keys ? ", K" : ", V")
                       << ", head_dim " << c.head_dim;
    ASSERT_EQ(sealed.beyond, 0U) << where;
    ASSERT_TRUE(same(sealed.metadata, expected.metadata)) << where;
    ASSERT_TRUE(same(sealed.codes, expected.codes)) << where;
  }
}

// Values so close together, so small or so large that scales are subnormal, zero or the greatest.
TEST(HackSealDevice, EdgesOfScales) {
  for (const float size : {0.0F, 0x1p-130F, 0x1p-30F, 0x1p-24F, 0x1p-14F, 4000.0F}) {
    for (const int partition : {0, 64}) {
      for (const bool keys : {true, false}) {
        const Case c{2, partition, keys, false, 64};
        auto rows = model_rows(c.head_dim, 2);
        for (auto& x : rows) x = to_bf16(0.1F * size * to_float(bf16{x})).bits;
        const SealedPart expected = seal_on_cpu(c, rows), sealed = seal_on_device(c, rows, 6);
        ASSERT_TRUE(same(sealed.metadata, expected.metadata)) << size << ", " << partition;
        ASSERT_TRUE(same(sealed.codes, expected.codes)) << size << ", " << partition;
      }
    }
  }
}

TEST(HackSealDevice, SaysWhatItCannotSeal) {
  const Case c{2, 0, true, false, 80};
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), 0x1p15F, -0x1p15F,
                          -std::numeric_limits<float>::infinity()}) {
    for (const int at : {0, 79, 63 * 80 + 33}) {
      auto rows = model_rows(c.head_dim, 3);
      rows[at] = to_bf16(bad).bits;
      EXPECT_EQ(seal_on_device(c, rows, 7).beyond, 1U) << bad << " at " << at;
    }
  }
}

TEST(HackSealDevice, NoOrderOfThreadsChangesAByte) {
  for (const Case& c :
       {Case{2, 0, true, true, 96}, Case{2, 0, false, true, 96}, Case{4, 32, false, false, 96}}) {
    const auto rows = model_rows(c.head_dim, 4);
    const SealedPart expected = seal_on_cpu(c, rows);
    for (const std::uint64_t seed : {1, 2, 3, 4}) {
      const SealedPart sealed = seal_on_device(c, rows, seed);
      ASSERT_TRUE(same(sealed.metadata, expected.metadata)) << "seed " << seed;
      ASSERT_TRUE(same(sealed.codes, expected.codes)) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace kvlane
