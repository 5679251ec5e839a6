// zack:keep=0.5 at head_dim 128 with widths of made-up spectra, sealed on the device from a GiB of
// rows. In a round each case is timed behind the same case over these rows, which pushes its pages
// out of the second-level cache, and then with the pieces of its plan dealt round-robin.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_zack.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "attention/decode_gpu.h"
#include "attention/narrow_decode_gpu.h"
#include "bench/gpu_memory.h"
#include "bench/gpu_timer.h"
#include "quant/zack_ranks.h"
#include "quant/zack_seal_gpu.h"

namespace kvlane {
namespace gpu_zack {
namespace {

constexpr int kHeadDim = 128, kKvHeads = 8;
constexpr int kTokensMax = 32768, kBlocks = 8 * kTokensMax / kBlockTokens;
constexpr std::size_t kRowsBytes = std::size_t{2} * 2 * kBlockTokens * kKvHeads * kHeadDim;
constexpr int kKeep = kShareParts / 2;
constexpr int kHeadsMax = 64, kSequencesMax = 16;
// At least those of runs of 1,024 tokens, and of the units of attention over rows.
constexpr std::size_t kStates = std::size_t{kHeadsMax} * (kBlocks / 8 + 8 * kSequencesMax);

struct Case {
  int group;  // query heads a KV head
  int sequences;
  int tokens;   // of each, or of the longest
  bool mixed;   // from 1024 on, with all doublings alike
  double goal;  // times attention over rows; 0: none is set

