// Attention against double precision, and the promise that a row's bits do not depend on company.
// SPDX-License-Identifier: Apache-2.0
#include "attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/bf16.h"
#include "base/random.h"
#include "base/test_sanitizers.h"
#include "cpu/parallel.h"
#include "cpu/tiers_fixture.h"

namespace kvlane {
namespace {

using tiers_fixture::tiers;

// A standard normal value, rounded to BF16.
bf16 random_bf16(std::uint64_t seed, std::size_t index) {
  const PhiloxCounter w = philox4x32(seed, {static_cast<std::uint32_t>(index), 0, 0, 0});
  const double radius = std::sqrt(-2 * std::log(1 - uniform_unit(w[0], w[1])));
  return to_bf16(
      static_cast<float>(radius * std::cos(6.283185307179586 * uniform_unit(w[2], w[3]))));
}

// One layer of one sequence, in blocks, with queries for every token.
class PlainScene {
 public:
  PlainScene(int tokens, int heads, int kv_heads, int head_dim, int window)
      : heads_(heads),
        window_(window),
        pool_(make_pool({1, kv_heads, head_dim, ElementType::kBf16})),
        table_(pool_),
        q_(std::size_t(tokens) * heads * head_dim) {
    EXPECT_TRUE(table_.grow(tokens).ok());
    poison();
    for (int token = 0; token < tokens; ++token) {
      for (int head = 0; head < kv_heads; ++head) {
        for (int i = 0; i < head_dim; ++i) {
          k(token, head)[i] =
              random_bf16(1, (std::size_t(token) * kv_heads + head) * head_dim + i).bits;
          v(token, head)[i] =
              random_bf16(2, (std::size_t(token) * kv_heads + head) * head_dim + i).bits;
        }
      }
    }
    table_.set_tokens(tokens);
    for (std::size_t i = 0; i < q_.size(); ++i) q_[i] = random_bf16(3, i).bits;
  }

  std::uint16_t* k(int token, int kv_head) {
    const KvShape& shape = pool_.shape();
    return pool_.page(table_.id(token / kBlockTokens), 0, kv_head) +
           std::size_t(token % kBlockTokens) * shape.head_dim;
  }
  std::uint16_t* v(int token, int kv_head) {
    return k(token, kv_head) + pool_.shape().page_plane_elements();
  }

  // Rows [first, first + rows) in spans of `chunk` rows, one call each.
  std::vector<float> run(Isa isa, int first, int rows, int chunk) {
    const int head_dim = pool_.shape().head_dim;
    std::vector<float> out(std::size_t(rows) * heads_ * head_dim);
    Attention attention(isa);
    for (int done = 0; done < rows; done += chunk) {
      const int count = std::min(chunk, rows - done);
      const AttentionSpan span{&table_, first + done, count, 0};
      const std::size_t row = std::size_t(heads_) * head_dim;
      attention.run({0,
                     heads_,
                     {&span, 1},
                     q_.data() + (first + done) * row,
                     1,
                     ElementType::kF32,
                     out.data() + done * row,
                     window_});
    }
    return out;
  }

  // All rows, with the queries of `count` KV heads alone: [tokens][their heads][head_dim].
  std::vector<float> run_heads(Isa isa, int first, int count) {
    const KvShape& shape = pool_.shape();
    const int heads = heads_ / shape.kv_heads * count;
    const std::size_t width = std::size_t(heads_ / shape.kv_heads) * shape.head_dim;
    std::vector<std::uint16_t> queries;
    for (int token = 0; token < table_.tokens(); ++token) {
      const auto at = q_.begin() + (std::size_t(token) * shape.kv_heads + first) * width;
      queries.insert(queries.end(), at, at + count * width);
    }
    std::vector<float> out(queries.size());
    const AttentionSpan span{&table_, 0, table_.tokens(), 0};
    Attention(isa).run({0,
                        heads,
                        {&span, 1},
                        queries.data(),
                        1,
                        ElementType::kF32,
                        out.data(),
                        window_,
                        first,
                        count});
    return out;
  }

