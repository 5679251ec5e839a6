// Prefill and decode, then products against their two ceilings, all in one run.
// SPDX-License-Identifier: Apache-2.0
#include "bench/model_bench.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "bench/onednn_baseline.h"
#include "bench/read_bandwidth.h"
#include "cpu/parallel.h"
#include "model/forward.h"

namespace kvlane {
namespace {

// Larger than the last-level cache that one virtual machine gets of its host's.
constexpr std::size_t kBandwidthBytes = std::size_t{1} << 30;

// Medians over repeats of one phase.
struct Phase {
  std::vector<double> seconds, gemm, attention;

  void add(const ForwardTimes& times) {
    seconds.push_back(times.total);
    gemm.push_back(times.gemm / times.total);
    attention.push_back(times.attention / times.total);
  }

  void report(const std::string& name, int tokens, std::vector<Figure>& results) const {
    const double gemm_share = median(gemm);
    const double attention_share = median(attention);
    results.push_back({name + "_tokens_per_second", tokens / median(seconds), "tokens/s"});
    results.push_back({name + "_gemm_share", gemm_share, "share"});
    results.push_back({name + "_attention_share", attention_share, "share"});
    results.push_back({name + "_rest_share", 1 - gemm_share - attention_share, "share"});
  }
};

class ModelBench {
 public:
  explicit ModelBench(const ModelBenchOptions& options) : options_(options) {}

  Result<Report> run() {
    if (options_.threads > 0) set_parallel_threads(options_.threads);
    say("loading");
    KVLANE_ASSIGN(model_, Model::load(options_.directory, {.isa = options_.isa}));
    prompt_tokens_ = options_.prompt_tokens;
    const bool positive = prompt_tokens_ > 0 && options_.decode_tokens > 0 &&
                          options_.repeats > 0 && options_.batch > 0;
    if (!positive || prompt_tokens_ > model_->context() - options_.decode_tokens) {
      return invalid_argument(
          "prompt, decode, batch and repeats must be at least 1, and a prompt of " +
          std::to_string(prompt_tokens_) + " with " + std::to_string(options_.decode_tokens) +
          " tokens decoded must fit the context of " + std::to_string(model_->context()));
    }
    const KvShape shape = model_->config().kv_shape();
    const std::size_t pool_bytes = (options_.batch > 1 ? options_.batch + 1 : 1) *
                                   blocks_for(prompt_tokens_ + options_.decode_tokens) *
                                   shape.block_bytes();
    KVLANE_ASSIGN(BlockPool pool, BlockPool::create(shape, pool_bytes));
    KVLANE_ASSIGN(forward_, Forward::create(*model_, std::max(prompt_tokens_, options_.batch),
                                            options_.batch));

    Report report{
        describe_machine(parallel_threads()) + ", kernels " + std::string(isa_name(options_.isa)),
        build_commit(),
        "",
        {}};
    KVLANE_TRY(run_phases(pool, report.results));
    // Before the yardsticks below take memory of their own.
    report.results.push_back({.name = "resident_memory_ratio",
                              .value = static_cast<double>(resident_bytes()) /
                                       static_cast<double>(model_->weight_bytes() + pool_bytes),
                              .unit = "ratio",
                              .goal = 1.15,
                              .better = Figure::Better::kLower});
    KVLANE_TRY(compare_bandwidth(report.results));
    if (options_.isa >= Isa::kAvx512) KVLANE_TRY(compare_products(report.results));
    return report;
  }

 private:
  void say(std::string_view what) const {
    if (options_.progress) options_.progress(what);
  }

  Status run_phases(BlockPool& pool, std::vector<Figure>& results) {
    std::vector<std::int32_t> prompt(prompt_tokens_);
    for (int i = 0; i < prompt_tokens_; ++i) {
      prompt[i] = static_cast<std::int32_t>(
          philox4x32(1, {static_cast<std::uint32_t>(i), 0, 0, 0})[0] % model_->config().vocab);
    }
    Phase prefill;
    Phase decode;
    Phase batch;
    for (int repeat = -1; repeat < options_.repeats; ++repeat) {
      say(repeat < 0 ? "warming up" : "prefill and decode");
      BlockTable table(pool);
      KVLANE_TRY(table.grow(prompt_tokens_ + options_.decode_tokens));
      const ForwardSpan whole{&table, prompt, true};
      KVLANE_TRY(forward_->run({&whole, 1}, {}));
      if (repeat >= 0) prefill.add(forward_->times());
      for (int i = 0; i < options_.decode_tokens; ++i) {
        const ForwardSpan one{&table, {&prompt[i % prompt_tokens_], 1}, true};
        KVLANE_TRY(forward_->run({&one, 1}, {}));
        if (repeat >= 0) decode.add(forward_->times());
      }
      if (options_.batch > 1 && repeat >= 0) {
        KVLANE_TRY(decode_batch(pool, table, prompt[0], batch));
      }
    }
    decode_seconds_ = median(decode.seconds);
    prefill.report("prefill", prompt_tokens_, results);
    decode.report("decode", 1, results);
    if (options_.batch > 1) report_batch(decode, batch, results);
    return {};
  }

