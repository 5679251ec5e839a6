// Every case reads one GiB of K and V, blocks in no order, several times the second-level cache.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "attention/decode_gpu.h"
#include "bench/gpu_copy.h"
#include "bench/gpu_memory.h"
#include "bench/gpu_timer.h"
#include "format/shape.h"

namespace kvlane {
namespace gpu_attention {
namespace {

constexpr std::size_t kPoolBytes = std::size_t{1} << 30;
constexpr int kKvHeads = 8;

struct Case {
  int head_dim;
  int group;        // query heads a KV head
  int tokens;       // of a sequence; there are so many sequences that they fill the pool
  double goal = 0;  // share of reading; 0: none is set

  std::size_t block_bytes() const {
    return std::size_t{2} * 2 * kBlockTokens * kKvHeads * head_dim;
  }
  int blocks() const { return static_cast<int>(kPoolBytes / block_bytes()); }
  int sequences() const { return blocks() / (tokens / kBlockTokens); }
  int heads() const { return kKvHeads * group; }
  std::size_t result_values() const { return std::size_t(sequences()) * heads() * head_dim; }
  std::string name() const {
    return "gpu_attention_" + std::to_string(head_dim) + "x" + std::to_string(group) + "_" +
           std::to_string(tokens);
  }
};

constexpr Case kCases[] = {
    {128, 1, 32768, 0.8}, {128, 4, 32768, 0.8}, {128, 8, 32768, 0.8}, {128, 16, 32768},
    {128, 4, 1024},       {128, 4, 262144},     {64, 4, 32768},       {256, 4, 32768},
};

// The memory of one case besides the pool.
struct Memory {
  gpu::DeviceBuffer tables, units, first_state, q, max, sum, out, result;
  std::size_t unit_count;
};

Result<Memory> prepare(const gpu::Stream& stream, const Case& one, const Bytes& values,
                       int multiprocessors) {
  KVLANE_ASSIGN(const DecodeShape shape,
                decode_shape(one.heads(), kKvHeads, one.head_dim, multiprocessors));
  const std::vector<std::int32_t> tokens(one.sequences(), one.tokens);
  const DecodePlan plan = plan_decode(tokens, shape);
  std::vector<std::int32_t> ids(one.blocks());
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
  Bytes queries(one.result_values() * 2);
  for (std::size_t i = 0; i < queries.size(); ++i) queries[i] = values[i % values.size()];
  const std::size_t states = plan.first_state.back();
  const int device = stream.device();
  KVLANE_ASSIGN(auto tables, on_device(stream, ids));
  KVLANE_ASSIGN(auto units, on_device(stream, plan.units));
  KVLANE_ASSIGN(auto first_state, on_device(stream, plan.first_state));
  KVLANE_ASSIGN(auto q, on_device(stream, queries));
  KVLANE_ASSIGN(auto max, gpu::DeviceBuffer::allocate(device, states * sizeof(float)));
  KVLANE_ASSIGN(auto sum, gpu::DeviceBuffer::allocate(device, states * sizeof(float)));
  KVLANE_ASSIGN(auto out,
                gpu::DeviceBuffer::allocate(device, states * one.head_dim * sizeof(float)));
  KVLANE_ASSIGN(auto result, gpu::DeviceBuffer::allocate(device, queries.size()));
  return Memory{std::move(tables), std::move(units),  std::move(first_state),
                std::move(q),      std::move(max),    std::move(sum),
                std::move(out),    std::move(result), plan.units.size()};
}

Status attend(const gpu::Stream& stream, const Case& one, const Memory& memory,
              const std::byte* pool) {
  const DecodeBatch batch{.tables = memory.tables.as<std::int32_t>(),
                          .table_stride = one.tokens / kBlockTokens,
                          .heads = one.heads(),
                          .kv_heads = kKvHeads,
                          .head_dim = one.head_dim,
                          .slabs = pool,
                          .block_bytes = one.block_bytes(),
                          .q = memory.q.data(),
                          .scale = static_cast<float>(1.4426950408889634 / std::sqrt(one.head_dim)),
                          .max = memory.max.as<float>(),
                          .sum = memory.sum.as<float>(),
                          .out = memory.out.as<float>()};
  KVLANE_TRY(attend_on_gpu(batch, memory.units.as<DecodeUnit>(), memory.unit_count, stream));
  return merge_on_gpu({.first_state = memory.first_state.as<std::int32_t>(),
                       .sequences = one.sequences(),
                       .heads = one.heads(),
                       .head_dim = one.head_dim,
                       .max = batch.max,
                       .sum = batch.sum,
                       .out = batch.out,
                       .result_bf16 = memory.result.data()},
                      stream);
}

Result<int> multiprocessors_of(int index) {
  KVLANE_ASSIGN(const std::vector<gpu::Device> devices, gpu::devices());
  return devices[static_cast<std::size_t>(index)].multiprocessors;
}

}  // namespace
}  // namespace gpu_attention

Status bench_gpu_attention(const gpu::Stream& stream, int rounds, const std::vector<Bytes>& values,
                           std::vector<Figure>& figures) {
  using namespace gpu_attention;
  KVLANE_ASSIGN(const int multiprocessors, multiprocessors_of(stream.device()));
  KVLANE_ASSIGN(const auto pool, gpu::DeviceBuffer::allocate(stream.device(), kPoolBytes));
  KVLANE_ASSIGN(const auto sink, gpu::DeviceBuffer::allocate(stream.device(), 256));
  KVLANE_TRY(fill_with(stream, values, pool.data(), kPoolBytes));
  std::vector<Memory> memories;
  for (const Case& one : kCases) {
    KVLANE_ASSIGN(Memory memory, prepare(stream, one, values.front(), multiprocessors));
    memories.push_back(std::move(memory));
  }
  GpuTimer timer(stream);
  KVLANE_TRY(timer.add("read", kPoolBytes,
                       [&] { return gpu_read(stream, pool.data(), kPoolBytes, sink.data()); }));
  for (std::size_t i = 0; i < std::size(kCases); ++i) {
    KVLANE_TRY(timer.add(kCases[i].name(), kPoolBytes, [&stream, &memories, &pool, i] {
      return attend(stream, kCases[i], memories[i], pool.data());
    }));
  }
  KVLANE_TRY(timer.time(rounds));
  const double read = timer.speed_of("read");
  for (std::size_t i = 0; i < std::size(kCases); ++i) {
    const Case& one = kCases[i];
    KVLANE_TRY(check_finite(stream, memories[i].result, one.name()));
    Figure figure{
        .name = one.name(), .value = timer.speed_of(one.name()), .unit = "GB/s", .baseline = read};
    if (one.goal > 0) figure.goal = one.goal * read;
    figures.push_back(figure);
  }
  return {};
}

}  // namespace kvlane