  // Exact attention of one row in double precision, and the sum of |weight * value| of each
  // channel.
  void exact(int token, int head, std::vector<double>& out, std::vector<double>& magnitude) {
    const int head_dim = pool_.shape().head_dim;
    const int kv_head = head / (heads_ / pool_.shape().kv_heads);
    const std::uint16_t* q = q_.data() + (std::size_t(token) * heads_ + head) * head_dim;
    std::vector<double> score(token + 1);
    const int first = window_ == 0 ? 0 : std::max(0, token + 1 - window_);
    for (int t = 0; t <= token; ++t) {
      for (int i = 0; i < head_dim; ++i) {
        score[t] += double{to_float(bf16{q[i]})} * to_float(bf16{k(t, kv_head)[i]});
      }
      score[t] /= std::sqrt(head_dim);
      if (t < first) score[t] = -std::numeric_limits<double>::infinity();
    }
    const double max = *std::max_element(score.begin(), score.end());
    double sum = 0;
    for (double& s : score) sum += s = std::exp(s - max);
    out.assign(head_dim, 0);
    magnitude.assign(head_dim, 0);
    for (int t = 0; t <= token; ++t) {
      for (int i = 0; i < head_dim; ++i) {
        const double term = score[t] / sum * to_float(bf16{v(t, kv_head)[i]});
        out[i] += term;
        magnitude[i] += std::abs(term);
      }
    }
  }

 private:
  static BlockPool make_pool(const KvShape& shape) {
    auto pool = BlockPool::create(shape, std::size_t{1} << 26);
    EXPECT_TRUE(pool.ok()) << pool.status().message();
    return std::move(*pool);
  }

  // Rows that were never written must not be used: fill them with NaN.
  void poison() {
    for (int block = 0; block < table_.blocks(); ++block) {
      std::uint16_t* slab = pool_.slab(table_.id(block), 0);
      std::fill_n(slab, pool_.shape().slab_bytes() / 2, std::uint16_t{0x7fc0});
    }
  }

