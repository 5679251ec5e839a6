// Eviction by token against a straightforward reference in double precision, which has all tokens
// of a sequence, masks those that were discarded, and sorts.
// SPDX-License-Identifier: Apache-2.0
#include "attention/sparse_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/bf16.h"
#include "base/random.h"
#include "base/test_results.h"
#include "cpu/parallel.h"
#include "quant/tables_fixture.h"
#include "quant/zack.h"

namespace kvlane {
namespace {

constexpr int kPrompt = 150;  // two sealed blocks and an open one
constexpr int kSparseTokens = 230;

struct Case {
  const char* rule;
  const char* format;  // or null
  KvShape shape;
  int heads;
  int parts;
};

std::shared_ptr<const KvFormat> format_of(const Case& what) {
  if (what.format == nullptr) return nullptr;
  KvTables tables;
  tables_fixture::add_zack_tables(what.shape, true, tables);
  return take(make_kv_format(what.format, {.shape = what.shape, .tables = &tables}));
}

// Random queries, keys and values of a sequence in all layers.
class RandomRows {
 public:
  RandomRows(const KvShape& shape, int heads, int parts)
      : shape_(shape), heads_(heads), parts_(parts) {
    q_.resize(shape.layers);
    kv_.resize(shape.layers);
    for (int layer = 0; layer < shape.layers; ++layer) {
      q_[layer].resize(std::size_t(kSparseTokens) * heads * parts * shape.head_dim);
      for (std::size_t i = 0; i < q_[layer].size(); ++i) {
        const bool second = i / shape.head_dim % parts == 1;
        q_[layer][i] = normal(1, layer, i, second ? 0x1p-9F : 1.5F);
      }
      kv_[layer].resize(std::size_t(kSparseTokens) * shape.kv_heads * 2 * shape.head_dim);
      for (std::size_t i = 0; i < kv_[layer].size(); ++i) kv_[layer][i] = normal(2, layer, i, 1);
    }
  }

  // Of all tokens, as batches have them.
  const std::uint16_t* q(int layer, int token) const {
    return q_[layer].data() + std::size_t(token) * heads_ * parts_ * shape_.head_dim;
  }
  const std::uint16_t* kv(int layer, int token) const {
    return kv_[layer].data() + std::size_t(token) * shape_.kv_heads * 2 * shape_.head_dim;
  }
  // Of one head.
  double query(int layer, int token, int head, int channel) const {
    double sum = 0;
    for (int part = 0; part < parts_; ++part) {
      sum += to_float(bf16{q(layer, token)[(head * parts_ + part) * shape_.head_dim + channel]});
    }
    return sum;
  }
  double key(int layer, int token, int head, int channel) const {
    return to_float(bf16{kv(layer, token)[head * 2 * shape_.head_dim + channel]});
  }
  double value(int layer, int token, int head, int channel) const {
    return to_float(bf16{kv(layer, token)[(head * 2 + 1) * shape_.head_dim + channel]});
  }

 private:
  static std::uint16_t normal(int what, int layer, std::size_t index, float scale) {
    return to_bf16(scale *
                   tables_fixture::normal(100 * what + layer, static_cast<std::uint32_t>(index)))
        .bits;
  }

  const KvShape shape_;
  const int heads_;
  const int parts_;
  std::vector<std::vector<std::uint16_t>> q_;   // [layer][token][head][part][channel]
  std::vector<std::vector<std::uint16_t>> kv_;  // [layer][token][kv_head][K, V][channel]
};

// What one KV head would do that kept everything and looked away.
class Reference {
 public:
  Reference(const Case& what, const RandomRows& rows, const KvFormat* format, int layer,
            int kv_head)
      : what_(what),
        rows_(rows),
        rule_(take(make_eviction_rule(what.rule))),
        layer_(layer),
        kv_head_(kv_head),
        widths_(what.shape.widths()),
        scores_(kSparseTokens),
        kept_(kSparseTokens, true) {
    if (format) widths_ = dynamic_cast<const ZackFormat&>(*format).widths(layer, kv_head);
  }

  void prompt() {
    for (int token = 0; token < kPrompt; ++token) read(token, 0);
    const int required = std::max(1, kPrompt * rule_.keep / 10000);
    recent_ = required * rule_.recent / 10000;
    key_ = required - recent_;
    discard(kPrompt);
  }

