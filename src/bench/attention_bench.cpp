// Caches of every format side by side, and attention of their last tokens over each, in turns.
// SPDX-License-Identifier: Apache-2.0
#include "bench/attention_bench.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "attention/attention.h"
#include "base/bf16.h"
#include "bench/interleaved.h"
#include "bench/sample_tables.h"
#include "cache/block_pool.h"
#include "cpu/parallel.h"
#include "eval/eval_run.h"

namespace kvlane {
namespace {

using Format = std::shared_ptr<const KvFormat>;

constexpr int kSampleSlabs = 16;  // of different values; a cache repeats them
constexpr double kRoundSeconds = 0.02;
constexpr std::size_t kPoolSlack = 4096;
constexpr int kQueryTokensMax = 4096;
constexpr double kUseGoal = 0.9;

// Gaussian rows, every channel with a mean and a scale of its own, as keys have.
std::vector<std::uint16_t> sample_rows(const KvShape& shape) {
  std::mt19937 engine(1);
  std::normal_distribution<float> gauss;
  const std::size_t slab = shape.slab_bytes() / 2;
  std::vector<float> mean(shape.head_dim);
  std::vector<float> scale(shape.head_dim);
  for (float& x : mean) x = gauss(engine);
  for (float& x : scale) x = std::exp2(gauss(engine));
  std::vector<std::uint16_t> rows(kSampleSlabs * slab);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t channel = i % shape.head_dim;
    rows[i] = to_bf16(mean[channel] + scale[channel] * gauss(engine)).bits;
  }
  return rows;
}

// A sequence's cache in one format, and what attends over it.
class Cache {
 public:
  // `format` is null for rows of 16 bits. The last `query_tokens` tokens are those of a pass under
  // way.
  static Result<std::unique_ptr<Cache>> create(const KvShape& shape, Format format, int tokens,
                                               int query_tokens, Isa isa) {
    auto cache = std::unique_ptr<Cache>(new Cache(std::move(format), query_tokens, isa));
    const std::size_t blocks = blocks_for(tokens);
    const int windows =
        cache->format_ ? cache->format_->window().sink + cache->format_->window().recent + 1 : 0;
    const std::size_t row_blocks =
        cache->format_ ? std::min<std::size_t>(windows + 1 + blocks_for(query_tokens), blocks)
                       : blocks;
    KVLANE_ASSIGN(cache->rows_,
                  BlockPool::create(shape, row_blocks * shape.block_bytes() + kPoolSlack));
    if (cache->format_) {
      const SlabSizes& sizes = cache->format_->slab_sizes();
      KVLANE_ASSIGN(cache->sealed_, BlockPool::create_sealed(
                                        shape, sizes, blocks * sizes.block_bytes() + kPoolSlack));
      cache->table_.emplace(*cache->sealed_, *cache->rows_, cache->format_->window());
    } else {
      cache->table_.emplace(*cache->rows_);
    }
    KVLANE_TRY(cache->fill(shape, tokens));
    return cache;
  }

  // Attention of the last tokens in every layer.
  void attend(const std::vector<std::uint16_t>& q, int heads, std::vector<std::uint16_t>& out) {
    const AttentionSpan span{&*table_, table_->tokens(), query_tokens_, 0};
    for (int layer = 0; layer < table_->pool().shape().layers; ++layer) {
      attention_.run({layer, heads, {&span, 1}, q.data(), 1, ElementType::kBf16, out.data()});
      uses_.push_back(attention_.thread_use());
    }
  }

  // The share of the threads' time in which they attended: the middle one of all layers since the
  // last call.
  double thread_use() { return median(std::exchange(uses_, {})); }

  // Of one head's token, everything included; what a format's slabs carry, or the rows.
  double bytes_per_token(const KvShape& shape) const {
    double bytes = 0;
    for (int layer = 0; layer < shape.layers; ++layer) {
      bytes += static_cast<double>(
          format_ ? format_->used_bytes({layer, 0}, table_->sealed(0, layer)) : shape.slab_bytes());
    }
    return bytes / (double(shape.layers) * kBlockTokens * shape.kv_heads);
  }

 private:
  Cache(Format format, int query_tokens, Isa isa)
      : format_(std::move(format)), query_tokens_(query_tokens), attention_(isa, format_.get()) {}

