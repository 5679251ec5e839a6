// Bare `hack` at head_dim 128. Every sequence has the same GiB of rows in 16 bits at most, sealed
// on the device; in a round each case is timed behind the same case over these rows, which pushes
// its codes out of the second-level cache. So are kernels that dequantise the same codes.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_hack.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "attention/decode_gpu.h"
#include "attention/hack_prefill_gpu.h"
#include "bench/gpu_dequantise.h"
#include "bench/gpu_memory.h"
#include "bench/gpu_timer.h"
#include "quant/hack_seal_gpu.h"

namespace kvlane {
namespace gpu_hack {
namespace {

constexpr int kHeadDim = 128, kKvHeads = 8, kBatch = 8;
constexpr int kTokensMax = 32768;
constexpr int kBlocks = kBatch * kTokensMax / kBlockTokens;
constexpr int kPrefillHeads = 32, kPrefillTokens = 16384;
constexpr HackKind kKind{2, 2, 0};
constexpr hack::Plane kPlane{2, hack::Axis::kBoth, 0, hack::Meta::kFp16};
constexpr hack::PageLayout kLayout = hack::page_layout(kPlane, kPlane, {kHeadDim, kHeadDim});
constexpr std::size_t kSealedBytes = kKvHeads * kLayout.bytes;  // of a block
constexpr std::size_t kRowsBytes = std::size_t{2} * 2 * kBlockTokens * kKvHeads * kHeadDim;
// Most queries of a case.
constexpr std::size_t kQueries = std::size_t{kPrefillTokens} * kPrefillHeads;

struct Case {
  int group;    // query heads a KV head
  int tokens;   // of each of kBatch sequences
  double goal;  // times attention over rows

  int heads() const { return kKvHeads * group; }
  std::string name() const {
    return "gpu_hack_attention_128x" + std::to_string(group) + "_" + std::to_string(tokens);
  }
};
constexpr Case kCases[] = {{1, 4096, 0},  {4, 4096, 0},  {8, 4096, 0},
                           {1, 32768, 5}, {4, 32768, 5}, {8, 32768, 5}};

// What attention on codes is held against on the same codes, in cases of kTokensMax tokens.
struct Opponent {
  GpuDequantiser how;
  const char* name;  // behind the case's
};
constexpr Opponent kOpponents[] = {{GpuDequantiser::kMatrixWhole, "_whole"},
                                   {GpuDequantiser::kMatrixSplit, "_split"},
                                   {GpuDequantiser::kCores, "_cores"}};

float score_scale() {
  return static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(kHeadDim)));
}

// What all cases share: K and V as rows and sealed, ids in no order, queries as they come and
// prepared, and results.
struct Memory {
  gpu::DeviceBuffer rows, sealed, ids, places, beyond;
  gpu::DeviceBuffer q, codes, rests, scales, terms;
  gpu::DeviceBuffer max, sum, out, result;