  // A token behind the prompt; out gets what its query heads read, and the sums of |weight *
  // value|.
  void step(int token, std::vector<double>& out, std::vector<double>& magnitude) {
    out.clear();
    magnitude.clear();
    out_ = &out;
    magnitude_ = &magnitude;
    read(token, token - kPrompt + 1);
    out_ = nullptr;
    discard(token + 1);
  }

  std::vector<std::int32_t> kept(int tokens) const {
    std::vector<std::int32_t> positions;
    for (int token = 0; token < tokens; ++token) {
      if (kept_[token]) positions.push_back(token);
    }
    return positions;
  }

 private:
  static std::vector<double> softmax(std::vector<double> x) {
    const double max = *std::ranges::max_element(x);
    double sum = 0;
    for (double& each : x) sum += each = std::exp(each - max);
    for (double& each : x) each /= sum;
    return x;
  }

  // Keyformer's, standard Gumbel.
  double noise(int layer, int head, int query, int token) const {
    const auto words = philox4x32(std::uint64_t{0x67756D62} << 32 | rule_.seed,
                                  {std::uint32_t(token / 4), std::uint32_t(query),
                                   std::uint32_t(head), std::uint32_t(layer)});
    return -std::log(-std::log(((words[token % 4] >> 9) + 0.5) * 0x1p-23));
  }

  // Whether the query reads all channels of that token: its own block, while that lies in rows.
  bool reads_whole(int query, int token) const {
    return query < kPrompt && token / kBlockTokens == query / kBlockTokens;
  }

  void read(int query, int step) {
    const int d = what_.shape.head_dim;
    const int group = what_.heads / what_.shape.kv_heads;
    const std::vector<std::int32_t> seen = kept(query + 1);
    for (int head = kv_head_ * group; head < (kv_head_ + 1) * group; ++head) {
      std::vector<double> logits;
      for (const int token : seen) {
        double sum = 0;
        const int channels = reads_whole(query, token) ? d : widths_.k;
        for (int i = 0; i < channels; ++i) {
          sum += rows_.query(layer_, query, head, i) * rows_.key(layer_, token, kv_head_, i);
        }
        logits.push_back(sum / std::sqrt(d));
      }
      if (out_ != nullptr) write_output(seen, softmax(logits));
      if (rule_.score == EvictionRule::Score::kKeyformer) {
        const double tau = rule_.tau / 1e4 + step * (rule_.tau_delta / 1e4);
        for (std::size_t i = 0; i < seen.size(); ++i) {
          logits[i] += noise(layer_, head, query, seen[i]);
          logits[i] /= tau;
        }
      }
      const std::vector<double> probabilities = softmax(logits);
      for (std::size_t i = 0; i < seen.size(); ++i) scores_[seen[i]] += probabilities[i];
    }
  }

  void write_output(const std::vector<std::int32_t>& seen, const std::vector<double>& weights) {
    for (int i = 0; i < what_.shape.head_dim; ++i) {
      double sum = 0;
      double magnitude = 0;
      for (std::size_t j = 0; i < widths_.v && j < seen.size(); ++j) {
        const double term = weights[j] * rows_.value(layer_, seen[j], kv_head_, i);
        sum += term;
        magnitude += std::abs(term);
      }
      out_->push_back(sum);
      magnitude_->push_back(magnitude);
    }
  }

  // Of the tokens before `end` that are there.
  void discard(int end) {
    std::vector<std::int32_t> others = kept(end - recent_);
    std::ranges::stable_sort(others, [&](int a, int b) { return scores_[a] > scores_[b]; });
    for (std::size_t i = key_; i < others.size(); ++i) kept_[others[i]] = false;
  }

  const Case& what_;
  const RandomRows& rows_;
  const EvictionRule rule_;
  const int layer_;
  const int kv_head_;
  HeadWidths widths_;
  std::vector<double> scores_;
  std::vector<bool> kept_;
  int key_ = 0;
  int recent_ = 0;
  std::vector<double>* out_ = nullptr;
  std::vector<double>* magnitude_ = nullptr;
};

// The real thing.
class SparseScene {
 public:
  SparseScene(const Case& what, const RandomRows& rows, Isa isa)
      : what_(what),
        rows_(rows),
        format_(format_of(what)),
        row_pool_(take(BlockPool::create(what.shape, std::size_t{1} << 22))),
        sealed_pool_(take(BlockPool::create_sealed(
            what.shape, format_ ? format_->slab_sizes() : SlabSizes(what.shape.layers, 64),
            std::size_t{1} << 22))),
        table_(format_ ? BlockTable(sealed_pool_, row_pool_, {}) : BlockTable(row_pool_)),
        layout_(take(SparseLayout::create(what.shape, format_.get()))),
        cache_(layout_, take(make_eviction_rule(what.rule))),
        attention_(isa) {}

