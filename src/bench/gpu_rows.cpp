// Rows have the lengths of a model with 8 billion parameters: hidden 4096, 32 heads of 128 and 8 KV
// heads, ffn 14336, 128256 tokens. There are so many that an operation moves several times what a
// second-level cache holds; or one, as in decoding.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_rows.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "bench/gpu_copy.h"
#include "bench/gpu_memory.h"
#include "bench/gpu_timer.h"
#include "format/shape.h"
#include "ops/greedy_gpu.h"
#include "ops/rows_gpu.h"

namespace kvlane {
namespace gpu_rows {
namespace {

constexpr int kHidden = 4096, kHeads = 32, kKvHeads = 8, kHeadDim = 128, kFfn = 14336;
constexpr int kVocab = 128256;
constexpr int kQkv = (kHeads + 2 * kKvHeads) * kHeadDim;
constexpr int kNormRows = 8192, kQkvRows = 8192, kSiluRows = 4096, kGreedyRows = 512;
constexpr std::size_t kSlabBytes = std::size_t{2} * 2 * kBlockTokens * kKvHeads * kHeadDim;
constexpr std::size_t kCopyBytes = std::size_t{1} << 28;
// Launches of one row that are timed together: one alone is shorter than what events resolve.
constexpr int kLaunches = 100;

// What all operations work on. Each of them reads `values`, a result of its own apart.
struct Memory {
  gpu::DeviceBuffer values, residual, normed, weight;
  gpu::DeviceBuffer angles, positions, sequences, tables, rotations, q, slabs;
  gpu::DeviceBuffer activated, parts, tokens, logprobs;
};

Result<Memory> prepare(const gpu::Stream& stream, const std::vector<Bytes>& values) {
  const auto allocate = [&stream](std::size_t count, std::size_t bytes) {
    return gpu::DeviceBuffer::allocate(stream.device(), count * bytes);
  };
  std::vector<std::int32_t> positions(kQkvRows), blocks(blocks_for(kQkvRows));
  std::iota(positions.begin(), positions.end(), 0);
  std::iota(blocks.begin(), blocks.end(), 0);
  const std::size_t longest =
      std::max({std::size_t{kNormRows} * kHidden, std::size_t{kQkvRows} * kQkv,
                std::size_t{kSiluRows} * 2 * kFfn, std::size_t{kGreedyRows} * kVocab});
  KVLANE_ASSIGN(auto all, allocate(longest, sizeof(float)));
  KVLANE_ASSIGN(auto residual, allocate(std::size_t{kNormRows} * kHidden, sizeof(float)));
  KVLANE_ASSIGN(auto normed, allocate(std::size_t{kNormRows} * kHidden, 2));
  KVLANE_ASSIGN(auto weight, on_device(stream, std::vector<float>(kHidden, 1)));
  // Any angle does: what it turns stays finite.
  KVLANE_ASSIGN(auto angles,
                on_device(stream, std::vector<float>(std::size_t{kQkvRows} * kHeadDim, 0.5F)));
  KVLANE_ASSIGN(auto places, on_device(stream, positions));
  KVLANE_ASSIGN(auto sequences, on_device(stream, std::vector<std::int32_t>(kQkvRows, 0)));
  KVLANE_ASSIGN(auto tables, on_device(stream, blocks));
  KVLANE_ASSIGN(auto rotations,
                allocate(std::size_t{kKvHeads} * kHeadDim * kHeadDim, sizeof(float)));
  KVLANE_TRY(fill_with(stream, values, rotations.data(), rotations.bytes()));
  KVLANE_ASSIGN(auto q, allocate(std::size_t{kQkvRows} * kHeads * kHeadDim, 2));
  KVLANE_ASSIGN(auto slabs, allocate(blocks.size(), kSlabBytes));
  KVLANE_ASSIGN(auto activated, allocate(std::size_t{kSiluRows} * kFfn, 2));
  KVLANE_ASSIGN(auto parts,
                allocate(std::size_t{kGreedyRows} * greedy_parts(kVocab), sizeof(GreedyPart)));
  KVLANE_ASSIGN(auto tokens, allocate(kGreedyRows, sizeof(std::int32_t)));
  KVLANE_ASSIGN(auto logprobs, allocate(kGreedyRows, sizeof(float)));
  KVLANE_TRY(fill_with(stream, values, all.data(), all.bytes()));
  KVLANE_TRY(fill_with(stream, values, residual.data(), residual.bytes()));
  return Memory{std::move(all),       std::move(residual), std::move(normed),
                std::move(weight),    std::move(angles),   std::move(places),
                std::move(sequences), std::move(tables),   std::move(rotations),
                std::move(q),         std::move(slabs),    std::move(activated),
                std::move(parts),     std::move(tokens),   std::move(logprobs)};
}

struct Operation {
  const char* name;
  int rows;
  double row_bytes;  // read and written
  std::function<Status(int rows)> run;
};

QkvRows qkv_rows(const Memory& memory, int rows, const float* rotations) {
  return {.product = memory.values.as<float>(),
          .q_norm = nullptr,
          .k_norm = nullptr,
          .eps = 1e-5F,
          .angles = memory.angles.as<float>(),
          .positions = memory.positions.as<std::int32_t>(),
          .sequences = memory.sequences.as<std::int32_t>(),
          .tables = memory.tables.as<std::int32_t>(),
          .table_stride = blocks_for(kQkvRows),
          .rows = rows,
          .heads = kHeads,
          .kv_heads = kKvHeads,
          .head_dim = kHeadDim,
          .q = memory.q.data(),
          .slabs = memory.slabs.data(),
          .block_bytes = kSlabBytes,
          .rotations = rotations};
}

std::vector<Operation> operations(const gpu::Stream& stream, const Memory& memory) {
  const auto* const values = memory.values.as<float>();
  return {
      {"norm", kNormRows, 14.0 * kHidden,
       [&stream, &memory, values](int rows) {
         return norm_on_gpu({.residual = memory.residual.as<float>(),
                             .add = values,
                             .weight = memory.weight.as<float>(),
                             .eps = 1e-5F,
                             .rows = rows,
                             .n = kHidden,
                             .out = memory.normed.data()},
                            stream);
       }},
      {"qkv", kQkvRows, 6.0 * kQkv,
       [&stream, &memory](int rows) {
         return write_qkv_on_gpu(qkv_rows(memory, rows, nullptr), stream);
       }},
      {"turned", kQkvRows, 6.0 * kQkv,
       [&stream, &memory](int rows) {
         return write_qkv_on_gpu(qkv_rows(memory, rows, memory.rotations.as<float>()), stream);
       }},
      {"silu", kSiluRows, 10.0 * kFfn,
       [&stream, &memory, values](int rows) {
         return silu_on_gpu({values, rows, kFfn, memory.activated.data()}, stream);
       }},
      {"greedy", kGreedyRows, 4.0 * kVocab,
       [&stream, &memory, values](int rows) {
         return greedy_on_gpu({.logits = values,
                               .rows = rows,
                               .vocab = kVocab,
                               .parts = memory.parts.as<GreedyPart>(),
                               .tokens = memory.tokens.as<std::int32_t>(),
                               .logprobs = memory.logprobs.as<float>()},
                              stream);
       }},
  };
}

}  // namespace
}  // namespace gpu_rows

Status bench_gpu_rows(const gpu::Stream& stream, int rounds, const std::vector<Bytes>& values,
                      std::vector<Figure>& figures) {
  using namespace gpu_rows;
  KVLANE_ASSIGN(const Memory memory, prepare(stream, values));
  const std::vector<Operation> all = operations(stream, memory);
  GpuTimer timer(stream);
  const std::byte* const from = memory.values.data();
  KVLANE_ASSIGN(const auto copies, gpu::DeviceBuffer::allocate(stream.device(), kCopyBytes));
  KVLANE_TRY(timer.add("copy_by_driver", 2.0 * kCopyBytes, [&stream, &copies, from] {
    return gpu::copy(stream, copies.data(), from, kCopyBytes);
  }));
  KVLANE_TRY(timer.add("copy_by_kernel", 2.0 * kCopyBytes, [&stream, &copies, from] {
    return gpu_copy_by_kernel(stream, copies.data(), from, kCopyBytes);
  }));
  for (const Operation& one : all) {
    KVLANE_TRY(timer.add(one.name, one.row_bytes * one.rows, [&one] { return one.run(one.rows); }));
    const auto many_launches = [&one] {
      for (int i = 0; i < kLaunches; ++i) KVLANE_TRY(one.run(1));
      return Status();
    };
    KVLANE_TRY(timer.add(one.name + std::string("_1"), one.row_bytes * kLaunches, many_launches));
  }
  KVLANE_TRY(timer.time(rounds));
  KVLANE_TRY(check_finite(stream, memory.normed, "gpu_rows_norm"));
  KVLANE_TRY(check_finite(stream, memory.q, "gpu_rows_qkv"));
  KVLANE_TRY(check_finite(stream, memory.activated, "gpu_rows_silu"));
  const double copy = std::max(timer.speed_of("copy_by_driver"), timer.speed_of("copy_by_kernel"));
  for (const Operation& one : all) {
    const std::string name = std::string("gpu_rows_") + one.name;
    figures.push_back(
        {.name = name, .value = timer.speed_of(one.name), .unit = "GB/s", .baseline = copy});
    const double launches_per_us =
        timer.speed_of(one.name + std::string("_1")) * 1e3 / one.row_bytes;
    figures.push_back({.name = name + "_1",
                       .value = 1 / launches_per_us,
                       .unit = "us",
                       .better = Figure::Better::kLower});
  }
  return {};
}

}  // namespace kvlane
