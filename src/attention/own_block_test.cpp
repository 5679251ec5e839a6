// Attention where a query's own block is not read as rows of 16 bits: the ablations of `hack`.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "attention/attention.h"
#include "base/bf16.h"
#include "base/test_results.h"
#include "cpu/tiers_fixture.h"

namespace kvlane {
namespace {

using tiers_fixture::tiers;

constexpr int kHeadDim = 64;
constexpr int kOwnHeads = 2;
constexpr KvShape kShape{1, 1, kHeadDim, ElementType::kBf16};
constexpr std::size_t kPlane = std::size_t{kBlockTokens} * kHeadDim;

std::shared_ptr<const KvFormat> make_without_tables(const char* name, Isa isa) {
  KvFormatContext context;
  context.shape = kShape;
  context.isa = isa;
  auto made = make_kv_format(name, context);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return *made;
}

// A sequence of Gaussian rows, of which complete blocks are sealed.
class OwnBlockScene {
 public:
  OwnBlockScene(const char* format, int tokens, Isa isa)
      : format_(make_without_tables(format, isa)),
        isa_(isa),
        rows_(take(BlockPool::create(kShape, 1 << 20))),
        sealed_(take(BlockPool::create_sealed(kShape, format_->slab_sizes(), 1 << 20))),
        table_(sealed_, rows_, {}),
        q_(std::size_t(tokens) * kOwnHeads * kHeadDim) {
    std::mt19937 engine(5);
    std::normal_distribution<float> gauss;
    EXPECT_TRUE(table_.grow(tokens).ok());
    EXPECT_TRUE(table_.open_rows(tokens).ok());
    for (int block = 0; block < table_.blocks(); ++block) {
      std::uint16_t* const rows = table_.rows(block, 0);
      for (std::size_t i = 0; i < 2 * kPlane; ++i) rows[i] = to_bf16(gauss(engine)).bits;
      if (tokens / kBlockTokens <= block) continue;
      EXPECT_TRUE(format_->seal({0, block * kBlockTokens}, rows, table_.sealed(block, 0)).ok());
    }
    for (auto& q : q_) q = to_bf16(2 * gauss(engine)).bits;
  }

  // Of the query tokens [first, first + count).
  std::vector<float> run(int first, int count) {
    const std::size_t row = std::size_t{kOwnHeads} * kHeadDim;
    std::vector<float> out(count * row);
    const AttentionSpan span{&table_, first, count, 0};
    Attention attention(isa_, format_.get());
    attention.run(
        {0, kOwnHeads, {&span, 1}, q_.data() + first * row, 1, ElementType::kF32, out.data()});
    return out;
  }

  // Exact attention of a token and head over pages as given, one for each block.
  std::vector<double> exact(int token, int head,
                            const std::vector<std::vector<std::uint16_t>>& pages) const {
    const std::uint16_t* const q = &q_[(std::size_t(token) * kOwnHeads + head) * kHeadDim];
    std::vector<double> weights(token + 1, 0.0);
    const auto value = [&](int t, int i, bool keys) {
      const std::size_t at = std::size_t(t % kBlockTokens) * kHeadDim + i + (keys ? 0 : kPlane);
      return double{to_float(bf16{pages[t / kBlockTokens][at]})};
    };
    for (int t = 0; t <= token; ++t) {
      for (int i = 0; i < kHeadDim; ++i) weights[t] += to_float(bf16{q[i]}) * value(t, i, true);
      weights[t] /= std::sqrt(kHeadDim);
    }
    const double max = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& x : weights) sum += x = std::exp(x - max);
    std::vector<double> out(kHeadDim, 0.0);
    for (int t = 0; t <= token; ++t) {
      for (int i = 0; i < kHeadDim; ++i) out[i] += weights[t] / sum * value(t, i, false);
    }
    return out;
  }

  std::vector<std::uint16_t> rows(int block) const {
    const std::uint16_t* const rows = table_.rows(block, 0);
    return {rows, rows + 2 * kPlane};
  }
  std::vector<std::uint16_t> opened(int block) const {
    alignas(64) std::uint16_t page[2 * kPlane];
    format_->open_page({0, block * kBlockTokens}, table_.sealed(block, 0), 0, page);
    return {page, page + 2 * kPlane};
  }
  std::vector<std::uint16_t> own(int block, int tokens) const {
    alignas(64) std::uint16_t page[2 * kPlane];
    format_->own_page({0, block * kBlockTokens}, table_.rows(block, 0), 0, tokens, page);
    return {page, page + 2 * kPlane};
  }