  // The same steps for `batch` sequences at once, each with K and V of its own: copies of
  // `prompt`'s.
  Status decode_batch(BlockPool& pool, const BlockTable& prompt, std::int32_t token, Phase& batch) {
    std::vector<BlockTable> tables;
    while (static_cast<int>(tables.size()) < options_.batch) {
      BlockTable& table = tables.emplace_back(pool);
      KVLANE_TRY(table.grow(prompt_tokens_ + options_.decode_tokens));
      for (int i = 0; i < blocks_for(prompt_tokens_); ++i) {
        std::memcpy(pool.block(table.id(i)), pool.block(prompt.id(i)), pool.shape().block_bytes());
      }
      table.set_tokens(prompt_tokens_);
    }
    std::vector<ForwardSpan> spans;
    for (BlockTable& table : tables) spans.push_back({&table, {&token, 1}, true});
    for (int i = 0; i < options_.decode_tokens; ++i) {
      KVLANE_TRY(forward_->run(spans, {}));
      batch.add(forward_->times());
    }
    return {};
  }

  void report_batch(const Phase& one, const Phase& batch, std::vector<Figure>& results) const {
    const auto cost = [](const Phase& phase) {
      return median(phase.seconds) * (median(phase.gemm) + median(phase.attention));
    };
    const std::string name = "decode_batch" + std::to_string(options_.batch);
    batch.report(name, options_.batch, results);
    results.push_back({.name = name + "_token_cost_ratio",
                       .value = cost(batch) / options_.batch / cost(one),
                       .unit = "ratio",
                       .goal = 0.35,
                       .better = Figure::Better::kLower});
  }

  // Every weight of the products is read once for a token, so bytes over seconds is what the memory
  // gave; the whole step counts, attention and all.
  Status compare_bandwidth(std::vector<Figure>& results) {
    say("reading memory");
    KVLANE_ASSIGN(const PageBuffer buffer, PageBuffer::allocate(kBandwidthBytes));
    std::fill_n(buffer.as<std::uint64_t>(), buffer.bytes() / 8, 1);
    std::vector<double> speeds;
    for (int repeat = 0; repeat < options_.repeats; ++repeat)
      speeds.push_back(read_bandwidth(buffer));
    std::size_t bytes = model_->head().packed_bytes();
    for (const LayerWeights& layer : model_->layers()) {
      bytes += layer.qkv->packed_bytes() + layer.attention_out->packed_bytes() +
               layer.ffn_in->packed_bytes() + layer.ffn_out->packed_bytes();
    }
    const double speed = static_cast<double>(bytes) / decode_seconds_;
    results.push_back({"memory_read_bandwidth", median(speeds) / 1e9, "GB/s"});
    results.push_back({"weight_bandwidth", speed / 1e9, "GB/s", median(speeds) / 1e9});
    results.push_back({"weight_bandwidth_ratio", speed / median(speeds), "ratio", {}, 0.80});
    return {};
  }

  // Time of all products of one layer, ours over oneDNN's, interleaved.
  Status compare_products(std::vector<Figure>& results) {
    const LayerWeights& layer = model_->layers()[0];
    const Linear* const products[] = {layer.qkv.get(), layer.attention_out.get(),
                                      layer.ffn_in.get(), layer.ffn_out.get()};
    for (const int rows : {prompt_tokens_, 1}) {
      say("products beside oneDNN's own");
      double ours = 0;
      double theirs = 0;
      double operations = 0;
      for (const Linear* product : products) {
        KVLANE_TRY(compare_product(*product, rows, ours, theirs));
        operations += 2.0 * rows * product->inputs() * product->outputs();
      }
      const std::string suffix = rows == 1 ? "_batch1" : "";
      results.push_back(
          {"gemm_speed" + suffix, operations / ours / 1e9, "GFLOP/s", operations / theirs / 1e9});
      results.push_back({"gemm_ratio_onednn" + suffix, theirs / ours, "ratio", {}, 0.90});
    }
    return {};
  }

  Status compare_product(const Linear& product, int rows, double& ours, double& theirs) {
    // In the precision of our own.
    const ElementType type =
        options_.isa == Isa::kAvx512Bf16 ? product.input_type() : ElementType::kF32;
    KVLANE_ASSIGN(auto baseline,
                  OnednnBaseline::create(rows, product.outputs(), product.inputs(), type));
    const std::size_t padded = Linear::rows_rounded(rows);
    KVLANE_ASSIGN(const PageBuffer x, PageBuffer::allocate(padded * product.inputs() *
                                                           element_bytes(product.input_type())));
    KVLANE_ASSIGN(const PageBuffer y,
                  PageBuffer::allocate(padded * product.outputs() * sizeof(float)));
    std::fill_n(x.as<std::uint16_t>(), x.bytes() / 2, std::uint16_t{0x3c3c});
    std::vector<double> our_seconds;
    std::vector<double> their_seconds;
    const TimePoint begin = SteadyClock::now();
    // Those of one row take microseconds: a few of them would only tell how the threads woke up.
    for (int repeat = -1; repeat < options_.repeats || seconds_since(begin) < 0.1; ++repeat) {
      const TimePoint start = SteadyClock::now();
      KVLANE_TRY(product.apply(x.data(), y.as<float>(), rows));
      const double seconds = seconds_since(start);
      const double baseline_seconds = baseline->seconds();
      if (repeat < 0) continue;
      our_seconds.push_back(seconds);
      their_seconds.push_back(baseline_seconds);
    }
    ours += median(our_seconds);
    theirs += median(their_seconds);
    return {};
  }

  const ModelBenchOptions& options_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Forward> forward_;
  int prompt_tokens_ = 0;
  double decode_seconds_ = 0;
};

}  // namespace

Result<Report> bench_model(const ModelBenchOptions& options) { return ModelBench(options).run(); }

}  // namespace kvlane