  HackPrepared prepared() const {
    return {codes.data(), rests.data(), scales.as<float>(), terms.as<HackTerm>()};
  }
};

Result<Memory> allocate(const gpu::Stream& stream, const std::vector<Bytes>& values) {
  std::vector<std::int32_t> order(kBlocks);
  std::iota(order.begin(), order.end(), 0);
  std::vector<HackSealPlace> where(kBlocks);
  for (std::int32_t i = 0; i < kBlocks; ++i) where[i] = {i, i};
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  const auto take = [&](std::size_t bytes) {
    return gpu::DeviceBuffer::allocate(stream.device(), bytes);
  };
  KVLANE_ASSIGN(auto rows, take(kBlocks * kRowsBytes));
  KVLANE_ASSIGN(auto sealed, take(kBlocks * kSealedBytes));
  KVLANE_ASSIGN(auto ids, on_device(stream, order));
  KVLANE_ASSIGN(auto places, on_device(stream, where));
  KVLANE_ASSIGN(auto beyond, take(std::size_t{2} * kBlocks * kKvHeads * sizeof(std::uint32_t)));
  KVLANE_ASSIGN(auto q, take(kQueries * kHeadDim * 2));
  KVLANE_ASSIGN(auto codes, take(kQueries * kHeadDim));
  KVLANE_ASSIGN(auto rests, take(kQueries * kHeadDim * 2));
  KVLANE_ASSIGN(auto scales, take(kQueries * sizeof(float)));
  KVLANE_ASSIGN(auto terms, take(kQueries * kHackTerms * sizeof(HackTerm)));
  KVLANE_ASSIGN(auto max, take(kQueries * sizeof(float)));
  KVLANE_ASSIGN(auto sum, take(kQueries * sizeof(float)));
  KVLANE_ASSIGN(auto out, take(kQueries * kHeadDim * sizeof(float)));
  KVLANE_ASSIGN(auto result, take(kQueries * kHeadDim * 2));
  KVLANE_TRY(fill_with(stream, values, rows.data(), rows.bytes()));
  KVLANE_TRY(fill_with(stream, values, q.data(), q.bytes()));
  return Memory{std::move(rows),   std::move(sealed), std::move(ids),   std::move(places),
                std::move(beyond), std::move(q),      std::move(codes), std::move(rests),
                std::move(scales), std::move(terms),  std::move(max),   std::move(sum),
                std::move(out),    std::move(result)};
}

Status seal(const gpu::Stream& stream, const Memory& memory) {
  return seal_hack_on_gpu({.places = memory.places.as<HackSealPlace>(),
                           .rows = memory.rows.data(),
                           .rows_block_bytes = kRowsBytes,
                           .slabs = memory.sealed.data(),
                           .block_bytes = kSealedBytes,
                           .kv_heads = kKvHeads,
                           .head_dim = kHeadDim,
                           .k = kPlane,
                           .v = kPlane,
                           .layout = kLayout,
                           .mix = channel_mix(kHeadDim),
                           .beyond = memory.beyond.as<std::uint32_t>()},
                          kBlocks, stream);
}

Status prepare(const gpu::Stream& stream, const Memory& memory, std::size_t rows) {
  return prepare_hack_on_gpu({.q = memory.q.data(),
                              .rows = static_cast<std::int32_t>(rows),
                              .head_dim = kHeadDim,
                              .scale = score_scale(),
                              .mix = channel_mix(kHeadDim),
                              .middle = hack::middle_code(kPlane),
                              .partition = 0,
                              .to = memory.prepared()},
                             stream);
}

// Decode: units of both kinds of attention, which have states in common.
struct Units {
  gpu::DeviceBuffer units, first_state;
  std::size_t count;
};
Result<Units> plan(const gpu::Stream& stream, const Case& one, const DecodeShape& shape) {
  const std::vector<std::int32_t> tokens(kBatch, one.tokens);
  const DecodePlan plan = plan_decode(tokens, shape);
  if (std::size_t(plan.first_state.back()) > kQueries) return internal_error("too many states");
  KVLANE_ASSIGN(auto units, on_device(stream, plan.units));
  KVLANE_ASSIGN(auto first_state, on_device(stream, plan.first_state));
  return Units{std::move(units), std::move(first_state), plan.units.size()};
}

Status merge(const gpu::Stream& stream, const Case& one, const Memory& memory, const Units& units) {
  return merge_on_gpu({.first_state = units.first_state.as<std::int32_t>(),
                       .sequences = kBatch,
                       .heads = one.heads(),
                       .head_dim = kHeadDim,
                       .max = memory.max.as<float>(),
                       .sum = memory.sum.as<float>(),
                       .out = memory.out.as<float>(),
                       .result_f32 = nullptr,
                       .result_bf16 = memory.result.data(),
                       .total_max = nullptr,
                       .total_sum = nullptr,
                       .total_out = nullptr},
                      stream);
}

Status attend_rows(const gpu::Stream& stream, const Case& one, const Memory& memory,
                   const Units& units) {
  const DecodeBatch batch{.tables = memory.ids.as<std::int32_t>(),
                          .table_stride = one.tokens / kBlockTokens,
                          .heads = one.heads(),
                          .kv_heads = kKvHeads,
                          .head_dim = kHeadDim,
                          .slabs = memory.rows.data(),
                          .block_bytes = kRowsBytes,
                          .q = memory.q.data(),
                          .scale = score_scale(),
                          .max = memory.max.as<float>(),
                          .sum = memory.sum.as<float>(),
                          .out = memory.out.as<float>()};
  KVLANE_TRY(attend_on_gpu(batch, units.units.as<DecodeUnit>(), units.count, stream));
  return merge(stream, one, memory, units);
}

// On codes as they are (null), or by an opponent: queries are prepared, and states merged, for
// both.
Status attend_codes(const gpu::Stream& stream, const Case& one, const Memory& memory,
                    const Units& units, const Opponent* opponent) {
  KVLANE_TRY(prepare(stream, memory, std::size_t{kBatch} * one.heads()));
  const HackDecodeBatch batch{.tables = memory.ids.as<std::int32_t>(),
                              .table_stride = one.tokens / kBlockTokens,
                              .heads = one.heads(),
                              .kv_heads = kKvHeads,
                              .head_dim = kHeadDim,
                              .slabs = memory.sealed.data(),
                              .block_bytes = kSealedBytes,
                              .layout = kLayout,
                              .queries = memory.prepared(),
                              .mix = channel_mix(kHeadDim),
                              .max = memory.max.as<float>(),
                              .sum = memory.sum.as<float>(),
                              .out = memory.out.as<float>()};
  const auto* const list = units.units.as<DecodeUnit>();
  KVLANE_TRY(opponent == nullptr
                 ? attend_hack_on_gpu(kKind, batch, list, units.count, stream)
                 : attend_dequantised_on_gpu(opponent->how, batch, list, units.count, stream));
  return merge(stream, one, memory, units);
}

// A whole prompt: rows alone, or sealed pages and own blocks.
Status attend_prompt(const gpu::Stream& stream, const Memory& memory,
                     const gpu::DeviceBuffer& units, std::size_t count, bool coded) {
  const PrefillBatch batch{.tables = memory.ids.as<std::int32_t>(),
                           .table_stride = kPrefillTokens / kBlockTokens,
                           .heads = kPrefillHeads,
                           .kv_heads = kKvHeads,
                           .head_dim = kHeadDim,
                           .slabs = memory.rows.data(),
                           .block_bytes = kRowsBytes,
                           .q = memory.q.data(),
                           .scale = score_scale(),
                           .out = memory.result.data()};
  if (!coded) return attend_prefill_on_gpu(batch, units.as<PrefillUnit>(), count, stream);
  KVLANE_TRY(prepare(stream, memory, kQueries));
  const HackPrefillBatch sealed{.tables = batch.tables,
                                .table_stride = batch.table_stride,
                                .heads = kPrefillHeads,
                                .kv_heads = kKvHeads,
                                .head_dim = kHeadDim,
                                .key_bits = kKind.key_bits,
                                .value_bits = kKind.value_bits,
                                .slabs = memory.sealed.data(),
                                .block_bytes = kSealedBytes,
                                .layout = kLayout,
                                .window = {},
                                .queries = memory.prepared(),
                                .mix = channel_mix(kHeadDim),
                                .max = memory.max.as<float>(),
                                .sum = memory.sum.as<float>(),
                                .out = memory.out.as<float>()};
  KVLANE_TRY(attend_hack_prefill_on_gpu(kKind, sealed, units.as<PrefillUnit>(), count, stream));
  return attend_window_on_gpu(batch, {{}, sealed.max, sealed.sum, sealed.out},
                              units.as<PrefillUnit>(), count, stream);
}

// The last to run writes all results: the prompt.
constexpr double prefill_operations() {
  return 2.0 * kPrefillTokens * (kPrefillTokens + 1.0) * kPrefillHeads * kHeadDim;
}

// Of each case.
struct Plans {
  std::vector<Units> of_rows, of_codes;
};
Result<Plans> plan_all(const gpu::Stream& stream, int multiprocessors) {
  Plans plans;
  for (const Case& one : kCases) {
    KVLANE_ASSIGN(const DecodeShape rows,
                  decode_shape(one.heads(), kKvHeads, kHeadDim, multiprocessors));
    KVLANE_ASSIGN(const DecodeShape codes,
                  hack_decode_shape(kKind, one.heads(), kKvHeads, kHeadDim, multiprocessors));
    KVLANE_ASSIGN(Units units, plan(stream, one, rows));
    plans.of_rows.push_back(std::move(units));
    KVLANE_ASSIGN(units, plan(stream, one, codes));
    plans.of_codes.push_back(std::move(units));
  }
  return plans;
}

// What the timer takes for bytes are tokens. All but itself must outlive its rounds.
Status time_decode(GpuTimer& timer, const gpu::Stream& stream, const Memory& memory,
                   const Plans& plans) {
  // By an opponent, or on codes as they are, behind rows.
  const auto add = [&](std::size_t i, const Opponent* opponent) -> Status {
    const double tokens = double{kBatch} * kCases[i].tokens;
    const std::string name = kCases[i].name() + (opponent == nullptr ? "" : opponent->name);
    KVLANE_TRY(timer.add("rows" + name, tokens, [&stream, &memory, &plans, i] {
      return attend_rows(stream, kCases[i], memory, plans.of_rows[i]);
    }));
    return timer.add(name, tokens, [&stream, &memory, &plans, i, opponent] {
      return attend_codes(stream, kCases[i], memory, plans.of_codes[i], opponent);
    });
  };
  for (std::size_t i = 0; i < std::size(kCases); ++i) {
    KVLANE_TRY(add(i, nullptr));
    if (kCases[i].tokens != kTokensMax) continue;
    for (const Opponent& opponent : kOpponents) KVLANE_TRY(add(i, &opponent));
  }
  return {};
}

void add_decode_figures(const GpuTimer& timer, std::vector<Figure>& figures) {
  const auto speed = [&](const std::string& name) { return timer.speed_of(name) * 1e9; };
  const auto add = [&](const Case& one, const char* name, double baseline, double times) {
    Figure figure{.name = one.name() + name,
                  .value = speed(one.name()),
                  .unit = "tokens/s",
                  .baseline = baseline};
    if (times > 0) figure.goal = times * baseline;
    figures.push_back(figure);
  };
  for (const Case& one : kCases) add(one, "", speed("rows" + one.name()), one.goal);
  for (const Case& one : kCases) {
    if (one.tokens != kTokensMax) continue;
    const double whole = speed(one.name() + "_whole"), split = speed(one.name() + "_split");
    add(one, "_by_dequantising", std::max(whole, split), 1);
    add(one, "_by_cuda_cores", speed(one.name() + "_cores"), 2);
  }
}

}  // namespace
}  // namespace gpu_hack

