// Models, GPUs and requests that tests of the simulator share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "format/shape.h"
#include "sim/cluster.h"

namespace kvlane {

// One whose steps take a second for each 1,000 tokens and nothing else: what queues do to requests
// is then known from textbooks.
inline ClusterSetting plain_queue() {
  ClusterSetting setting;
  setting.model = {
      .layer = {.hidden = 0, .heads = 1, .kv_heads = 1, .head_dim = 0, .parameters = 1e6},
      .layers = 1};
  setting.kv = {.name = "none", .resident_bytes = 1, .wire_bytes = 1};
  setting.overheads = {.step = 0, .layer = 0};
  setting.decode.count = 1;
  setting.decode.gpu = {.name = "plain",
                        .memory_bytes = 1e12,
                        .memory_rate = 1e30,
                        .matrix_rate = 2e9,
                        .matrix_int8_rate = 0,
                        .vector_rate = 1,
                        .peer_rate = 1,
                        .peer_delay = 0,
                        .memory_share = 1,
                        .matrix_share = 1,
                        .attention_share = 1};
  setting.decode.limits = {.batch_tokens_max = 1 << 30, .sequences_max = 1};
  setting.decode.network_rate = 1e9;
  return setting;
}

// Llama 3.1 8B.
inline SimModel llama_8b() {
  return {.layer = {.hidden = 4096,
                    .heads = 32,
                    .kv_heads = 8,
                    .head_dim = 128,
                    .parameters = 218103808},
          .layers = 32,
          .output_parameters = 128256.0 * 4096,
          .embedding_parameters = 128256.0 * 4096};
}

inline KvCosts bf16_costs(const SimModel& model) {
  return {
      .name = "bf16", .resident_bytes = 2 * model.kv_values(), .wire_bytes = 2 * model.kv_values()};
}

inline Gpu gpu_named(std::string_view name) {
  const Result<Gpu> found = find_gpu(name);
  EXPECT_TRUE(found.ok());
  return *found;
}

// Two prefill and two decode replicas of one A100 each.
inline ClusterSetting small_cluster() {
  ClusterSetting setting;
  setting.model = llama_8b();
  setting.kv = bf16_costs(setting.model);
  setting.prefill = {.count = 2, .gpu = gpu_named("A100-80GB-SXM"), .network_rate = 5e9};
  setting.decode = setting.prefill;
  return setting;
}

// Leaves room for so many blocks on each of the group's replicas, whose GPUs have no head twice.
inline void limit_blocks(ReplicaGroup& group, const ClusterSetting& setting, int blocks) {
  const double block = kBlockTokens * setting.model.layers * setting.kv.resident_bytes;
  group.gpu.memory_bytes = (setting.model.weight_bytes() + (blocks + 0.5) * block) /
                           setting.memory_share / group.parallel.gpus();
}

inline double exponential(std::uint64_t seed, std::uint32_t index, std::uint32_t stream) {
  const PhiloxCounter words = philox4x32(seed, {index, stream, 0, 0});
  return -std::log1p(-uniform_unit(words[0], words[1]));
}

// Poisson arrivals of the same prompt and answer.
inline std::vector<SimRequest> poisson(std::size_t count, double rate, int prompt, int answer,
                                       std::uint64_t seed = 1) {
  std::vector<SimRequest> requests(count);
  double time = 0;
  for (std::size_t i = 0; i < count; ++i) {
    time += exponential(seed, static_cast<std::uint32_t>(i), 0) / rate;
    requests[i] = {time, prompt, answer};
  }
  return requests;
}

inline SimOutcome run(const ClusterSetting& setting, const std::vector<SimRequest>& requests) {
  Result<SimOutcome> outcome = simulate(setting, requests, {});
  EXPECT_TRUE(outcome.ok()) << outcome.status().message();
  return outcome.ok() ? *std::move(outcome) : SimOutcome();
}

}  // namespace kvlane