  int heads() const { return kKvHeads * group; }
  std::vector<std::int32_t> lengths() const {
    std::vector<std::int32_t> all(sequences, tokens);
    for (int i = 0; mixed && i < sequences; ++i) all[i] = tokens >> i % 6;
    return all;
  }
  double all_tokens() const {
    const auto all = lengths();
    return std::accumulate(all.begin(), all.end(), 0.0);
  }
  std::string of(const char* what) const {
    return std::string("gpu_zack_") + what + "_128x" + std::to_string(group) + "_" +
           (mixed ? "mixed" : std::to_string(tokens)) + (sequences == 1 ? "_alone" : "");
  }
};
// 0.6 of the time is the goal.
constexpr double kGoal = 1 / 0.6;
constexpr Case kCases[] = {{1, 8, kTokensMax, false, kGoal},
                           {4, 8, kTokensMax, false, kGoal},
                           {8, 8, kTokensMax, false, kGoal},
                           {4, 16, kTokensMax, true, 0},
                           {4, 1, kTokensMax, false, 0}};

// Singular values that fall at each head's own pace.
Result<std::vector<HeadWidths>> made_widths() {
  std::vector<float> k, v;
  for (int head = 0; head < kKvHeads; ++head) {
    const int step = 3 * head % 5;
    for (int i = 0; i < kHeadDim; ++i) {
      const float at = -static_cast<float>(i) / kHeadDim;
      k.push_back(std::exp(static_cast<float>(4 + step) * at));
      v.push_back(std::exp(static_cast<float>(2 + step) * at));
    }
  }
  KVLANE_ASSIGN(const auto rates, zack::Rates::make({kHeadDim, k, v}, zack::Weigh::kValues));
  KVLANE_ASSIGN(const zack::Ranks ranks, rates.at(kKeep));
  return ranks.widths;
}

// What all cases share: K and V as rows and sealed, queries, and results.
struct Memory {
  std::vector<HeadWidths> widths;
  std::size_t sealed_bytes;  // of a block
  gpu::DeviceBuffer rows, sealed, places, heads, beyond;
  gpu::DeviceBuffer q, max, sum, out, result;
};

Result<Memory> allocate(const gpu::Stream& stream, const std::vector<Bytes>& values) {
  KVLANE_ASSIGN(std::vector<HeadWidths> widths, made_widths());
  std::vector<NarrowHead> pages;
  std::int32_t bytes = 0;
  for (const HeadWidths& head : widths) {
    pages.push_back({bytes, head.k, head.v});
    bytes += 2 * kBlockTokens * (head.k + head.v);
  }
  std::vector<HackSealPlace> where(kBlocks);
  for (std::int32_t i = 0; i < kBlocks; ++i) where[i] = {i, i};
  const auto take = [&](std::size_t size) {
    return gpu::DeviceBuffer::allocate(stream.device(), size);
  };
  constexpr std::size_t kResults = std::size_t{kSequencesMax} * kHeadsMax * kHeadDim * 2;
  KVLANE_ASSIGN(auto rows, take(kBlocks * kRowsBytes));
  KVLANE_ASSIGN(auto sealed, take(kBlocks * std::size_t(bytes)));
  KVLANE_ASSIGN(auto places, on_device(stream, where));
  KVLANE_ASSIGN(auto heads, on_device(stream, pages));
  KVLANE_ASSIGN(auto beyond, take(std::size_t{2} * kBlocks * kKvHeads * sizeof(std::uint32_t)));
  KVLANE_ASSIGN(auto q, take(kResults));
  KVLANE_ASSIGN(auto max, take(kStates * sizeof(float)));
  KVLANE_ASSIGN(auto sum, take(kStates * sizeof(float)));
  KVLANE_ASSIGN(auto out, take(kStates * kHeadDim * sizeof(float)));
  KVLANE_ASSIGN(auto result, take(kResults));
  KVLANE_TRY(fill_with(stream, values, rows.data(), rows.bytes()));
  KVLANE_TRY(fill_with(stream, values, q.data(), q.bytes()));
  KVLANE_TRY(fill_with(stream, values, result.data(), result.bytes()));
  return Memory{std::move(widths), std::size_t(bytes), std::move(rows),   std::move(sealed),
                std::move(places), std::move(heads),   std::move(beyond), std::move(q),
                std::move(max),    std::move(sum),     std::move(out),    std::move(result)};
}

Status seal(const gpu::Stream& stream, const Memory& memory) {
  return seal_narrow_on_gpu({.places = memory.places.as<HackSealPlace>(),
                             .rows = memory.rows.data(),
                             .rows_block_bytes = kRowsBytes,
                             .slabs = memory.sealed.data(),
                             .block_bytes = memory.sealed_bytes,
                             .kv_heads = kKvHeads,
                             .head_dim = kHeadDim,
                             .heads = memory.heads.as<NarrowHead>(),
                             .beyond = memory.beyond.as<std::uint32_t>()},
                            kBlocks, stream);
}

// The pieces of a plan, and where machines begin.
struct Pieces {
  gpu::DeviceBuffer pieces, first;
};
// What a case has on the device.
struct Plans {
  gpu::DeviceBuffer tables;
  gpu::DeviceBuffer units, rows_state;  // of attention over rows
  std::size_t unit_count;
  gpu::DeviceBuffer narrow_state;
  int machines;
  Pieces balanced, round_robin;
};

// Ids in no order, those of a sequence in a row.
std::vector<std::int32_t> tables_of(const Case& one) {
  std::vector<std::int32_t> ids(kBlocks);
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
  const int stride = one.tokens / kBlockTokens;
  std::vector<std::int32_t> tables(std::size_t(one.sequences) * stride, 0);
  auto next = ids.begin();
  const auto lengths = one.lengths();
  for (int i = 0; i < one.sequences; ++i) {
    const int blocks = lengths[i] / kBlockTokens;
    std::copy_n(next, blocks, tables.begin() + std::ptrdiff_t(i) * stride);
    next += blocks;
  }
  return tables;
}

Result<Pieces> pieces_of(const gpu::Stream& stream, const NarrowDecodePlan& plan) {
  KVLANE_ASSIGN(auto pieces, on_device(stream, plan.pieces));
  KVLANE_ASSIGN(auto first, on_device(stream, plan.first));
  return Pieces{std::move(pieces), std::move(first)};
}

Result<Plans> plan(const gpu::Stream& stream, const Case& one, const Memory& memory,
                   int multiprocessors) {
  const std::vector<std::int32_t> tokens = one.lengths();
  KVLANE_ASSIGN(const DecodeShape shape,
                decode_shape(one.heads(), kKvHeads, kHeadDim, multiprocessors));
  const DecodePlan rows = plan_decode(tokens, shape);
  std::vector<NarrowSpan> spans;
  std::vector<std::int32_t> first_state = {0};
  for (const std::int32_t count : tokens) {
    spans.push_back({0, count / kBlockTokens, first_state.back()});
    first_state.push_back(first_state.back() + spans.back().runs() * one.heads());
  }
  if (std::size_t(std::max(rows.first_state.back(), first_state.back())) > kStates) {
    return internal_error("too many states");
  }
  KVLANE_ASSIGN(NarrowDecodeShape narrow,
                narrow_decode_shape(one.heads(), memory.widths, kHeadDim, multiprocessors));
  NarrowDecodePlanner planner;
  KVLANE_ASSIGN(auto balanced, pieces_of(stream, planner.plan(spans, memory.widths, narrow)));
  narrow.longest_first = false;
  KVLANE_ASSIGN(auto round_robin, pieces_of(stream, planner.plan(spans, memory.widths, narrow)));
  KVLANE_ASSIGN(auto tables, on_device(stream, tables_of(one)));
  KVLANE_ASSIGN(auto units, on_device(stream, rows.units));
  KVLANE_ASSIGN(auto rows_state, on_device(stream, rows.first_state));
  KVLANE_ASSIGN(auto narrow_state, on_device(stream, first_state));
  return Plans{std::move(tables),   std::move(units),        std::move(rows_state),
               rows.units.size(),   std::move(narrow_state), narrow.machines,
               std::move(balanced), std::move(round_robin)};
}

float score_scale() {
  return static_cast<float>(1.4426950408889634 / std::sqrt(static_cast<double>(kHeadDim)));
}

Status merge(const gpu::Stream& stream, const Case& one, const Memory& memory,
             const gpu::DeviceBuffer& first_state) {
  return merge_on_gpu({.first_state = first_state.as<std::int32_t>(),
                       .sequences = one.sequences,
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
                   const Plans& plans) {
  const DecodeBatch batch{.tables = plans.tables.as<std::int32_t>(),
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
  KVLANE_TRY(attend_on_gpu(batch, plans.units.as<DecodeUnit>(), plans.unit_count, stream));
  return merge(stream, one, memory, plans.rows_state);
}

Status attend_narrow(const gpu::Stream& stream, const Case& one, const Memory& memory,
                     const Plans& plans, const Pieces& pieces) {
  const NarrowDecodeBatch batch{.tables = plans.tables.as<std::int32_t>(),
                                .table_stride = one.tokens / kBlockTokens,
                                .heads = one.heads(),
                                .kv_heads = kKvHeads,
                                .head_dim = kHeadDim,
                                .slabs = memory.sealed.data(),
                                .block_bytes = memory.sealed_bytes,
                                .q = memory.q.data(),
                                .scale = score_scale(),
                                .pieces = pieces.pieces.as<NarrowPiece>(),
                                .first = pieces.first.as<std::int32_t>(),
                                .max = memory.max.as<float>(),
                                .sum = memory.sum.as<float>(),
                                .out = memory.out.as<float>()};
  KVLANE_TRY(attend_narrow_on_gpu(batch, narrow_width_max(memory.widths), plans.machines, stream));
  return merge(stream, one, memory, plans.narrow_state);
}

// Tokens a second, where the timer takes tokens for bytes.
void add_figures(const Case& one, const GpuTimer& timer, std::vector<Figure>& figures) {
  const auto speed = [&](const char* what) { return timer.speed_of(one.of(what)) * 1e9; };
  Figure figure{.name = one.of("attention"),
                .value = speed("attention"),
                .unit = "tokens/s",
                .baseline = speed("rows")};
  if (one.goal > 0) figure.goal = one.goal * *figure.baseline;
  figures.push_back(figure);
  figures.push_back({.name = one.of("balance"),
                     .value = speed("attention"),
                     .unit = "tokens/s",
                     .baseline = speed("round_robin")});
}

}  // namespace
}  // namespace gpu_zack

Status bench_gpu_zack(const gpu::Stream& stream, int rounds, const std::vector<Bytes>& values,
                      std::vector<Figure>& figures) {
  using namespace gpu_zack;
  KVLANE_ASSIGN(const std::vector<gpu::Device> devices, gpu::devices());
  const int multiprocessors = devices[std::size_t(stream.device())].multiprocessors;
  KVLANE_ASSIGN(const Memory memory, allocate(stream, values));
  GpuTimer timer(stream);
  // Rows that are read, and what is written of them.
  const auto block_bytes = static_cast<double>(kRowsBytes + memory.sealed_bytes);
  KVLANE_TRY(
      timer.add("gpu_zack_seal_128", kBlocks * block_bytes, [&] { return seal(stream, memory); }));
  std::vector<Plans> plans;
  for (const Case& one : kCases) {
    KVLANE_ASSIGN(Plans of_case, plan(stream, one, memory, multiprocessors));
    plans.push_back(std::move(of_case));
  }
  for (std::size_t i = 0; i < std::size(kCases); ++i) {
    const Case& one = kCases[i];
    const double tokens = one.all_tokens();
    const auto attend_rows_again = [&, i] {
      return attend_rows(stream, kCases[i], memory, plans[i]);
    };
    KVLANE_TRY(timer.add(one.of("rows"), tokens, attend_rows_again));
    KVLANE_TRY(timer.add(one.of("attention"), tokens, [&, i] {
      return attend_narrow(stream, kCases[i], memory, plans[i], plans[i].balanced);
    }));
    // Not behind the same pages.
    KVLANE_TRY(timer.add(one.of("between"), tokens, attend_rows_again));
    KVLANE_TRY(timer.add(one.of("round_robin"), tokens, [&, i] {
      return attend_narrow(stream, kCases[i], memory, plans[i], plans[i].round_robin);
    }));
  }
  KVLANE_TRY(timer.time(rounds));
  KVLANE_TRY(check_finite(stream, memory.result, "attention over narrow pages"));
  KVLANE_TRY(check_none(stream, memory.beyond, "a value of the benchmark is no finite number"));
  figures.push_back(
      {.name = "gpu_zack_seal_128", .value = timer.speed_of("gpu_zack_seal_128"), .unit = "GB/s"});
  for (const Case& one : kCases) add_figures(one, timer, figures);
  return {};
}

}  // namespace kvlane