 private:
  const std::shared_ptr<const KvFormat> format_;
  const Isa isa_;
  BlockPool rows_, sealed_;
  BlockTable table_;
  std::vector<std::uint16_t> q_;
};

// Queries and weights of 8 bits lead away this far at most; pages of another kind, much farther.
constexpr double kNear = 0.04;

double greatest_difference(const std::vector<float>& out, int row, int head,
                           const std::vector<double>& expected) {
  double greatest = 0;
  for (int i = 0; i < kHeadDim; ++i) {
    const float x = out[(std::size_t(row) * kOwnHeads + head) * kHeadDim + i];
    greatest = std::max(greatest, std::abs(x - expected[i]));
  }
  return greatest;
}

TEST(OwnBlock, ACompleteOneIsReadAsItsSlabByDiagInt8) {
  for (const Isa isa : tiers()) {
    for (const char* format : {"hack:paper,diag=int8", "hack:p=32,k=8,v=4,mix=1,diag=int8",
                               "hack:p=32,compute=complete,diag=int8"}) {
      OwnBlockScene scene(format, 192, isa);
      const auto out = scene.run(64, 128);
      for (const int token : {64, 65, 100, 127, 128, 190, 191}) {
        for (int head = 0; head < kOwnHeads; ++head) {
          const auto coded =
              scene.exact(token, head, {scene.opened(0), scene.opened(1), scene.opened(2)});
          EXPECT_LT(greatest_difference(out, token - 64, head, coded), kNear)
              << format << ", " << isa_name(isa) << ", token " << token;
        }
      }
    }
  }
}

TEST(OwnBlock, AnIncompleteOneIsRowsEvenForDiagInt8) {
  for (const Isa isa : tiers()) {
    OwnBlockScene coded("hack:paper,diag=int8", 100, isa);
    OwnBlockScene plain("hack:paper", 100, isa);
    EXPECT_EQ(coded.run(64, 36), plain.run(64, 36)) << isa_name(isa);
    EXPECT_NE(coded.run(0, 64), plain.run(0, 64)) << isa_name(isa);
  }
}

TEST(OwnBlock, RowsAreReadAsCodesWhereTheFormatSaysSo) {
  for (const Isa isa : tiers()) {
    for (const char* format :
         {"hack:paper,ktail=code", "hack:paper,rqe=0", "hack:p=32,ktail=code,rqe=0"}) {
      OwnBlockScene scene(format, 100, isa);
      const auto out = scene.run(90, 10);
      for (const int token : {90, 99}) {
        const auto expected = scene.exact(token, 1, {scene.opened(0), scene.own(1, 36)});
        EXPECT_LT(greatest_difference(out, token - 90, 1, expected), kNear)
            << format << ", " << isa_name(isa) << ", token " << token;
        const auto rows = scene.exact(token, 1, {scene.opened(0), scene.rows(1)});
        EXPECT_GT(greatest_difference(out, token - 90, 1, rows), kNear) << format;
      }
    }
  }
}

TEST(OwnBlock, WhetherThePassCompletesItDecidesForDiagInt8) {
  for (const Isa isa : tiers()) {
    OwnBlockScene scene("hack:paper,diag=int8", 128, isa);
    const auto whole = scene.run(64, 64);
    const std::size_t row = std::size_t{kOwnHeads} * kHeadDim;
    for (const auto& [first, count] : {std::pair{64, 1}, {70, 9}, {127, 1}}) {
      const auto part = scene.run(first, count);
      // Where the block is not complete in the pass it is read as rows.
      const bool complete = first + count == 128;
      EXPECT_EQ(0 == std::memcmp(part.data(), whole.data() + (first - 64) * row,
                                 part.size() * sizeof(float)),
                complete)
          << isa_name(isa) << ", " << first;
    }
  }
}

}  // namespace
}  // namespace kvlane
