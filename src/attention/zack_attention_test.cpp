// Attention over narrow sealed rows against double precision over what they open to.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "attention/attention.h"
#include "base/bf16.h"
#include "base/test_results.h"
#include "base/test_sanitizers.h"
#include "quant/tables_fixture.h"

namespace kvlane {
namespace {

constexpr int kZackTokens = 64 * 20 + 17;  // more than one run of blocks
constexpr int kZackHeadDim = 80;
constexpr KvShape kZackShape{2, 2, kZackHeadDim, ElementType::kBf16};
constexpr int kLayer = 1;

std::shared_ptr<const KvFormat> make_with_tables(const char* name, Isa isa) {
  KvTables tables;
  tables_fixture::add_zack_tables(kZackShape, true, tables);
  tables_fixture::add_zack_kvquant_tables("zack:keep=0.5", kZackShape, tables);
  auto made = make_kv_format(name, {.shape = kZackShape, .tables = &tables, .isa = isa});
  EXPECT_TRUE(made.ok()) << made.status().message();
  return *made;
}

class ZackScene {
 public:
  ZackScene(const char* format, Isa isa, int heads, int parts)
      : format_(make_with_tables(format, isa)),
        isa_(isa),
        heads_(heads),
        parts_(parts),
        rows_(take(BlockPool::create(kZackShape, std::size_t{1} << 24))),
        sealed_(take(
            BlockPool::create_sealed(kZackShape, format_->slab_sizes(), std::size_t{1} << 24))),
        table_(sealed_, rows_, format_->window()),
        q_(std::size_t(kZackTokens) * heads * parts * kZackHeadDim) {
    EXPECT_TRUE(table_.grow(kZackTokens).ok());
    EXPECT_TRUE(table_.open_rows(kZackTokens).ok());
    for (int block = 0; block < table_.blocks(); ++block) {
      const auto values = tables_fixture::to_bits(tables_fixture::plain_rows(kZackShape, block));
      std::copy(values.begin(), values.end(), table_.rows(block, kLayer));
      EXPECT_TRUE(format_
                      ->seal({kLayer, block * kBlockTokens}, table_.rows(block, kLayer),
                             table_.sealed(block, kLayer))
                      .ok());
    }
    for (std::size_t i = 0; i < q_.size(); ++i) {
      const bool second = i / kZackHeadDim % parts == 1;
      const float x = tables_fixture::normal(9, static_cast<std::uint32_t>(i));
      q_[i] = to_bf16(second ? x * 0x1p-9F : 0.5F * x).bits;
    }
  }

  std::vector<float> run(int first, int count) {
    const std::size_t row = std::size_t(heads_) * kZackHeadDim;
    std::vector<float> out(count * row);
    const AttentionSpan span{&table_, first, count, 0};
    Attention attention(isa_, format_.get());
    attention.run({kLayer,
                   heads_,
                   {&span, 1},
                   q_.data() + first * row * parts_,
                   parts_,
                   ElementType::kF32,
                   out.data()});
    return out;
  }

  // Of the token and head; and the sum of the magnitudes of what is added up in each channel.
  void exact(int token, int head, std::vector<double>& out, std::vector<double>& magnitude) {
    const int kv_head = head / (heads_ / kZackShape.kv_heads);
    const std::uint16_t* const q =
        &q_[(std::size_t(token) * heads_ + head) * parts_ * kZackHeadDim];
    const int own = token / kBlockTokens;
    std::vector<std::vector<float>> values;
    std::vector<double> scores;
    alignas(64) std::uint16_t page[2 * kBlockTokens * kZackHeadDim];
    for (int block = 0; block <= own; ++block) {
      if (format_->window().reads_rows(block, own)) {
        std::memcpy(page, table_.page(block, kLayer, kv_head), sizeof(page));
      } else {
        format_->open_page({kLayer, block * kBlockTokens}, table_.sealed(block, kLayer), kv_head,
                           page);
      }
      for (int t = 0; t < kBlockTokens && block * kBlockTokens + t <= token; ++t) {
        double score = 0;
        std::vector<float> value;
        for (int i = 0; i < kZackHeadDim; ++i) {
          double x = to_float(bf16{q[i]});
          if (parts_ == 2) x += to_float(bf16{q[kZackHeadDim + i]});
          score += x * to_float(bf16{page[t * kZackHeadDim + i]});
          value.push_back(to_float(bf16{page[(kBlockTokens + t) * kZackHeadDim + i]}));
        }
        scores.push_back(score / std::sqrt(kZackHeadDim));
        values.push_back(value);
      }
    }
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - max);
    out.assign(kZackHeadDim, 0);
    magnitude.assign(kZackHeadDim, 0);
    for (std::size_t t = 0; t < scores.size(); ++t) {
      for (int i = 0; i < kZackHeadDim; ++i) {
        out[i] += scores[t] / sum * values[t][i];
        magnitude[i] += scores[t] / sum * std::abs(double{values[t][i]});
      }
    }
  }