  const KvFormat* format() const { return format_.get(); }
  SparseCache& cache() { return cache_; }
  BlockPool& pool() { return table_.pool(); }

  void prompt(int chunk) {
    EXPECT_TRUE(table_.grow(kPrompt).ok());
    for (int first = 0; first < kPrompt; first += chunk) {
      const int count = std::min(chunk, kPrompt - first);
      EXPECT_TRUE(table_.open_rows(first + count).ok());
      for (int layer = 0; layer < what_.shape.layers; ++layer) {
        for (int token = first; token < first + count; ++token) write(layer, token);
        for (int block = first / kBlockTokens; format_ && block < (first + count) / kBlockTokens;
             ++block) {
          EXPECT_TRUE(format_
                          ->seal({layer, block * kBlockTokens}, table_.rows(block, layer),
                                 table_.sealed(block, layer))
                          .ok());
        }
        const SparseSpan span{&cache_, &table_, first, count, 0};
        attention_.score(batch(layer, first, nullptr), {&span, 1});
      }
      table_.set_tokens(first + count);
    }
    EXPECT_TRUE(cache_.evict(table_).ok());
  }

  // Outputs [layer][token][head][channel].
  std::vector<float> steps(int first, int count) {
    const std::size_t layer_values = std::size_t(count) * what_.heads * what_.shape.head_dim;
    std::vector<float> out(what_.shape.layers * layer_values);
    for (int layer = 0; layer < what_.shape.layers; ++layer) {
      const SparseSpan span{&cache_, nullptr, first, count, 0};
      attention_.run(batch(layer, first, out.data() + layer * layer_values), {&span, 1},
                     rows_.kv(layer, first));
    }
    cache_.set_tokens(first + count);
    return out;
  }

  std::vector<std::int32_t> kept(int layer, int kv_head) const {
    const HeadSlots& slots = cache_.head(layer, kv_head);
    std::vector<std::int32_t> positions = slots.positions;
    if (slots.free != HeadSlots::kNone) positions.erase(positions.begin() + slots.free);
    std::ranges::sort(positions);
    return positions;
  }

 private:
  void write(int layer, int token) {
    const int d = what_.shape.head_dim;
    for (int head = 0; head < what_.shape.kv_heads; ++head) {
      const std::uint16_t* const k = rows_.kv(layer, token) + head * 2 * d;
      std::uint16_t* const to =
          table_.page(token / kBlockTokens, layer, head) + token % kBlockTokens * d;
      std::copy_n(k, d, to);
      std::copy_n(k + d, d, to + what_.shape.page_plane_elements());
    }
  }

  AttentionBatch batch(int layer, int first, float* out) const {
    return {layer, what_.heads, {}, rows_.q(layer, first), what_.parts, ElementType::kF32, out};
  }

