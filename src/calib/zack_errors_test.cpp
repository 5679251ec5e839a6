// Measured errors against attention written down in double precision.
// SPDX-License-Identifier: Apache-2.0
#include "calib/zack_errors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/bf16.h"
#include "base/test_paths.h"
#include "base/test_results.h"
#include "calib/calibrate_zack.h"
#include "calib/fold.h"
#include "cpu/parallel.h"
#include "model/widen.h"
#include "quant/kv_format.h"
#include "quant/zack_bits.h"

namespace kvlane {
namespace {

using Row = std::vector<double>;
using DoubleRows = std::vector<Row>;

constexpr int kErrorTokens = 200;  // three whole blocks

struct World {
  explicit World(const std::string& name)
      : directory(std::string(kSourceDir) + "/tests/fixtures/models/" + name),
        model(take(Model::load(directory, {.isa = best_isa()}))),
        checkpoint(take(Checkpoint::open(directory))),
        tokens(kErrorTokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<std::int32_t>((3 + i * 7 + i * i % 13) % model->config().vocab);
    }
    const ZackSums sums = take(sum_for_zack(*model, tokens, {}));
    rotations = take(zack_rotations(sums.grams, output_grams(checkpoint), {}));
  }

  ZackErrors errors(std::size_t count = kErrorTokens) const {
    ZackSample sample(*model, count);
    const Status completed = sample.complete(*model, tokens);
    EXPECT_TRUE(completed.ok()) << completed.message();
    return take(measure_zack_errors(checkpoint, model->isa(), sample, rotations, {}));
  }