  // Every sample as each layer has it: a layer can have bins of its own. Nothing for rows.
  Result<std::vector<std::byte>> sealed_samples(const KvShape& shape,
                                                const std::vector<std::uint16_t>& rows) const {
    if (!format_) return std::vector<std::byte>();
    const std::size_t values = shape.slab_bytes() / sizeof(rows[0]);
    const std::size_t slab = format_->slab_bytes();
    std::vector<std::byte> slabs(slab * kSampleSlabs * shape.layers);
    for (int i = 0; i < kSampleSlabs * shape.layers; ++i) {
      const SlabPlace place{i / kSampleSlabs, 0};
      KVLANE_TRY(format_->seal(place, &rows[values * (i % kSampleSlabs)], &slabs[slab * i]));
    }
    return slabs;
  }

  Status fill(const KvShape& shape, int tokens) {
    const auto rows = sample_rows(shape);
    const std::size_t values = shape.slab_bytes() / 2;
    KVLANE_ASSIGN(const std::vector<std::byte> slabs, sealed_samples(shape, rows));
    int sample = 0;
    KVLANE_TRY(table_->grow(tokens));
    // A block at a time, so that a coded cache needs rows for no more than its window.
    for (int block = 0; block < table_->blocks(); ++block) {
      const int end = std::min((block + 1) * kBlockTokens, tokens);
      KVLANE_TRY(table_->open_rows(end));
      for (int layer = 0; layer < shape.layers; ++layer) {
        sample = (sample + 7) % kSampleSlabs;
        std::memcpy(table_->rows(block, layer), &rows[values * sample], shape.slab_bytes());
        if (!format_) continue;
        const std::size_t slab = format_->slab_bytes();
        std::memcpy(table_->sealed(block, layer), &slabs[slab * (kSampleSlabs * layer + sample)],
                    format_->slab_bytes(layer));
      }
      // The tokens of the pass are written, and not yet there.
      table_->set_tokens(std::min(end, tokens - query_tokens_));
    }
    return {};
  }

  Format format_;
  const int query_tokens_;
  std::optional<BlockPool> rows_;
  std::optional<BlockPool> sealed_;
  std::optional<BlockTable> table_;
  Attention attention_;
  std::vector<double> uses_;  // of a layer each
};

std::string format_name(const Format& format) { return format ? format->name() : "bf16"; }

// "kivi_bits_2_group_32": names of figures are words joined by underscores.
std::string figure_name(const Format& format) {
  std::string name = format_name(format);
  for (char& c : name) {
    if (c == ':' || c == ',' || c == '=' || c == '.' || c == '+') c = '_';
  }
  return name;
}

// Measured elsewhere on one core of AVX-512, in KV tokens a second at 32K tokens and head_dim 128:
// ggml's flash attention on the CPU. What is to be left well behind.
std::optional<double> goal(const std::string& format, int tokens, int group, int head_dim) {
  if (tokens != 32768 || head_dim != 128) return std::nullopt;
  if (format == "bf16" && group == 1) return 29e6;
  if (format == "bf16" && group == 4) return 9e6;
  if (format == "int4:sym=0" && group == 1) return 10e6;
  if (format == "int4:sym=0" && group == 4) return 2.6e6;
  return std::nullopt;
}

class AttentionBench {
 public:
  explicit AttentionBench(const AttentionBenchOptions& options) : options_(options) {}

  Result<Report> run() {
    KVLANE_TRY(check());
    const ParallelScope scope(options_.threads);
    Report report{
        describe_machine(options_.threads) + ", kernels " + std::string(isa_name(options_.isa)),
        build_commit(),
        "",
        {}};
    for (const int tokens : options_.tokens) KVLANE_TRY(measure(tokens, report.results));
    return report;
  }

 private:
  void say(const std::string& what) const {
    if (options_.progress) options_.progress(what);
  }

  Status check() const {
    if (options_.query_tokens < 1 || options_.query_tokens > kQueryTokensMax) {
      return invalid_argument("1 to " + std::to_string(kQueryTokensMax) +
                              " query tokens can be measured, not " +
                              std::to_string(options_.query_tokens));
    }
    for (const int tokens : options_.tokens) {
      if (tokens < 2 || tokens > (1 << 20)) {
        return invalid_argument("a cache of 2 to 1048576 tokens can be measured, not of " +
                                std::to_string(tokens));
      }
      if (tokens <= options_.query_tokens) {
        return invalid_argument("a cache of " + std::to_string(tokens) +
                                " tokens is too short for " +
                                std::to_string(options_.query_tokens) + " query tokens");
      }
    }
    for (const int group : options_.groups) {
      if (group < 1 || group > kTileRows) {
        return invalid_argument("a KV head has 1 to " + std::to_string(kTileRows) +
                                " query heads here, not " + std::to_string(group));
      }
    }
    if (options_.head_dim < 2 || options_.head_dim > kTileHeadDimMax ||
        options_.head_dim % 2 != 0) {
      return invalid_argument("head_dim is an even number from 2 to " +
                              std::to_string(kTileHeadDimMax) + ", not " +
                              std::to_string(options_.head_dim));
    }
    return {};
  }

