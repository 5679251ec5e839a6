// Attention on codes: the formulas against products of what codes stand for, the kernels against
// attention in double precision over the opened pages, and a row's independence of its tile.
// SPDX-License-Identifier: Apache-2.0
#include "attention/hack_page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "attention/hack_page_fixture.h"
#include "quant/hadamard.h"

namespace kvlane::hack_page_fixture {
namespace {

// In double precision, on a query that 8 bits hold exactly.
TEST(HackArithmetic, ScoresAreProductsOfWhatCodesStandFor) {
  for (const char* format : kFormats) {
    for (const int d : kHeadDims) {
      Scene scene(format, d, 1, 1);
      const HackShape& shape = scene.shape();
      constexpr double kScale = 0x1p-5;
      std::vector<std::int8_t> codes(d);
      std::vector<double> q(d);
      double sums[kHackPartitionsMax] = {};
      double centres[kHackPartitionsMax] = {};
      for (int i = 0; i < d; ++i) {
        codes[i] = static_cast<std::int8_t>(i * 89 % 255 - 127);
        q[i] = kScale * codes[i];
        sums[i / shape.key_partition()] += q[i];
      }
      if (shape.k.axis == hack::Axis::kBoth) centres[0] = -hack::middle_code(shape.k) * sums[0];
      const hack_arithmetic::Query<double> query{codes.data(), q.data(), kScale, sums, centres};
      for (int page = 0; page < kPages; ++page) {
        const double base = hack_arithmetic::base_score(shape, query, scene.slab(page));
        for (int token = 0; token < kBlockTokens; ++token) {
          const auto key = scene.coded_row(page, true, token);
          double expected = 0;
          double magnitude = 0;
          for (int i = 0; i < d; ++i) {
            expected += q[i] * key[i];
            magnitude += std::abs(q[i] * key[i]);
          }
          const double score = hack_arithmetic::score(shape, query, scene.slab(page), token, base);
          ASSERT_NEAR(score, expected, 1e-12 * magnitude) << format << ", head_dim " << d;
        }
      }
    }
  }
}

// In double precision, on weights that 8 bits hold exactly.
TEST(HackArithmetic, OutputsAreSumsOfWhatCodesStandFor) {
  for (const char* format : kFormats) {
    for (const int d : kHeadDims) {
      Scene scene(format, d, 1, 2);
      const HackShape& shape = scene.shape();
      const bool both = shape.v.axis == hack::Axis::kBoth;
      const std::byte* const page = scene.slab(0);
      hack_arithmetic::Weights<double> weights{};
      std::vector<double> of_token(kBlockTokens);
      weights.unit = 0x1p-9;
      for (int token = 0; token < kBlockTokens; ++token) {
        weights.codes[token] = token * 67 % 256;
        of_token[token] = weights.unit * weights.codes[token];
        if (both) {
          of_token[token] /=
              hack_arithmetic::affine_of(shape.v, d, page + shape.layout.v_metadata, token, 0).s;
        }
        weights.total += of_token[token];
      }
      std::vector<double> out(d, 0.0);
      std::vector<double> expected(d, 0.0);
      std::vector<double> magnitude(d, 0.0);
      hack_arithmetic::add_values(shape, weights, page, out.data());
      for (int token = 0; token < kBlockTokens; ++token) {
        const auto value = scene.coded_row(0, false, token);
        for (int i = 0; i < d; ++i) {
          expected[i] += of_token[token] * value[i];
          magnitude[i] += std::abs(of_token[token] * value[i]);
        }
      }
      for (int i = 0; i < d; ++i) {
        ASSERT_NEAR(out[i], expected[i], 1e-12 * magnitude[i]) << format << ", head_dim " << d;
      }
    }
  }
}

Expected expect(Scene& scene, int row) {
  const HackShape& shape = scene.shape();
  const int d = shape.key_dim;
  const PageQuery query = scene.query();
  std::vector<float> q(d);
  for (int i = 0; i < d; ++i) q[i] = to_float(bf16{query.q[row][i]}) * query.scale;
  if (shape.mix) mix_channels_scalar(q.data(), 1, d);
  double most = 0;
  for (const float x : q) most = std::max<double>(most, std::abs(x));
  constexpr int kTokens = kPages * kBlockTokens;
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
  const auto scale_of = [&](bool keys_wanted, int token, int channel) {
    const std::size_t metadata = keys_wanted ? shape.layout.k_metadata : shape.layout.v_metadata;
    return hack_arithmetic::affine_of(keys_wanted ? shape.k : shape.v, d,
                                      scene.slab(token / kBlockTokens) + metadata,
                                      token % kBlockTokens, channel);
  };
  const bool both = shape.v.axis == hack::Axis::kBoth;
  std::vector<double> greatest(kPages, 0.0);  // of what becomes codes, in each page
  for (int token = 0; token < kTokens; ++token) {
    double& of_page = greatest[token / kBlockTokens];
    of_page = std::max(of_page, weights[token] * (both ? scale_of(false, token, 0).s : 1));
  }
  for (int i = 0; i < d; i += kChannelStep) {
    double variance = 0;
    for (int j = 0; j < d; ++j) {  // of each channel of the query
      double slope = 0;
      for (int token = 0; token < kTokens; ++token) {
        const auto affine = scale_of(true, token, j);
        const double middle =
            shape.k.axis == hack::Axis::kBoth ? 0 : double{affine.s} * hack::middle_code(shape.k);
        slope += weights[token] / sum * std::log(2) * (keys[token][j] - affine.m - middle) *
                 (values[token][i] - expected.out[i]);
      }
      variance += slope * slope * most * most / 127 / 127 / 12;
    }
    for (int token = 0; token < kTokens; ++token) {
      const double unit = greatest[token / kBlockTokens] / 255 / sum;
      const auto affine = scale_of(false, token, i);
      const double slope =
          both ? (values[token][i] - affine.m) / affine.s : values[token][i] - expected.out[i];
      variance += unit * unit * slope * slope / 12;
    }
    expected.deviation[i] = std::sqrt(variance);
  }
  return expected;
}

TEST(HackKernel, EqualsAttentionOverOpenedPagesWithinItsRounding) {
  constexpr int kRows = 6;
  for (const char* format : kFormats) {
    for (const int d : kHeadDims) {
      Scene scene(format, d, kRows, 3);
      std::vector<StateTile> tiles_of_tiers;
      for (const Isa isa : tiers()) tiles_of_tiers.push_back(scene.run(hack_kernel(isa), 0, kRows));
      for (const int row : {0, 5}) {
        const Expected expected = expect(scene, row);
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

TEST(HackKernel, ARowHasTheSameBitsInEveryTile) {
  for (const Isa isa : tiers()) {
    for (const char* format : kFormats) {
      for (const int d : {64, 80, 128}) {
        Scene scene(format, d, kTileRows, 4);
        const StateTile whole = scene.run(hack_kernel(isa), 0, kTileRows);
        for (const auto& [first, rows] :
             {std::pair{0, 1}, {3, 1}, {2, 2}, {4, 3}, {1, 7}, {5, 4}, {2, 14}}) {
          const StateTile part = scene.run(hack_kernel(isa), first, rows);
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

// Three tiles of 1, 2 and 3 rows whose pages follow each other in any order, so that kernels take
// several at once, of one tile or of others.
struct ThreeTiles {
  ThreeTiles(Scene& scene, const HackKernel& kernel) {
    for (int i = 0; i < 3; ++i) {
      kernel.prepare(scene.shape(), scene.query(kFirstRow[i]), i + 1, queries[i]);
      tiles[i].reset(i + 1, scene.shape().value_dim);
    }
    constexpr int kOrder[] = {0, 0, 1, 0, 2, 0, 1, 1, 0, 0, 0, 0, 0, 2, 2, 1, 0, 1, 2, 0};
    for (const int i : kOrder) {
      const auto page = static_cast<int>(items.size()) % kPages;
      const std::byte* const next = scene.slab((page + 1) % kPages);
      items.push_back({&queries[i], scene.slab(page), {next, 128}, &tiles[i]});
    }
    items[7].visible = kVisible;
  }

  static constexpr int kFirstRow[] = {0, 1, 3};
  static constexpr int kVisible[] = {1, 40};  // of a tile of two rows
  HackQuery queries[3];
  StateTile tiles[3];
  std::vector<HackItem> items;
};

TEST(HackKernel, PagesTakenTogetherAreAsByThemselves) {
  for (const Isa isa : tiers()) {
    const HackKernel kernel = hack_kernel(isa);
    for (const char* format : kFormats) {
      for (const int d : {64, 80, 128}) {
        Scene scene(format, d, 6, 7);
        const auto together = std::make_unique<ThreeTiles>(scene, kernel);
        kernel.attend(scene.shape(), together->items);
        const auto apart = std::make_unique<ThreeTiles>(scene, kernel);
        for (const HackItem& item : apart->items) kernel.attend(scene.shape(), {&item, 1});
        for (int i = 0; i < 3; ++i) {
          const StateTile& a = together->tiles[i];
          const StateTile& b = apart->tiles[i];
          for (int row = 0; row <= i; ++row) {
            ASSERT_EQ(a.max[row], b.max[row]) << isa_name(isa) << ", " << format;
            ASSERT_EQ(a.sum[row], b.sum[row]) << isa_name(isa) << ", " << format;
          }
          ASSERT_EQ(0, std::memcmp(a.out, b.out, (i + 1) * d * sizeof(float)))
              << isa_name(isa) << ", " << format << ", head_dim " << d << ", tile " << i;
        }
      }
    }
  }
}

// Integer sums of vectors are in 16 bits where they are sure to fit.
TEST(HackKernel, GreatestSumsFit) {
  constexpr int kRows = 6;
  for (const char* format : kFormats) {
    for (const int d : kHeadDims) {
      Scene scene(format, d, kRows, 6);
      scene.make_greatest();
      const PageQuery query = scene.query();
      const std::vector<double> key = scene.coded_row(0, true, 0);
      const std::vector<double> value = scene.coded_row(0, false, 0);
      for (const Isa isa : tiers()) {
        const StateTile tile = scene.run(hack_kernel(isa), 0, kRows);
        for (int row = 0; row < kRows; ++row) {
          std::vector<float> q(d);
          for (int i = 0; i < d; ++i) q[i] = to_float(bf16{query.q[row][i]}) * query.scale;
          if (scene.shape().mix) mix_channels_scalar(q.data(), 1, d);
          double score = 0;
          for (int i = 0; i < d; ++i) score += q[i] * key[i];
          ASSERT_NEAR(tile.max[row], score, 1e-5 * std::abs(score))
              << isa_name(isa) << ", " << format << ", head_dim " << d << ", row " << row;
          for (int i = 0; i < d; ++i) {
            ASSERT_NEAR(tile.out[row * d + i] / tile.sum[row], value[i], 1e-5 * value[i])
                << isa_name(isa) << ", " << format << ", head_dim " << d << ", row " << row;
          }
        }
      }
    }
  }
}

// What codes stand for is the same everywhere; only float sums may differ, and roundings they tip.
TEST(HackKernel, TiersAgree) {
  for (const char* format : kFormats) {
    for (const int d : kHeadDims) {
      Scene scene(format, d, 5, 5);
      const StateTile scalar = scene.run(hack_kernel_scalar(), 0, 5);
      for (const Isa isa : tiers()) {
        const StateTile vectors = scene.run(hack_kernel(isa), 0, 5);
        for (int row = 0; row < 5; ++row) {
          EXPECT_NEAR(vectors.max[row], scalar.max[row], 1e-3 * std::abs(scalar.max[row]) + 1e-3);
          for (int i = 0; i < d; ++i) {
            const float a = vectors.out[row * d + i] / vectors.sum[row];
            const float b = scalar.out[row * d + i] / scalar.sum[row];
            ASSERT_NEAR(a, b, 0.03)
                << isa_name(isa) << ", " << format << ", head_dim " << d << ", row " << row;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvlane::hack_page_fixture