  int heads_;
  int window_;
  BlockPool pool_;
  BlockTable table_;
  std::vector<std::uint16_t> q_;
};

struct Shape {
  int tokens, heads, kv_heads, head_dim;
  int window = 0;
};

// Groups 1, 2, 4, 7, 29; head sizes that are and are not multiples of a vector; lengths around
// edges.
const Shape kShapes[] = {{1, 1, 1, 64},
                         {63, 4, 4, 64},
                         {64, 4, 2, 64},
                         {65, 8, 2, 128},
                         {130, 7, 1, 96},
                         {200, 29, 1, 64},
                         {129, 2, 1, 8},
                         {100, 4, 2, 80},
                         {1100, 4, 2, 64},
                         {2200, 2, 1, 32},
                         {150, 2, 2, 256},
                         {90, 5, 1, 18},
                         {70, 6, 1, 7},
                         // Windows of a block and more: within a run of blocks, over several, none.
                         {300, 4, 2, 64, 70},
                         {1500, 4, 2, 64, 64},
                         {2300, 2, 1, 32, 1100},
                         {400, 29, 1, 64, 129},
                         {700, 7, 1, 96, 200},
                         {1200, 8, 8, 64, 127},
                         {500, 2, 2, 256, 128},
                         {140, 4, 2, 80, 140}};

TEST(Attention, EqualsDoublePrecisionWithinRounding) {
  for (const Isa isa : tiers()) {
    for (const Shape& shape : kShapes) {
      PlainScene scene(shape.tokens, shape.heads, shape.kv_heads, shape.head_dim, shape.window);
      const std::vector<float> out = scene.run(isa, 0, shape.tokens, shape.tokens);
      std::vector<double> exact;
      std::vector<double> magnitude;
      for (const int token : {0, 1, shape.tokens / 2, shape.tokens - 1}) {
        if (token >= shape.tokens) continue;
        for (int head = 0; head < shape.heads; ++head) {
          scene.exact(token, head, exact, magnitude);
          const float* row =
              out.data() + (std::size_t(token) * shape.heads + head) * shape.head_dim;
          for (int i = 0; i < shape.head_dim; ++i) {
            // Scores, exp2 and sums are F32: for scores of this size they add up to less than this.
            constexpr double kUnit = 0x1p-16;
            ASSERT_NEAR(row[i], exact[i], 1.25 * kUnit * magnitude[i] + 1e-7)
                << isa_name(isa) << " tokens " << shape.tokens << " head_dim " << shape.head_dim
                << " token " << token << " head " << head << " channel " << i;
          }
        }
      }
    }
  }
}

TEST(Attention, RowsHaveTheSameBitsInAnyChunkingAndThreadCount) {
  for (const Isa isa : tiers()) {
    for (const Shape& shape : kShapes) {
      PlainScene scene(shape.tokens, shape.heads, shape.kv_heads, shape.head_dim, shape.window);
      set_parallel_threads(2);
      const std::vector<float> whole = scene.run(isa, 0, shape.tokens, shape.tokens);
      const int tail = std::min(shape.tokens, 140);
      const std::size_t row = std::size_t(shape.heads) * shape.head_dim;
      for (const int threads : every_other_if(kSanitized, std::vector{1, 3})) {
        set_parallel_threads(threads);
        for (const int chunk : every_other_if(kSanitized, std::vector{1, 5, 64, 100})) {
          const std::vector<float> part = scene.run(isa, shape.tokens - tail, tail, chunk);
          ASSERT_EQ(0, std::memcmp(part.data(), whole.data() + (shape.tokens - tail) * row,
                                   part.size() * sizeof(float)))
              << isa_name(isa) << " tokens " << shape.tokens << " head_dim " << shape.head_dim
              << " chunk " << chunk << " threads " << threads;
        }
      }
      set_parallel_threads(2);
    }
  }
}

// What a rank computes that has blocks of more heads than its own.
TEST(Attention, SomeHeadsOfBlocksHaveTheBitsOfAll) {
  constexpr int kTokens = 200, kHeads = 6, kKvHeads = 3, kDim = 32;
  for (const Isa isa : tiers()) {
    for (const int window : {0, 100}) {
      PlainScene scene(kTokens, kHeads, kKvHeads, kDim, window);
      const std::vector<float> all = scene.run(isa, 0, kTokens, kTokens);
      for (const auto& [first, count] : {std::pair(0, 1), std::pair(1, 2), std::pair(2, 1)}) {
        const std::vector<float> some = scene.run_heads(isa, first, count);
        const std::size_t width = std::size_t(kHeads / kKvHeads) * kDim;
        ASSERT_EQ(some.size(), kTokens * count * width);
        for (std::size_t token = 0; token < kTokens; ++token) {
          ASSERT_EQ(
              0, std::memcmp(&some[token * count * width], &all[(token * kKvHeads + first) * width],
                             count * width * sizeof(float)))
              << isa_name(isa) << " window " << window << " heads from " << first << " token "
              << token;
        }
      }
    }
  }
}

TEST(PartialState, MergeIsAssociativeAndEmptyIsNeutral) {
  const auto random_state = [](std::uint64_t seed) {
    StateTile state;
    state.reset(3, 16);
    for (int row = 0; row < 3; ++row) {
      state.max[row] = to_float(random_bf16(seed, row));
      state.sum[row] = 1.0F + std::abs(to_float(random_bf16(seed, 10 + row)));
      for (int i = 0; i < 16; ++i) state.out[row * 16 + i] = to_float(random_bf16(seed, 100 + i));
    }
    return state;
  };
  const StateTile a = random_state(1);
  const StateTile b = random_state(2);
  const StateTile c = random_state(3);
  StateTile left = a;
  merge(b, left);
  merge(c, left);
  StateTile right = b;
  merge(c, right);
  StateTile right_total = a;
  merge(right, right_total);
  StateTile empty;
  empty.reset(3, 16);
  StateTile with_empty = a;
  merge(empty, with_empty);
  StateTile into_empty = empty;
  merge(a, into_empty);
  for (int row = 0; row < 3; ++row) {
    EXPECT_EQ(left.max[row], right_total.max[row]);
    EXPECT_NEAR(left.sum[row], right_total.sum[row], 1e-6 * left.sum[row]);
    EXPECT_EQ(with_empty.sum[row], a.sum[row]);
    EXPECT_EQ(into_empty.sum[row], a.sum[row]);
    for (int i = 0; i < 16; ++i) {
      EXPECT_NEAR(left.out[row * 16 + i], right_total.out[row * 16 + i], 1e-5);
      EXPECT_EQ(with_empty.out[row * 16 + i], a.out[row * 16 + i]);
      EXPECT_EQ(into_empty.out[row * 16 + i], a.out[row * 16 + i]);
    }
  }
  StateTile both_empty = empty;
  merge(empty, both_empty);
  EXPECT_EQ(both_empty.sum[0], 0);
  EXPECT_FALSE(std::isnan(both_empty.out[0]));
}

}  // namespace
}  // namespace kvlane