  const Case& what_;
  const RandomRows& rows_;
  const std::shared_ptr<const KvFormat> format_;
  BlockPool row_pool_;
  BlockPool sealed_pool_;
  BlockTable table_;
  const SparseLayout layout_;
  SparseCache cache_;
  const SparseAttention attention_;
};

constexpr KvShape shape(int layers, int kv_heads, int head_dim) {
  return {layers, kv_heads, head_dim, ElementType::kBf16};
}

const Case kCases[] = {
    {"h2o:keep=0.5,recent=0.5", nullptr, shape(3, 2, 32), 2, 1},
    {"h2o:keep=0.3,recent=0.1", nullptr, shape(2, 2, 64), 8, 1},
    {"h2o:keep=0.2,recent=0", nullptr, shape(1, 1, 16), 20, 2},
    {"h2o:keep=0.4,recent=1", nullptr, shape(2, 1, 24), 3, 1},
    {"h2o:keep=1,recent=0.5", nullptr, shape(1, 2, 32), 4, 1},
    {"keyformer:keep=0.6,recent=0.3", nullptr, shape(3, 2, 32), 4, 1},
    {"keyformer:keep=0.1,recent=0.5,tau=2,tau_delta=0.1,seed=5", nullptr, shape(2, 2, 40), 6, 2},
    {"keyformer:keep=0.5,recent=0.3", "zack:keep=0.5", shape(2, 2, 64), 4, 1},
    {"h2o:keep=0.5,recent=0.3", "zack:keep=0.75", shape(2, 3, 48), 3, 2},
};

TEST(SparseAttention, KeepsWhatTheReferenceKeepsAndReadsIt) {
  for (const Case& what : kCases) {
    SCOPED_TRACE(std::string(what.rule) + " " + (what.format ? what.format : "bf16"));
    const RandomRows rows(what.shape, what.heads, what.parts);
    SparseScene scene(what, rows, best_isa());
    std::vector<Reference> references;
    for (int layer = 0; layer < what.shape.layers; ++layer) {
      for (int head = 0; head < what.shape.kv_heads; ++head) {
        references.emplace_back(what, rows, scene.format(), layer, head);
      }
    }
    const auto each = [&](const auto& body) {
      for (int layer = 0; layer < what.shape.layers; ++layer) {
        for (int head = 0; head < what.shape.kv_heads; ++head) {
          body(layer, head, references[layer * what.shape.kv_heads + head]);
        }
      }
    };
    scene.prompt(kPrompt);
    each([&](int layer, int head, Reference& reference) {
      reference.prompt();
      ASSERT_EQ(scene.kept(layer, head), reference.kept(kPrompt)) << layer << " " << head;
    });
    const int values = what.heads / what.shape.kv_heads * what.shape.head_dim;
    for (int token = kPrompt; token < kSparseTokens; ++token) {
      const std::vector<float> out = scene.steps(token, 1);
      each([&](int layer, int head, Reference& reference) {
        std::vector<double> expected;
        std::vector<double> magnitude;
        reference.step(token, expected, magnitude);
        const float* const row =
            out.data() + (std::size_t(layer) * what.shape.kv_heads + head) * values;
        for (int i = 0; i < values; ++i) {
          // As in attention_test.cpp: scores, exp2 and sums are F32.
          ASSERT_NEAR(row[i], expected[i], 1.25 * 0x1p-16 * magnitude[i] + 1e-7) << token;
        }
        ASSERT_EQ(scene.kept(layer, head), reference.kept(token + 1))
            << "layer " << layer << " head " << head << " token " << token;
      });
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(SparseAttention, ChunksThreadsAndTiersKeepTheSame) {
  for (const Case& what : kCases) {
    SCOPED_TRACE(what.rule);
    const RandomRows rows(what.shape, what.heads, what.parts);
    SparseScene step_by_step(what, rows, best_isa());
    step_by_step.prompt(1);
    std::vector<std::vector<float>> outs;
    for (int token = kPrompt; token < kSparseTokens; ++token) {
      outs.push_back(step_by_step.steps(token, 1));
    }
    for (const Isa isa : kAllIsas) {
      if (!isa_supported(isa)) continue;
      for (const int threads : {1, 3}) {
        set_parallel_threads(threads);
        SparseScene scene(what, rows, isa);
        scene.prompt(threads == 1 ? kPrompt : 70);
        const std::vector<float> out = scene.steps(kPrompt, kSparseTokens - kPrompt);
        const std::size_t row = std::size_t(what.heads) * what.shape.head_dim;
        for (int layer = 0; layer < what.shape.layers; ++layer) {
          for (int head = 0; head < what.shape.kv_heads; ++head) {
            const HeadSlots& slots = scene.cache().head(layer, head);
            const HeadSlots& expected = step_by_step.cache().head(layer, head);
            ASSERT_EQ(slots.positions, expected.positions) << isa_name(isa) << " " << threads;
            ASSERT_EQ(slots.scores, expected.scores) << isa_name(isa) << " " << threads;
          }
          for (std::size_t i = 0; isa == best_isa() && i < outs.size(); ++i) {
            ASSERT_EQ(
                0, std::memcmp(outs[i].data() + layer * row,
                               out.data() + (layer * outs.size() + i) * row, row * sizeof(float)))
                << threads;
          }
        }
      }
    }
    set_parallel_threads(2);
  }
}

TEST(SparseAttention, FreesThePromptsMemory) {
  for (const Case& what : kCases) {
    const RandomRows rows(what.shape, what.heads, what.parts);
    SparseScene scene(what, rows, best_isa());
    const int all = scene.pool().blocks_total();
    scene.prompt(kPrompt);
    const int held = all - scene.pool().blocks_free();
    EXPECT_EQ(held, blocks_for(scene.cache().budget().tokens() + 1)) << what.rule;
    (void)scene.steps(kPrompt, kSparseTokens - kPrompt);
    EXPECT_EQ(all - scene.pool().blocks_free(), held) << "not one block more";
  }
}

}  // namespace
}  // namespace kvlane
