// Attention on codes in the complete form of HACK's paper: its terms add up to products of what
// codes stand for, and the kernels are right within what 8 bits lose.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "attention/hack_complete_arithmetic.h"
#include "attention/hack_page_fixture.h"

namespace kvlane::hack_page_fixture {
namespace {

using hack_arithmetic::code_partition;
using hack_arithmetic::CodedPartition;

// Every partition and number of bits, sums of 8 and of 16 bits, stored and computed.
constexpr const char* kCompleteFormats[] = {"hack:p=32,compute=complete",
                                            "hack:p=64,compute=complete",
                                            "hack:p=128,compute=complete",
                                            "hack:p=64,compute=complete,sums=computed",
                                            "hack:p=32,k=4,v=4,compute=complete",
                                            "hack:p=32,k=8,v=8,compute=complete,sums=computed",
                                            "hack:p=64,k=2,v=8,meta=bf16,compute=complete",
                                            "hack:p=128,k=8,v=4,compute=complete",
                                            "hack:p=64,mix=1,round=sr,compute=complete"};

// What a partition's codes stand for.
double value_of(const CodedPartition<double>& coded, int code) {
  return coded.origin + coded.unit * code;
}

// The sums of a page's codes, as stored or as taken.
std::vector<std::byte> sums_of(const HackShape& shape, const std::byte* page, bool keys) {
  const hack::Plane& plane = keys ? shape.k : shape.v;
  std::vector<std::byte> sums(hack::sums_bytes(plane, shape.key_dim));
  hack::sum_codes_scalar(plane, shape.key_dim, page + (keys ? 0 : shape.layout.v_codes),
                         sums.data());
  const std::size_t stored = keys ? shape.layout.k_sums : shape.layout.v_sums;
  if (stored != 0) {
    EXPECT_EQ(0, std::memcmp(sums.data(), page + stored, sums.size()));
  }
  return sums;
}

// Queries as they come, all alike, all negative; then with a constant partition.
std::vector<double> query_of_kind(Scene& scene, int kind) {
  std::vector<double> q(scene.shape().key_dim);
  for (std::size_t i = 0; i < q.size(); ++i) {
    const double x = scene.gauss();
    q[i] = kind == 0 ? x : kind == 1 ? 0.75 : kind == 2 ? -2 - std::abs(x) : i < 32 ? -1.25 : x;
  }
  return q;
}

TEST(HackComplete, ScoresAreProductsOfWhatCodesStandFor) {
  for (const char* format : kCompleteFormats) {
    for (const int d : kHeadDims) {
      Scene scene(format, d, 1, 1);
      const HackShape& shape = scene.shape();
      for (int kind = 0; kind < 4; ++kind) {
        const std::vector<double> q = query_of_kind(scene, kind);
        std::vector<std::int8_t> codes(d);
        CodedPartition<double> coded[kHackPartitionsMax];
        for (int first = 0, g = 0; first < d; first += shape.k.partition, ++g) {
          const auto count = static_cast<std::size_t>(std::min(shape.k.partition, d - first));
          coded[g] = code_partition<double>({&q[first], count}, &codes[first]);
        }
        const auto sums = sums_of(shape, scene.slab(0), true);
        for (int token = 0; token < kBlockTokens; ++token) {
          const auto key = scene.coded_row(0, true, token);
          double expected = 0;
          double magnitude = 0;
          for (int i = 0; i < d; ++i) {
            const double x = value_of(coded[i / shape.k.partition], codes[i]);
            ASSERT_NEAR(x, q[i], coded[i / shape.k.partition].unit * 0.5000001);
            expected += x * key[i];
            magnitude += std::abs(x * key[i]);
          }
          ASSERT_NEAR(hack_arithmetic::score_complete(shape, codes.data(), coded, scene.slab(0),
                                                      sums.data(), token),
                      expected, 1e-12 * magnitude)
              << format << ", head_dim " << d << ", kind " << kind;
        }
      }
    }
  }
}

TEST(HackComplete, OutputsAreSumsOfWhatCodesStandFor) {
  for (const char* format : kCompleteFormats) {
    for (const int d : kHeadDims) {
      Scene scene(format, d, 1, 2);
      const HackShape& shape = scene.shape();
      for (const bool constant : {false, true}) {
        std::vector<double> weights(kBlockTokens, 0.3);
        for (double& x : weights) x = constant ? x : std::exp2(-std::abs(3 * scene.gauss()));
        std::vector<std::int8_t> codes(kBlockTokens);
        CodedPartition<double> coded[2];
        for (int first = 0, g = 0; first < kBlockTokens; first += shape.v.partition, ++g) {
          const auto count = static_cast<std::size_t>(shape.v.partition);
          coded[g] = code_partition<double>({&weights[first], count}, &codes[first]);
        }
        std::vector<double> out(d, 0.0);
        std::vector<double> expected(d, 0.0);
        std::vector<double> magnitude(d, 0.0);
        for (int token = 0; token < kBlockTokens; ++token) {
          const double x = value_of(coded[token / shape.v.partition], codes[token]);
          const auto value = scene.coded_row(0, false, token);
          for (int i = 0; i < d; ++i) {
            expected[i] += x * value[i];
            magnitude[i] += std::abs(x * value[i]);
          }
        }
        const auto sums = sums_of(shape, scene.slab(0), false);
        hack_arithmetic::add_complete(shape, codes.data(), coded, scene.slab(0), sums.data(),
                                      out.data());
        for (int i = 0; i < d; ++i) {
          ASSERT_NEAR(out[i], expected[i], 1e-12 * magnitude[i]) << format << ", head_dim " << d;
        }
      }
    }
  }
}

TEST(HackComplete, PartitionsThatAreAlmostConstantHaveNoUnit) {
  std::int8_t codes[3];
  for (const float x : {0.0F, -1.5F, 1e-30F}) {
    const float partition[] = {x, x, x};
    const auto coded = code_partition<float>(partition, codes);
    EXPECT_EQ(coded.unit, 0);
    EXPECT_EQ(coded.origin, x);
    EXPECT_FLOAT_EQ(coded.sum, 3 * x);
  }
  const float nearly[] = {0, 1e-37F, 1e-36F};
  EXPECT_EQ(code_partition<float>(nearly, codes).sum, 0);
}

Expected expect_complete(Scene& scene, int row) {
  const HackShape& shape = scene.shape();
  const int d = shape.key_dim;
  constexpr int kTokens = kPages * kBlockTokens;
  std::vector<float> q(d);
  load_hack_query_scalar(shape, scene.query(), row, q.data());
  std::vector<std::vector<double>> keys, values;
  std::vector<double> weights(kTokens, 0.0);
  double max = -1e9;
  for (int token = 0; token < kTokens; ++token) {
    keys.push_back(scene.coded_row(token / kBlockTokens, true, token % kBlockTokens));
    values.push_back(scene.coded_row(token / kBlockTokens, false, token % kBlockTokens));
    for (int i = 0; i < d; ++i) weights[token] += q[i] * keys[token][i];
    max = std::max(max, weights[token]);
  }
  double sum = 0;
  for (double& x : weights) sum += x = std::exp2(x - max);
  Expected expected{std::vector<double>(d, 0.0), std::vector<double>(d, 0.0)};
  for (int token = 0; token < kTokens; ++token) {
    for (int i = 0; i < d; ++i) expected.out[i] += weights[token] / sum * values[token][i];
  }
  const auto unit_of = [](auto first, auto last) {
    const auto [least, greatest] = std::minmax_element(first, last);
    return (*greatest - *least) / 255;
  };
  for (int i = 0; i < d; i += kChannelStep) {
    double variance = 0;
    for (int j = 0; j < d; ++j) {  // of each channel of the query
      double slope = 0;
      for (int token = 0; token < kTokens; ++token) {
        slope += weights[token] / sum * std::log(2) * keys[token][j] *
                 (values[token][i] - expected.out[i]);
      }
      const int first = j / shape.k.partition * shape.k.partition;
      const double unit =
          unit_of(q.begin() + first, q.begin() + std::min(first + shape.k.partition, d));
      variance += slope * slope * unit * unit / 12;
    }
    for (int token = 0; token < kTokens; ++token) {
      const auto first = weights.begin() + token / shape.v.partition * shape.v.partition;
      const double unit = unit_of(first, first + shape.v.partition) / sum;
      variance += unit * unit * values[token][i] * values[token][i] / 12;
    }
    expected.deviation[i] = std::sqrt(variance);
  }
  return expected;
}

TEST(HackComplete, EqualsAttentionOverOpenedPagesWithinItsRounding) {
  constexpr int kRows = 6;
  for (const char* format : kCompleteFormats) {
    for (const int d : kHeadDims) {
      Scene scene(format, d, kRows, 3);
      std::vector<StateTile> tiles_of_tiers;
      for (const Isa isa : tiers()) {
        tiles_of_tiers.push_back(scene.run(hack_complete_kernel(isa), 0, kRows));
      }
      for (const int row : {0, 5}) {
        const Expected expected = expect_complete(scene, row);
        for (const StateTile& tile : tiles_of_tiers) {
          for (int i = 0; i < d; i += kChannelStep) {
            ASSERT_NEAR(tile.out[row * d + i] / tile.sum[row], expected.out[i],
                        6 * expected.deviation[i] + 1e-5)
                << format << ", head_dim " << d << ", row " << row << ", channel " << i;
          }
        }
      }
    }
  }
}

// Codes of queries and weights are the same but where floats tip a rounding, so that nearly all
// outputs are.
TEST(HackComplete, TiersAgree) {
  if (tiers().size() < 2) GTEST_SKIP() << "this processor lacks AVX2";
  for (const Isa isa : tiers()) {
    if (isa == Isa::kScalar) continue;
    int all = 0;
    int apart = 0;
    for (const char* format : kCompleteFormats) {
      for (const int d : kHeadDims) {
        Scene scene(format, d, 5, 5);
        const StateTile scalar = scene.run(hack_complete_kernel_scalar(), 0, 5);
        const StateTile vectors = scene.run(hack_complete_kernel(isa), 0, 5);
        for (int row = 0; row < 5; ++row) {
          const std::vector<double> deviation = expect_complete(scene, row).deviation;
          for (int i = 0; i < d; i += kChannelStep, ++all) {
            const float a = vectors.out[row * d + i] / vectors.sum[row];
            const float b = scalar.out[row * d + i] / scalar.sum[row];
            if (std::abs(a - b) > 1e-4 * std::abs(b) + 1e-5) ++apart;
            ASSERT_NEAR(a, b, 6 * deviation[i] + 1e-5)
                << format << ", head_dim " << d << ", " << isa_name(isa);
          }
        }
      }
    }
    EXPECT_LT(apart, all / 10) << all << ", " << isa_name(isa);
  }
}

// Whether sums are stored or taken makes no difference.
TEST(HackComplete, SumsAreTheSameBitsStoredAndTaken) {
  for (const Isa isa : tiers()) {
    for (const char* format : {"hack:p=32,", "hack:p=64,", "hack:p=128,k=8,v=4,"}) {
      const std::string name = std::string(format) + "compute=complete";
      Scene stored(name.c_str(), 80, 5, 6);
      Scene taken((name + ",sums=computed").c_str(), 80, 5, 6);
      const HackKernel kernel = hack_complete_kernel(isa);
      const StateTile a = stored.run(kernel, 0, 5);
      const StateTile b = taken.run(kernel, 0, 5);
      EXPECT_EQ(0, std::memcmp(a.out, b.out, 5 * 80 * sizeof(float))) << name;
    }
  }
}

TEST(HackComplete, ARowHasTheSameBitsInEveryTile) {
  for (const Isa isa : tiers()) {
    for (const char* format : kCompleteFormats) {
      for (const int d : {64, 80, 128}) {
        Scene scene(format, d, kTileRows, 4);
        const HackKernel kernel = hack_complete_kernel(isa);
        const StateTile whole = scene.run(kernel, 0, kTileRows);
        for (const auto& [first, rows] : {std::pair{0, 1}, {3, 1}, {1, 7}, {5, 4}, {2, 14}}) {
          const StateTile part = scene.run(kernel, first, rows);
          for (int row = 0; row < rows; ++row) {
            ASSERT_EQ(part.max[row], whole.max[first + row]) << isa_name(isa) << ", " << format;
            ASSERT_EQ(part.sum[row], whole.sum[first + row]) << isa_name(isa) << ", " << format;
            ASSERT_EQ(0, std::memcmp(part.out + row * d, whole.out + (first + row) * d,
                                     d * sizeof(float)))
                << isa_name(isa) << ", " << format << ", head_dim " << d;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvlane::hack_page_fixture