  std::string directory;
  std::unique_ptr<Model> model;
  Checkpoint checkpoint;
  std::vector<std::int32_t> tokens;
  ZackRotations rotations;
};

Row times(const Row& row, const Rotation& rotation) {
  Row out(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) {
    for (std::size_t j = 0; j < row.size(); ++j) {
      out[j] += row[i] * rotation.matrix[i * row.size() + j];
    }
  }
  return out;
}

// A layer's K, V and queries in the rotated bases.
struct Layer {
  std::vector<DoubleRows> k, v;  // [kv_heads][tokens][d]
  std::vector<DoubleRows> q;     // [heads][tokens][d]
};

Layer layer_of(const World& world, int layer) {
  const ModelConfig& config = world.model->config();
  const int d = config.head_dim;
  const int tokens = kErrorTokens / kBlockTokens * kBlockTokens;
  const std::size_t group = std::size_t(config.heads) / config.kv_heads;
  Layer found;
  found.q.resize(config.heads);
  const auto rotation = [&](bool is_key, std::size_t head) -> const Rotation& {
    return (is_key ? world.rotations.qk : world.rotations.vw)[layer * config.kv_heads + head];
  };
  const SequenceHooks hooks{
      .on_queries =
          [&](int at, std::span<const std::uint16_t> rows, int parts) {
            for (int i = 0; at == layer && i < tokens * config.heads; ++i) {
              Row row(d);
              for (int j = 0; j < parts * d; ++j) {
                row[j % d] += to_float(bf16{rows[std::size_t(i) * parts * d + j]});
              }
              const std::size_t head = i % config.heads;
              found.q[head].push_back(times(row, rotation(true, head / group)));
            }
          },
      .on_pass = {}};
  const auto rows_of = [&](const BlockTable& table, int head, bool is_key) {
    DoubleRows rows;
    for (int t = 0; t < tokens; ++t) {
      const std::uint16_t* const from = table.page(t / kBlockTokens, layer, head) +
                                        ((is_key ? 0 : kBlockTokens) + t % kBlockTokens) * d;
      Row row(d);
      for (int i = 0; i < d; ++i) row[i] = to_float(bf16{from[i]});
      row = times(row, rotation(is_key, head));
      for (double& x : row) x = to_float(to_bf16(static_cast<float>(x)));
      rows.push_back(row);
    }
    return rows;
  };
  const auto on_sequence = [&](const BlockTable& table) {
    for (int head = 0; head < config.kv_heads; ++head) {
      found.k.push_back(rows_of(table, head, true));
      found.v.push_back(rows_of(table, head, false));
    }
  };
  EXPECT_TRUE(run_sequences(*world.model, world.tokens, on_sequence, {}, hooks).ok());
  return found;
}

// Of one query head; earlier blocks from `sealed_*`, whose rows may be shorter.
DoubleRows attention(const DoubleRows& q, const DoubleRows& k, const DoubleRows& v,
                     const DoubleRows& sealed_k, const DoubleRows& sealed_v) {
  const std::size_t d = q[0].size();
  DoubleRows out;
  for (std::size_t t = 0; t < q.size(); ++t) {
    const auto own = [&](std::size_t s) { return s / kBlockTokens == t / kBlockTokens; };
    std::vector<double> weights;
    for (std::size_t s = 0; s <= t; ++s) {
      const Row& key = own(s) ? k[s] : sealed_k[s];
      double score = 0;
      for (std::size_t i = 0; i < key.size(); ++i) score += q[t][i] * key[i];
      weights.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
    }
    double sum = 0;
    for (const double weight : weights) sum += weight;
    Row row(d);
    for (std::size_t s = 0; s <= t; ++s) {
      const Row& value = own(s) ? v[s] : sealed_v[s];
      for (std::size_t i = 0; i < value.size(); ++i) row[i] += weights[s] / sum * value[i];
    }
    out.push_back(row);
  }
  return out;
}

// The first dimensions of K and V as `hack` codes them.
void code(const DoubleRows& k, const DoubleRows& v, int width, int bits, DoubleRows& coded_k,
          DoubleRows& coded_v) {
  const std::string b = std::to_string(bits);
  const auto format =
      take(make_kv_format("hack:k=" + b + ",v=" + b, {.shape = {1, 1, width, ElementType::kBf16}}));
  coded_k.assign(k.size(), Row(width));
  coded_v.assign(v.size(), Row(width));
  std::vector<std::uint16_t> rows(2 * kBlockTokens * width);
  alignas(64) static std::byte slab[1 << 17];
  alignas(64) static std::uint16_t opened[1 << 16];
  for (std::size_t first = 0; first < k.size(); first += kBlockTokens) {
    for (int i = 0; i < kBlockTokens * width; ++i) {
      const std::size_t token = first + i / width;
      rows[i] = to_bf16(static_cast<float>(k[token][i % width])).bits;
      rows[kBlockTokens * width + i] = to_bf16(static_cast<float>(v[token][i % width])).bits;
    }
    EXPECT_TRUE(format->seal({0, 0}, rows.data(), slab).ok());
    format->open_page({0, 0}, slab, 0, opened);
    for (int i = 0; i < kBlockTokens * width; ++i) {
      coded_k[first + i / width][i % width] = to_float(bf16{opened[i]});
      coded_v[first + i / width][i % width] = to_float(bf16{opened[kBlockTokens * width + i]});
    }
  }
}

// Of rows behind a query head's slice of the output projection: the sum of squares.
double energy(const World& world, int layer, int head, const DoubleRows& rows) {
  const ModelConfig& config = world.model->config();
  const std::size_t d = config.head_dim;
  const TensorView& weights = world.checkpoint.tensors().at(output_projection(config, layer));
  std::vector<float> wide(std::size_t(config.hidden) * config.heads * d);
  widen(weights.type, weights.bytes.data(), wide.size(), wide.data());
  const std::size_t kv_head = head / (config.heads / config.kv_heads);
  const Rotation& rotation = world.rotations.vw[layer * config.kv_heads + kv_head];
  double sum = 0;
  for (int out = 0; out < config.hidden; ++out) {
    const float* const from = wide.data() + (std::size_t(out) * config.heads + head) * d;
    const Row slice = times(Row(from, from + d), rotation);
    for (const Row& row : rows) {
      double y = 0;
      for (std::size_t i = 0; i < d; ++i) y += slice[i] * row[i];
      sum += y * y;
    }
  }
  return sum;
}

DoubleRows difference(DoubleRows a, const DoubleRows& b) {
  for (std::size_t t = 0; t < a.size(); ++t) {
    for (std::size_t i = 0; i < a[t].size(); ++i) a[t][i] -= b[t][i];
  }
  return a;
}

TEST(MeasureZackErrors, IsWhatAttentionLosesByOneHead) {
  for (const char* const name : {"llama-gqa-bf16-llama3-sharded", "qwen3-gqa-bf16"}) {
    SCOPED_TRACE(name);
    const World world(name);
    const ModelConfig& config = world.model->config();
    const std::size_t widths = config.head_dim / 16;
    const ZackErrors errors = world.errors();
    const int layer = config.layers - 1;
    const int kv_head = config.kv_heads - 1;
    const int group = config.heads / config.kv_heads;
    const Layer rows = layer_of(world, layer);
    double all = 0;
    for (int head = 0; head < config.heads; ++head) {
      const DoubleRows& k = rows.k[head / group];
      const DoubleRows& v = rows.v[head / group];
      all += energy(world, layer, head, attention(rows.q[head], k, v, k, v));
    }
    const std::size_t choices = zack::kCodeBits.size() * widths;
    ASSERT_EQ(errors.k.size(), config.layers * config.kv_heads * choices);
    ASSERT_EQ(errors.v.size(), errors.k.size());
    for (std::size_t bits = 0; bits < zack::kCodeBits.size(); ++bits) {
      const std::size_t width = bits % widths;
      const DoubleRows& k = rows.k[kv_head];
      const DoubleRows& v = rows.v[kv_head];
      DoubleRows coded_k;
      DoubleRows coded_v;
      code(k, v, 16 * static_cast<int>(width + 1), zack::kCodeBits[bits], coded_k, coded_v);
      double lost_k = 0;
      double lost_v = 0;
      for (int head = kv_head * group; head < config.heads; ++head) {
        const DoubleRows& q = rows.q[head];
        const DoubleRows right = attention(q, k, v, k, v);
        lost_k += energy(world, layer, head, difference(attention(q, k, v, coded_k, v), right));
        lost_v += energy(world, layer, head, difference(attention(q, k, v, k, coded_v), right));
      }
      const std::size_t at =
          (std::size_t(layer) * config.kv_heads + kv_head) * choices + bits * widths + width;
      // Rows of K and V may round to another BF16 number than theirs.
      EXPECT_NEAR(errors.k[at], lost_k / all, 0.02 * lost_k / all + 1e-7) << bits;
      EXPECT_NEAR(errors.v[at], lost_v / all, 0.02 * lost_v / all + 1e-7) << bits;
      EXPECT_GT(errors.v[at], 0) << bits;
    }
  }
}

TEST(MeasureZackErrors, FallsWithBits) {
  const World world("llama-gqa-bf16-llama3-sharded");
  const ZackErrors errors = world.errors();
  const std::size_t widths = world.model->config().head_dim / 16;
  for (const std::vector<float>* of : {&errors.k, &errors.v}) {
    for (std::size_t i = widths - 1; i < of->size(); i += 3 * widths) {
      const std::span all(*of);
      EXPECT_GT(all[i], all[i + widths]);
      EXPECT_GT(all[i + widths], 10 * all[i + 2 * widths]);
    }
  }
}

TEST(MeasureZackErrors, DoesNotDependOnThreads) {
  const World world("llama-gqa-bf16-llama3-sharded");
  const ZackErrors expected = world.errors();
  const ParallelScope one(1);
  const ZackErrors alone = world.errors();
  EXPECT_EQ(alone.k, expected.k);
  EXPECT_EQ(alone.v, expected.v);
}

TEST(MeasureZackErrors, NothingIsLostOfOneBlock) {
  const World world("llama-gqa-bf16-llama3-sharded");
  const ZackErrors errors = world.errors(127);
  EXPECT_EQ(std::ranges::count(errors.k, 0.0F), static_cast<std::ptrdiff_t>(errors.k.size()));
  EXPECT_FALSE(errors.v.empty());
}

}  // namespace
}  // namespace kvlane