 private:
  const std::shared_ptr<const KvFormat> format_;
  const Isa isa_;
  const int heads_;
  const int parts_;
  BlockPool rows_, sealed_;
  BlockTable table_;
  std::vector<std::uint16_t> q_;
};

class ZackAttention : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) {
      GTEST_SKIP() << "this processor lacks " << isa_name(GetParam());
    }
  }
};

// Scores are sums of 80 products below 40 in all and round to 2^-24 of that at each step, weights
// are e to that: 2^-16 of what is added up is far above, and a dropped or misplaced channel below.
TEST_P(ZackAttention, EqualsDoublePrecisionOverWhatSlabsOpenTo) {
  for (const char* name :
       {"zack:keep=1", "zack:keep=0.5", "zack:keep=0.4,ranks=uniform",
        "zack:keep=0.6,sink=1,recent=2", "zack:keep=0.5,sink=1+kvquant:bits=3"}) {
    for (const int heads : every_other_if(kSanitized, std::vector{2, 8, 10})) {
      for (const int parts : {1, 2}) {
        ZackScene scene(name, GetParam(), heads, parts);
        const int first = kZackTokens - 3;
        const std::vector<float> out = scene.run(first, 3);
        std::vector<double> expected, magnitude;
        for (int i = 0; i < 3 * heads; ++i) {
          scene.exact(first + i / heads, i % heads, expected, magnitude);
          for (int c = 0; c < kZackHeadDim; ++c) {
            ASSERT_NEAR(out[i * kZackHeadDim + c], expected[c], magnitude[c] * 0x1p-16)
                << name << " heads " << heads << " parts " << parts << " head " << i << " channel "
                << c;
          }
        }
      }
    }
  }
}

// What slabs open to is rounded to BF16 (2^-9 of a value, of scores up to 40 at most 0.08), which
// codes themselves are not; rounding queries and weights to 8 bits is no more.
TEST_P(ZackAttention, OnCodesIsNearWhatSlabsOpenTo) {
  const std::vector<const char*> names = {"zack:keep=0.5+int8",
                                          "zack:keep=0.5+mxfp8_e4m3",
                                          "zack:keep=0.6+kivi:bits=4",
                                          "zack:keep=0.5+hack:k=8,v=8",
                                          "zack:keep=0.5+hack:k=4,v=2,compute=bf16",
                                          "zack:bits=4,sink=1+hack:compute=bf16",
                                          "zack:keep=0.6,sink=1+hack:p=32,compute=dequantise",
                                          "zack:keep=0.5+hack:k=8,v=8,p=64",
                                          "zack:keep=0.5+hack:k=8,v=8,p=64,compute=complete"};
  for (const char* name : every_other_if(kSanitized, names)) {
    for (const int heads : {2, 10}) {
      ZackScene scene(name, GetParam(), heads, 1);
      const int first = kZackTokens - 3;
      const std::vector<float> out = scene.run(first, 3);
      std::vector<double> expected, magnitude;
      double off = 0;
      double of = 0;
      for (int i = 0; i < 3 * heads; ++i) {
        scene.exact(first + i / heads, i % heads, expected, magnitude);
        for (int c = 0; c < kZackHeadDim; ++c) {
          off += std::abs(out[i * kZackHeadDim + c] - expected[c]);
          of += magnitude[c];
        }
      }
      EXPECT_LT(off, of * 0x1p-5) << name << " heads " << heads;
    }
  }
}

TEST_P(ZackAttention, ChunksChangeNoBit) {
  const std::vector<const char*> names = {"zack:keep=0.5", "zack:keep=0.5+hack", "zack:bits=4+hack",
                                          "zack:keep=0.7,recent=1+int4"};
  for (const char* name : every_other_if(kSanitized, names)) {
    ZackScene scene(name, GetParam(), 8, 1);
    const auto together = scene.run(0, kZackTokens);
    const std::size_t row = 8 * kZackHeadDim;
    for (int at = 0; at < kZackTokens; at += 131) {
      const int count = std::min(7, kZackTokens - at);
      const auto part = scene.run(at, count);
      EXPECT_EQ(std::memcmp(part.data(), &together[at * row], count * row * sizeof(float)), 0)
          << name << " at " << at;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, ZackAttention, testing::ValuesIn(kAllIsas),
                         [](const auto& tier) { return std::string(isa_name(tier.param)); });

}  // namespace
}  // namespace kvlane