  KvShape shape(int tokens) const {
    KvShape shape{1, options_.kv_heads, options_.head_dim, ElementType::kBf16};
    const std::size_t layer = shape.block_bytes() * blocks_for(tokens);
    shape.layers = static_cast<int>(std::max<std::size_t>(options_.size_bytes / layer, 1));
    return shape;
  }

  Status measure(int tokens, std::vector<Figure>& results) const {
    const KvShape shape = this->shape(tokens);
    say("tables for " + std::to_string(tokens) + " tokens");
    const RopeTable rope = sample_rope(shape.head_dim, tokens);
    KVLANE_ASSIGN(const KvTables tables,
                  sample_tables(shape, rope, sample_rows(shape), options_.zack,
                                split_formats(options_.formats)));
    const KvFormatContext context{shape, &rope, &tables, options_.isa};
    KVLANE_ASSIGN(const auto listed, make_formats(options_.formats, context));
    std::vector<Format> formats;
    for (const EvalFormat& each : listed) {
      if (each.eviction)
        return unsupported("what '" + each.name() + "' keeps is not measured here");
      formats.push_back(each.kv);
    }
    std::vector<std::unique_ptr<Cache>> caches;
    for (const Format& format : formats) {
      say(std::to_string(tokens) + " tokens as " + format_name(format));
      KVLANE_ASSIGN(caches.emplace_back(),
                    Cache::create(shape, format, tokens, options_.query_tokens, options_.isa));
      results.push_back({.name = "attention_" + std::to_string(tokens) + "_" + figure_name(format) +
                                 "_bytes_per_token",
                         .value = caches.back()->bytes_per_token(shape),
                         .unit = "bytes",
                         .baseline = caches[0]->bytes_per_token(shape)});
    }
    for (const int group : options_.groups) {
      compare(tokens, group, shape, formats, caches, results);
    }
    return {};
  }

  // All formats in turns, for one number of query heads a KV head.
  void compare(int tokens, int group, const KvShape& shape, const std::vector<Format>& formats,
               const std::vector<std::unique_ptr<Cache>>& caches,
               std::vector<Figure>& results) const {
    const int heads = group * shape.kv_heads;
    std::vector<std::uint16_t> q(std::size_t(options_.query_tokens) * heads * shape.head_dim);
    std::mt19937 engine(2);
    std::normal_distribution<float> gauss;
    for (std::uint16_t& bits : q) bits = to_bf16(gauss(engine)).bits;
    std::vector<std::uint16_t> out(q.size());
    std::vector<Contender> contenders;
    for (std::size_t i = 0; i < formats.size(); ++i) {
      contenders.push_back(
          {format_name(formats[i]),
           [cache = caches[i].get(), &q, heads, &out] { cache->attend(q, heads, out); },
           {}});
    }
    time_in_turns(contenders, options_.threads == 1 ? TimedBy::kOneThread : TimedBy::kWall,
                  options_.repeats, kRoundSeconds, [&](int round) {
                    say(std::to_string(tokens) + " tokens, " + std::to_string(group) +
                        " query heads a KV head, round " + std::to_string(round + 1));
                  });
    const int queries = options_.query_tokens;
    // The first query token sees queries - 1 tokens less than the last.
    const double seen = tokens - (queries - 1) / 2.0;
    const double work = seen * queries * shape.kv_heads * shape.layers;
    const std::string several = queries == 1 ? "" : "_queries" + std::to_string(queries);
    const double rows = work / median(contenders[0].seconds);
    for (std::size_t i = 0; i < formats.size(); ++i) {
      Figure figure{"attention_" + std::to_string(tokens) + "_" + figure_name(formats[i]) +
                        "_group" + std::to_string(group) + several,
                    work / median(contenders[i].seconds), "tokens/s"};
      if (i > 0) figure.baseline = rows;
      if (queries == 1) figure.goal = goal(contenders[i].name, tokens, group, shape.head_dim);
      Figure use{figure.name + "_use", caches[i]->thread_use(), "share"};
      results.push_back(std::move(figure));
      if (options_.threads == 1) continue;
      use.goal = kUseGoal;
      results.push_back(std::move(use));
    }
  }

  const AttentionBenchOptions& options_;
};

}  // namespace

Result<Report> bench_attention(const AttentionBenchOptions& options) {
  return AttentionBench(options).run();
}

}  // namespace kvlane
