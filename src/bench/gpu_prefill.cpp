// Whole prompts from their first token, blocks in no order, 32 query heads over 8 KV heads.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_prefill.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include "attention/prefill_gpu.h"
#include "bench/gpu_matrix.h"
#include "bench/gpu_memory.h"
#include "bench/gpu_timer.h"
#include "format/shape.h"

namespace kvlane {
namespace gpu_prefill {
namespace {

constexpr int kHeads = 32, kKvHeads = 8;

struct Case {
  int head_dim;
  int tokens;     // of a prompt, a multiple of kBlockTokens
  int sequences;  // prompts in a launch

  std::string name() const {
    return "gpu_prefill_" + std::to_string(head_dim) + "_" + std::to_string(tokens);
  }
  int rows() const { return sequences * tokens; }
  std::size_t row_bytes() const { return std::size_t{2} * kHeads * head_dim; }
  std::size_t block_bytes() const {
    return std::size_t{2} * 2 * kBlockTokens * kKvHeads * head_dim;
  }
  // A product and a sum are two. Row t sees t + 1 tokens, once for the scores and once for V.
  double operations() const {
    return 2.0 * sequences * tokens * (tokens + 1.0) * kHeads * head_dim;
  }
};

// So many prompts that every case has 16384 rows.
constexpr Case kCases[] = {
    {128, 1024, 16}, {128, 4096, 4}, {128, 16384, 1}, {64, 4096, 4}, {256, 4096, 4}};

struct Memory {
  gpu::DeviceBuffer tables, units, pool, q, out;
  std::size_t unit_count;
};

// So many bytes, of `values` again and again.
Bytes repeated(const Bytes& values, std::size_t bytes) {
  Bytes all(bytes);
  for (std::size_t done = 0; done < bytes; done += values.size()) {
    std::copy_n(values.begin(), std::min(values.size(), bytes - done),
                all.begin() + static_cast<std::ptrdiff_t>(done));
  }
  return all;
}

Result<Memory> prepare(const gpu::Stream& stream, const Case& one, const Bytes& values) {
  std::vector<PrefillSpan> spans;
  for (int i = 0; i < one.sequences; ++i) spans.push_back({0, one.tokens, i * one.tokens});
  KVLANE_ASSIGN(const PrefillShape shape, prefill_shape(kHeads, kKvHeads, one.head_dim));
  const std::vector<PrefillUnit> plan = plan_prefill(spans, shape);
  std::vector<std::int32_t> ids(one.rows() / kBlockTokens);
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
  const std::size_t row_bytes = one.rows() * one.row_bytes();
  KVLANE_ASSIGN(auto tables, on_device(stream, ids));
  KVLANE_ASSIGN(auto units, on_device(stream, plan));
  KVLANE_ASSIGN(auto pool, on_device(stream, repeated(values, ids.size() * one.block_bytes())));
  KVLANE_ASSIGN(auto q, on_device(stream, repeated(values, row_bytes)));
  KVLANE_ASSIGN(auto out, gpu::DeviceBuffer::allocate(stream.device(), row_bytes));
  return Memory{std::move(tables), std::move(units), std::move(pool),
                std::move(q),      std::move(out),   plan.size()};
}

Status attend(const gpu::Stream& stream, const Case& one, const Memory& memory) {
  const PrefillBatch batch{
      .tables = memory.tables.as<std::int32_t>(),
      .table_stride = one.tokens / kBlockTokens,
      .heads = kHeads,
      .kv_heads = kKvHeads,
      .head_dim = one.head_dim,
      .slabs = memory.pool.data(),
      .block_bytes = one.block_bytes(),
      .q = memory.q.data(),
      .scale = static_cast<float>(1.4426950408889634 / std::sqrt(one.head_dim)),
      .out = memory.out.data()};
  return attend_prefill_on_gpu(batch, memory.units.as<PrefillUnit>(), memory.unit_count, stream);
}

}  // namespace
}  // namespace gpu_prefill

Status bench_gpu_prefill(const gpu::Stream& stream, int rounds, const Bytes& values,
                         std::vector<Figure>& figures) {
  using namespace gpu_prefill;
  // Blocks for several hundred multiprocessors, many times over, and about 10 ms of an H200.
  constexpr int kBlocks = 16384, kSteps = 1024;
  KVLANE_ASSIGN(const auto sink, gpu::DeviceBuffer::allocate(stream.device(), 256));
  std::vector<Memory> memories;
  for (const Case& one : kCases) {
    KVLANE_ASSIGN(Memory memory, prepare(stream, one, values));
    memories.push_back(std::move(memory));
  }
  // What the timer takes for bytes are operations.
  GpuTimer timer(stream);
  KVLANE_TRY(timer.add("gpu_matrix_unit", kBlocks * kSteps * kGpuMatrixStep,
                       [&] { return gpu_multiply(stream, kBlocks, kSteps, sink.data()); }));
  for (std::size_t i = 0; i < std::size(kCases); ++i) {
    KVLANE_TRY(timer.add(kCases[i].name(), kCases[i].operations(), [&stream, &memories, i] {
      return attend(stream, kCases[i], memories[i]);
    }));
  }
  KVLANE_TRY(timer.time(rounds));
  const auto teraflops = [&](const std::string& name) { return timer.speed_of(name) * 1e-3; };
  const double products = teraflops("gpu_matrix_unit");
  figures.push_back({.name = "gpu_matrix_unit", .value = products, .unit = "TFLOP/s"});
  for (std::size_t i = 0; i < std::size(kCases); ++i) {
    const std::string name = kCases[i].name();
    KVLANE_TRY(check_finite(stream, memories[i].out, name));
    figures.push_back(
        {.name = name, .value = teraflops(name), .unit = "TFLOP/s", .baseline = products});
  }
  return {};
}

}  // namespace kvlane
