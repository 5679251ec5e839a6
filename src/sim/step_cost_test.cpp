// Steps of known shapes against what others and we measured, and what formats change in them.
// SPDX-License-Identifier: Apache-2.0
#include "sim/step_cost.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "sim/sim_fixture.h"

namespace kvlane {
namespace {

SimModel model_of(int layers, int hidden, int heads, int kv_heads, int ffn, int ffn_matrices,
                  double vocabulary) {
  const double width = hidden;
  const double parameters =
      2 * width * heads * 128 + 2 * width * kv_heads * 128 + ffn_matrices * width * ffn;
  return {.layer = {.hidden = hidden,
                    .heads = heads,
                    .kv_heads = kv_heads,
                    .head_dim = 128,
                    .parameters = parameters},
          .layers = layers,
          .output_parameters = vocabulary * width,
          .embedding_parameters = vocabulary * width};
}

SimModel llama2_70b() { return model_of(80, 8192, 64, 8, 28672, 3, 32000); }
SimModel opt_13b() { return model_of(40, 5120, 40, 40, 20480, 2, 50272); }

StepCost cost_of(std::string_view gpu, const SimModel& model, int tensor = 1,
                 const StepOverheads& overheads = {}) {
  return {gpu_named(gpu), model, {.tensor = tensor}, bf16_costs(model), overheads};
}

double seconds(const StepCost& cost, const std::vector<StepPart>& parts) {
  return cost.of(parts).total();
}

// bench/gpu/h200.json: gpu_step_llama8b_32x16384_seconds.
TEST(StepCost, DecodeOnAnH200AsMeasuredHere) {
  const std::vector<StepPart> parts(32, StepPart{1, 16384});
  EXPECT_NEAR(seconds(cost_of("H200-SXM", llama_8b()), parts), 0.02134, 0.05 * 0.02134);
}

// Splitwise (Patel et al., ISCA'24), data/perf_model.csv: Llama-2-70B on 8 A100, vLLM of 2023,
// which started every kernel by hand.
TEST(StepCost, DecodeOnA100sAsSplitwiseMeasured) {
  const StepCost cost =
      cost_of("A100-80GB-SXM", llama2_70b(), 8, {.step = 300e-6, .layer = 350e-6});
  const std::vector<std::pair<int, double>> measured = {
      {1, 44.9e-3}, {4, 45.8e-3}, {16, 50.4e-3}, {32, 53.0e-3}};
  for (const auto& [batch, expected] : measured) {
    const std::vector<StepPart> parts(batch, StepPart{1, 1024});
    EXPECT_NEAR(seconds(cost, parts), expected, 0.12 * expected) << batch;
  }
}

TEST(StepCost, PromptsOnA100sAsSplitwiseMeasured) {
  const StepCost cost =
      cost_of("A100-80GB-SXM", llama2_70b(), 8, {.step = 300e-6, .layer = 350e-6});
  const std::vector<std::pair<int, double>> measured = {
      {512, 93.0e-3}, {1024, 154.5e-3}, {2048, 274.2e-3}, {4096, 661.2e-3}};
  for (const auto& [tokens, expected] : measured) {
    EXPECT_NEAR(seconds(cost, {{tokens, 0}}), expected, 0.25 * expected) << tokens;
  }
}

// DistServe (Zhong et al., OSDI'24), what it fitted to OPT-13B on an A100: milliseconds
// 19.93 + 0.000627 a token of context + 0.0385 a sequence.
TEST(StepCost, DecodeOnAnA100AsDistServeFitted) {
  const StepCost cost = cost_of("A100-80GB-SXM", opt_13b());
  for (const int batch : {1, 16, 64}) {
    for (const int context : {256, 1024}) {
      const double expected = 1e-3 * (19.93 + 0.000627 * batch * context + 0.0385 * batch);
      const std::vector<StepPart> parts(batch, StepPart{1, context});
      EXPECT_NEAR(seconds(cost, parts), expected, 0.25 * expected) << batch << " x " << context;
    }
  }
}

TEST(StepCost, NothingTakesNoTime) { EXPECT_EQ(cost_of("H100-SXM", llama_8b()).of({}).total(), 0); }

TEST(StepCost, PromptsInPartsCostTheirWeightsAgain) {
  const StepCost cost = cost_of("H100-SXM", llama_8b());
  const StepPart whole{8192, 0};
  const StepTime at_once = cost.of({&whole, 1});
  StepTime parts;
  for (int i = 0; i < 8; ++i) {
    const StepPart part{1024, 1024 * i};
    parts.attention += cost.of({&part, 1}).attention;
    parts.products += cost.of({&part, 1}).products;
  }
  EXPECT_NEAR(parts.attention, at_once.attention, 1e-9) << "the same pairs";
  EXPECT_GT(parts.products, at_once.products);
}

// Causal attention: n (n + 1) / 2 pairs, 4 operations each for every channel of a query head.
TEST(StepCost, AttentionOfAPromptByHand) {
  const SimModel model = llama_8b();
  const Gpu gpu = gpu_named("A100-80GB-SXM");
  const StepPart part{1000, 0};
  const double operations = 32 * 4.0 * 500.5 * 1000 * 4096;
  EXPECT_NEAR(cost_of("A100-80GB-SXM", model).of({&part, 1}).attention,
              operations / (gpu.attention_share * gpu.matrix_rate), 1e-12);
}

TEST(StepCost, FormatsChangeWhatTheySay) {
  const SimModel model = llama_8b();
  const Gpu gpu = gpu_named("A100-80GB-SXM");
  const std::vector<StepPart> parts(8, StepPart{1, 32767});
  const StepTime rows = cost_of("A100-80GB-SXM", model).of(parts);
  const double memory = gpu.memory_share * gpu.memory_rate;
  const double values = 8 * 32767.0 * 32 * model.kv_values();
  EXPECT_NEAR(rows.attention, 8 * 32768.0 * 131072 / memory, 1e-9);

  KvCosts codes = bf16_costs(model);
  codes.resident_bytes /= 6.4;
  codes.read_share = 0.8;
  const StepTime on_codes = StepCost(gpu, model, {}, codes, {}).of(parts);
  EXPECT_NEAR(on_codes.attention, rows.attention / 6.4 / 0.8, 1e-9);
  EXPECT_EQ(on_codes.products, rows.products);
  EXPECT_EQ(on_codes.open, 0);

  codes.open_operations = 2;
  const double opened = StepCost(gpu, model, {}, codes, {}).of(parts).open;
  EXPECT_NEAR(opened, 2 * values / gpu.vector_rate, 1e-9);
  codes.opens_to_memory = true;
  EXPECT_NEAR(StepCost(gpu, model, {}, codes, {}).of(parts).open, opened + 4 * values / memory,
              1e-9);

  codes = bf16_costs(model);
  codes.approximate_operations = 36;
  EXPECT_NEAR(StepCost(gpu, model, {}, codes, {}).of(parts).open,
              36 * 8 * 32767.0 * 32 * 32 / gpu.vector_rate, 1e-12);

  codes = bf16_costs(model);
  codes.seal_share = 0.1;
  EXPECT_NEAR(StepCost(gpu, model, {}, codes, {}).of(parts).seal,
              8 * 2 * 131072.0 / (0.1 * gpu.memory_rate), 1e-12);
}

TEST(StepCost, ProductsInEightBitsNeedTheirUnits) {
  const SimModel model = llama_8b();
  KvCosts codes = bf16_costs(model);
  codes.prefill_speed = 2;
  const StepPart part{16384, 0};
  const auto attention = [&](std::string_view gpu) {
    return StepCost(gpu_named(gpu), model, {}, codes, {}).of({&part, 1}).attention /
           cost_of(gpu, model).of({&part, 1}).attention;
  };
  EXPECT_DOUBLE_EQ(attention("A100-80GB-SXM"), 0.5);
  EXPECT_DOUBLE_EQ(attention("V100-SXM2-16GB"), 1);
}

TEST(StepCost, StagesHandRowsOn) {
  const SimModel model = llama_8b();
  const Gpu gpu = gpu_named("A100-80GB-SXM");
  const StepPart part{1000, 0};
  const StepCost cost(gpu, model, {.tensor = 1, .pipeline = 3}, bf16_costs(model), {});
  EXPECT_NEAR(cost.of({&part, 1}).exchange, 2 * (gpu.peer_delay + 2 * 1000 * 4096 / gpu.peer_rate),
              1e-12);
  EXPECT_EQ(cost_of("A100-80GB-SXM", model).of({&part, 1}).exchange, 0);
}

// The product behind the last layer is for tokens that are wanted: read once for few of them.
TEST(StepCost, OnlyWantedTokensAreSampled) {
  const SimModel model = llama_8b();
  const Gpu gpu = gpu_named("A100-80GB-SXM");
  const StepCost cost = cost_of("A100-80GB-SXM", model);
  const StepPart wanted{1000, 0, true};
  const StepPart part{1000, 0, false};
  EXPECT_NEAR(cost.of({&wanted, 1}).products - cost.of({&part, 1}).products,
              2 * model.output_parameters / (gpu.memory_share * gpu.memory_rate), 1e-12);
  SimModel wide = model;
  wide.output_parameters = 1e12;
  const std::vector<StepPart> many(2000, StepPart{1, 10});
  EXPECT_GT(cost_of("A100-80GB-SXM", wide).of(many).products, 2 * 2000 * 1e12 / gpu.matrix_rate);
}

// Eight KV heads on three GPUs: one of them has three, and the others wait for it.
TEST(StepCost, TheGpuWithTheMostHeadsIsWaitedFor) {
  SimModel model = llama_8b();
  model.layer.heads = 24;
  const StepPart part{1, 100'000};
  const double one = cost_of("A100-80GB-SXM", model).of({&part, 1}).attention;
  EXPECT_NEAR(cost_of("A100-80GB-SXM", model, 3).of({&part, 1}).attention, one * 3 / 8, 1e-12);
}

TEST(StepCost, CorrectionsAreOfEveryPair) {
  const SimModel model = llama_8b();
  KvCosts codes = bf16_costs(model);
  codes.approximate_operations = 36;
  const StepPart part{100, 1000};
  EXPECT_NEAR(StepCost(gpu_named("A100-80GB-SXM"), model, {}, codes, {}).of({&part, 1}).open,
              36 * 100 * 1049.5 * 32 * 32 / 19.5e12, 1e-12);
}

TEST(StepCost, MemoryIsForWeightsFirst) {
  const SimModel model = llama_8b();
  const double room = 0.9 * 80e9 - model.weight_bytes();
  EXPECT_NEAR(cost_of("A100-80GB-SXM", model).tokens_in_memory(0.9), room / 131072, 1);
  EXPECT_LT(cost_of("T4", model).tokens_in_memory(0.9), 0);
  // Eight heads on sixteen GPUs: each head is there twice.
  EXPECT_NEAR(cost_of("A100-80GB-SXM", model, 16).tokens_in_memory(0.9),
              (16 * 0.9 * 80e9 - model.weight_bytes()) / 131072 / 2, 1);
}

TEST(StepCost, CodecsWorkAtAShareOfMemory) {
  const SimModel model = llama_8b();
  KvCosts kv = bf16_costs(model);
  const Gpu gpu = gpu_named("H200-SXM");
  EXPECT_EQ(StepCost(gpu, model, {}, kv, {}).encode(1e9), 0);
  kv.encode_share = 0.5;
  kv.decode_share = 0.25;
  const StepCost cost(gpu, model, {.tensor = 2}, kv, {});
  EXPECT_NEAR(cost.encode(1e9), 2e9 / 4.8e12, 1e-12);
  EXPECT_NEAR(cost.decode(1e9), 4e9 / 4.8e12, 1e-12);
}

TEST(Gpus, AreFoundByName) {
  for (const Gpu& gpu : known_gpus()) {
    ASSERT_TRUE(find_gpu(gpu.name).ok());
    EXPECT_GT(gpu.memory_share, 0.5);
    EXPECT_LE(gpu.memory_share, 1);
  }
  const Result<Gpu> none = find_gpu("A1000");
  EXPECT_EQ(none.status().code(), Code::kNotFound);
  EXPECT_NE(none.status().message().find("no GPU 'A1000' is known; there are A10G, "),
            std::string::npos);
}

}  // namespace
}  // namespace kvlane