Status bench_gpu_hack(const gpu::Stream& stream, int rounds, const std::vector<Bytes>& values,
                      std::vector<Figure>& figures) {
  using namespace gpu_hack;
  KVLANE_ASSIGN(const std::vector<gpu::Device> devices, gpu::devices());
  const int multiprocessors = devices[std::size_t(stream.device())].multiprocessors;
  KVLANE_ASSIGN(const Memory memory, allocate(stream, values));
  GpuTimer timer(stream);
  // Rows that are read, and what is written of them.
  KVLANE_TRY(timer.add("gpu_hack_seal_128", double{kBlocks} * (kRowsBytes + kSealedBytes),
                       [&] { return seal(stream, memory); }));
  KVLANE_ASSIGN(const Plans plans, plan_all(stream, multiprocessors));
  KVLANE_TRY(time_decode(timer, stream, memory, plans));
  KVLANE_ASSIGN(const PrefillShape shape,
                hack_prefill_shape(kKind, kPrefillHeads, kKvHeads, kHeadDim));
  const PrefillSpan span{0, kPrefillTokens, 0};
  const std::vector<PrefillUnit> units = plan_prefill({&span, 1}, shape);
  KVLANE_ASSIGN(const auto prefill_units, on_device(stream, units));
  for (const bool coded : {false, true}) {
    KVLANE_TRY(timer.add(
        coded ? "gpu_hack_prefill_128_16384" : "rows_prefill", prefill_operations(),
        [&, coded] { return attend_prompt(stream, memory, prefill_units, units.size(), coded); }));
  }
  KVLANE_TRY(timer.time(rounds));
  KVLANE_TRY(check_finite(stream, memory.result, "attention on codes"));
  KVLANE_TRY(
      check_none(stream, memory.beyond, "a value of the benchmark is too large to be sealed"));

  figures.push_back(
      {.name = "gpu_hack_seal_128", .value = timer.speed_of("gpu_hack_seal_128"), .unit = "GB/s"});
  add_decode_figures(timer, figures);
  figures.push_back({.name = "gpu_hack_prefill_128_16384",
                     .value = timer.speed_of("gpu_hack_prefill_128_16384") * 1e-3,
                     .unit = "TFLOP/s",
                     .baseline = timer.speed_of("rows_prefill") * 1e-3});
  return {};
}

}  // namespace kvlane
