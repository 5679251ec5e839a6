// The forward pass against transformers in double precision, and the promise that a sequence's bits
// do not depend on batch, chunking or threads.
// SPDX-License-Identifier: Apache-2.0
#include "model/forward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "base/test_results.h"
#include "base/test_sanitizers.h"
#include "cpu/parallel.h"
#include "cpu/tiers_fixture.h"
#include "model/expected_fixture.h"
#include "model/forward_fixture.h"
#include "model/widen.h"
#include "ops/rows.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using expected_fixture::Errors;
using expected_fixture::Expected;
using expected_fixture::kModels;
using forward_fixture::random_tokens;
using forward_fixture::same_bits;
using tiers_fixture::tiers;

// A model with a pool and a forward pass of its own.
struct HostRunner {
  HostRunner(const fs::path& directory, Isa isa, int rows_max = 512, int context_max = 0)
      : model(take(Model::load(directory, {.isa = isa, .context_max = context_max}))),
        pool(take(BlockPool::create(model->config().kv_shape(),
                                    64 * model->config().kv_shape().block_bytes()))),
        forward(take(Forward::create(*model, rows_max, 8))) {}

  // Appends `tokens` in pieces of `chunk`; the logits after each token when `chunk` is 1, else
  // after each piece.
  std::vector<std::vector<float>> run(BlockTable& table, std::span<const std::int32_t> tokens,
                                      int chunk) {
    EXPECT_TRUE(table.grow(table.tokens() + static_cast<int>(tokens.size())).ok());
    std::vector<std::vector<float>> logits;
    for (std::size_t done = 0; done < tokens.size(); done += chunk) {
      const auto piece = tokens.subspan(done, std::min<std::size_t>(chunk, tokens.size() - done));
      const ForwardSpan span{&table, piece, 1};
      const Status status = forward->run({&span, 1}, {});
      EXPECT_TRUE(status.ok()) << status.message();
      const auto row = forward->logits(0);
      logits.emplace_back(row.begin(), row.end());
    }
    return logits;
  }

  std::unique_ptr<Model> model;
  BlockPool pool;
  std::unique_ptr<Forward> forward;
};

struct ForwardFixture {
  const char* name;
  // The plain implementation whose error is the unit: the types that kvlane computes in.
  const char* plain;
  int context_max = 0;  // the model's own
};

// BF16 checkpoints are computed in BF16. F32 and F16 ones (widened to F32) keep BF16 K and V.
const ForwardFixture kForwardFixtures[] = {{"llama-mha-bf16-tied", "bfloat16"},
                                           {"llama-gqa-bf16-llama3-sharded", "bfloat16"},
                                           {"qwen3-gqa-bf16", "bfloat16"},
                                           {"llama-mqa-f32", "float32+bfloat16_kv"},
                                           {"llama-gqa-f16", "float32+bfloat16_kv"},
                                           {"llama-bf16-biases-linear", "bfloat16"},
                                           {"llama-f32-yarn", "float32+bfloat16_kv"},
                                           {"qwen2-gqa-bf16", "bfloat16"},
                                           {"qwen2-bf16-yarn-added", "bfloat16"},
                                           {"mistral-gqa-bf16", "bfloat16"},
                                           {"phi3-gqa-bf16-longrope", "bfloat16"},
                                           {"falcon-gqa-bf16", "bfloat16"},
                                           {"falcon-29-bf16-one-norm", "bfloat16"},
                                           {"falcon-29-bf16-grouped", "bfloat16"},
                                           {"falcon-mqa-bf16", "bfloat16"},
                                           {"falcon-mha-f32-sequential", "float32+bfloat16_kv"},
                                           {"opt-mha-bf16", "bfloat16"},
                                           {"opt-mha-f32", "float32+bfloat16_kv"},
                                           {"mistral-gqa-bf16-window", "bfloat16"},
                                           {"qwen2-f32-window-above", "float32+bfloat16_kv"},
                                           {"llama-29-bf16", "bfloat16"},
                                           {"qwen2-grouped-bf16", "bfloat16"},
                                           {"mistral-grouped-bf16-window", "bfloat16"},
                                           {"phi3-f32-window-short", "float32+bfloat16_kv", 256}};
constexpr double kFactor = 1.25;

TEST(Forward, LogitsEqualTransformersWithinTheErrorOfAPlainImplementation) {
  for (const Isa isa : tiers()) {
    for (const ForwardFixture& fixture : kForwardFixtures) {
      const fs::path directory = kModels / fixture.name;
      const Expected expected(directory);
      HostRunner runner(directory, isa, 512, fixture.context_max);
      const std::size_t vocab = runner.model->config().vocab;
      Errors errors;
      const auto& prompts = expected.prompts();
      for (std::size_t prompt = 0; prompt < prompts.size(); ++prompt) {
        const std::vector<std::int32_t>& tokens = prompts[prompt];
        const int positions = expected.positions(prompt);
        // All but the recorded positions at once, those one by one.
        BlockTable table(runner.pool);
        const std::span<const std::int32_t> all(tokens);
        const std::size_t head = all.size() - positions;
        if (head > 0) runner.run(table, all.first(head), static_cast<int>(head));
        const auto logits = runner.run(table, all.subspan(head), 1);
        for (int position = 0; position < positions; ++position) {
          errors.add(logits[position], expected.logits(prompt) + position * vocab);
        }
      }
      SCOPED_TRACE(std::string(fixture.name) + " " + std::string(isa_name(isa)));
      expected.expect_at_most(errors, kFactor, fixture.plain);
    }
  }
}

TEST(Forward, GivesTheLogitsOfAsManyOfTheLastTokensAsAreWanted) {
  HostRunner runner(kModels / kForwardFixtures[1].name, best_isa());
  const auto tokens = random_tokens(40, runner.model->config().vocab, 1);
  BlockTable alone_table(runner.pool);
  const auto alone = runner.run(alone_table, tokens, 1);
  // Two sequences in one pass: five rows of one, two of the other.
  BlockTable first(runner.pool);
  BlockTable second(runner.pool);
  ASSERT_TRUE(first.grow(40).ok());
  ASSERT_TRUE(second.grow(40).ok());
  const std::span<const std::int32_t> all(tokens);
  const ForwardSpan spans[] = {{&first, all, 5}, {&second, all.first(9), 2}};
  ASSERT_TRUE(runner.forward->run(spans, {}).ok());
  const int expected[] = {35, 36, 37, 38, 39, 7, 8};
  for (int i = 0; i < 7; ++i) {
    const auto row = runner.forward->logits(i);
    EXPECT_TRUE(same_bits({row.begin(), row.end()}, alone[expected[i]])) << i;
  }
}

TEST(Forward, ASequenceHasTheSameBitsInAnyChunkingBatchAndThreadCount) {
  for (const Isa isa : tiers()) {
    for (const ForwardFixture& fixture : kForwardFixtures) {
      HostRunner runner(kModels / fixture.name, isa);
      const auto tokens = random_tokens(300, runner.model->config().vocab, 1);
      BlockTable whole_table(runner.pool);
      set_parallel_threads(2);
      const auto whole = runner.run(whole_table, tokens, 300).back();

      for (const int threads : every_other_if(kSanitized, std::vector{1, 3})) {
        set_parallel_threads(threads);
        for (const int chunk : every_other_if(kSanitized, std::vector{1, 7, 64, 100})) {
          BlockTable table(runner.pool);
          EXPECT_TRUE(same_bits(runner.run(table, tokens, chunk).back(), whole))
              << fixture.name << " " << isa_name(isa) << " chunk " << chunk << " threads "
              << threads;
        }
      }
      set_parallel_threads(2);

      // The last token together with a prompt and with other decoding sequences.
      BlockTable table(runner.pool);
      BlockTable other(runner.pool);
      BlockTable third(runner.pool);
      const std::span<const std::int32_t> all(tokens);
      runner.run(table, all.first(299), 299);
      runner.run(other, all.first(40), 40);
      ASSERT_TRUE(table.grow(300).ok() && other.grow(41).ok() && third.grow(120).ok());
      const ForwardSpan batch[] = {{&other, all.subspan(7, 1), true},
                                   {&third, all.subspan(50, 120), false},
                                   {&table, all.last(1), true}};
      ASSERT_TRUE(runner.forward->run(batch, {}).ok());
      const auto row = runner.forward->logits(1);
      EXPECT_TRUE(same_bits({row.begin(), row.end()}, whole))
          << fixture.name << " " << isa_name(isa);
    }
  }
}

TEST(Forward, TellsEveryLayerInOrder) {
  HostRunner runner(kModels / "llama-mha-bf16-tied", Isa::kScalar);
  BlockTable table(runner.pool);
  ASSERT_TRUE(table.grow(3).ok());
  const auto tokens = random_tokens(3, 96, 2);
  const ForwardSpan span{&table, tokens, 0};
  std::vector<int> layers;
  ASSERT_TRUE(runner.forward
                  ->run({&span, 1}, {.on_layer =
                                         [&](int layer, const auto& done) {
                                           EXPECT_EQ(done, nullptr);
                                           layers.push_back(layer);
                                         }})
                  .ok());
  EXPECT_EQ(layers, (std::vector<int>{0, 1}));
  EXPECT_EQ(table.tokens(), 3);
}

TEST(Forward, ShowsWhatEntersEachLayer) {
  HostRunner runner(kModels / "llama-mha-bf16-tied", Isa::kScalar);
  const std::size_t hidden = runner.model->config().hidden;
  BlockTable table(runner.pool);
  ASSERT_TRUE(table.grow(3).ok());
  const auto tokens = random_tokens(3, 96, 2);
  const ForwardSpan span{&table, tokens, 0};
  std::vector<std::vector<float>> inputs;
  const auto keep = [&](int layer, std::span<const float> rows) {
    EXPECT_EQ(layer, static_cast<int>(inputs.size()));
    inputs.emplace_back(rows.begin(), rows.end());
  };
  ASSERT_TRUE(runner.forward->run({&span, 1}, {.on_input = keep}).ok());
  ASSERT_EQ(inputs.size(), 2U);
  std::vector<float> embedding(hidden);
  for (std::size_t token = 0; token < tokens.size(); ++token) {
    runner.model->embed(tokens[token], static_cast<int>(token), embedding.data());
    const std::span<const float> row(inputs[0].data() + token * hidden, hidden);
    EXPECT_TRUE(std::ranges::equal(row, embedding));
  }
  ASSERT_EQ(inputs[1].size(), inputs[0].size());
  EXPECT_NE(inputs[1], inputs[0]);
}

// The queries of the first layer by a plain product: norm, projection, norm of heads, rotation.
std::vector<float> first_queries(const Model& model, const fs::path& directory, std::int32_t token,
                                 int position) {
  const ModelConfig& config = model.config();
  const int d = config.head_dim;
  const auto checkpoint = take(Checkpoint::open(directory));
  const TensorView& tensor = checkpoint.tensors().at("model.layers.0.self_attn.q_proj.weight");
  std::vector<float> weights(std::size_t(config.heads) * d * config.hidden);
  widen(tensor.type, tensor.bytes.data(), weights.size(), weights.data());
  std::vector<float> input(config.hidden);
  model.embed(token, position, input.data());
  const LayerWeights& layer = model.layers()[0];
  model.norm(layer.attention_norm, input.data(), config.hidden, input.data());
  std::vector<float> queries(std::size_t(config.heads) * d);
  for (std::size_t i = 0; i < queries.size(); ++i) {
    double sum = 0;
    for (int j = 0; j < config.hidden; ++j) {
      sum += double{weights[i * config.hidden + j]} * input[j];
    }
    queries[i] = static_cast<float>(sum);
  }
  for (int h = 0; h < config.heads; ++h) {
    float* const head = queries.data() + h * d;
    if (config.qk_norm) rms_norm(head, layer.q_norm.weight.data(), config.norm_eps, d, head);
    rope(head, model.rope().angles(position), d);
  }
  return queries;
}

TEST(Forward, ShowsTheQueriesOfEachLayer) {
  // Inputs of BF16 products and what they give are rounded to 8 bits; F32 has two parts of 8 bits.
  const std::pair<const char*, double> models[] = {{"qwen3-gqa-bf16", 0x1p-6},
                                                   {"llama-mqa-f32", 0x1p-14}};
  for (const auto& [name, tolerance] : models) {
    SCOPED_TRACE(name);
    HostRunner runner(kModels / name, best_isa());
    BlockTable table(runner.pool);
    ASSERT_TRUE(table.grow(70).ok());
    const auto tokens = random_tokens(70, 96, 2);
    const ForwardSpan span{&table, tokens, 0};
    int layers = 0;
    std::vector<float> shown;  // [tokens][heads * head_dim] of layer 0
    const std::size_t d = runner.model->config().head_dim;
    const std::size_t width = runner.model->config().heads * d;
    const auto keep = [&](int layer, std::span<const std::uint16_t> queries, int parts) {
      EXPECT_EQ(layer, layers++);
      ASSERT_EQ(queries.size(), tokens.size() * width * parts);
      if (layer > 0) return;
      shown.resize(tokens.size() * width);
      for (std::size_t i = 0; i < queries.size(); ++i) {
        shown[i / (parts * d) * d + i % d] += to_float(bf16{queries[i]});
      }
    };
    ASSERT_TRUE(runner.forward->run({&span, 1}, {.on_queries = keep}).ok());
    EXPECT_EQ(layers, runner.model->config().layers);
    for (const int position : {0, 1, 63, 69}) {
      const auto expected =
          first_queries(*runner.model, kModels / name, tokens[position], position);
      const float largest = std::abs(
          *std::ranges::max_element(expected, {}, [](float value) { return std::abs(value); }));
      for (std::size_t i = 0; i < width; ++i) {
        ASSERT_NEAR(shown[position * width + i], expected[i], tolerance * largest) << i;
      }
    }
  }
}

TEST(Forward, RefusesMoreRowsThanItHasBuffersFor) {
  HostRunner runner(kModels / "llama-mha-bf16-tied", Isa::kScalar, 4);
  BlockTable table(runner.pool);
  ASSERT_TRUE(table.grow(5).ok());
  const auto tokens = random_tokens(5, 96, 2);
  const ForwardSpan span{&table, tokens, 0};
  EXPECT_EQ(runner.forward->run({&span, 1}, {}).code(), Code::kInternal);
  EXPECT_EQ(table.tokens(), 0);
}

// A copy of a checkpoint in BF16, in which some tensors have the same values in F32.
void copy_widened(const fs::path& from, const fs::path& to,
                  const std::function<bool(const std::string&)>& widens) {
  fs::copy(from, to, fs::copy_options::recursive);
  const std::string file = take(read_text_file(from / "model.safetensors", std::size_t{1} << 30));
  std::vector<TensorSpec> specs;
  std::string data;
  for (const auto& [name, view] : take(parse_safetensors(as_byte_view(file)))) {
    specs.push_back({name, widens(name) ? ElementType::kF32 : view.type, view.shape});
    if (widens(name)) {
      std::vector<float> values(view.bytes.size() / 2);
      widen(view.type, view.bytes.data(), values.size(), values.data());
      data += as_text(std::as_bytes(std::span(values)));
    } else {
      data += as_text(view.bytes);
    }
  }
  const std::string text = std::string(as_text(build_safetensors_header(specs))) + data;
  ASSERT_TRUE(write_file(to / "model.safetensors", as_byte_view(text)).ok());
}

// As files of llama.cpp, and checkpoints that keep some matrices more exactly, have them.
TEST(Model, OfMixedElementTypesComputesInTheWidest) {
  const TemporaryDirectory temporary;
  const std::string layers = "model.layers.";
  const auto is_product = [&](const std::string& name) {
    return name.starts_with(layers) && name.find("_proj.weight") != std::string::npos;
  };
  const fs::path all = temporary.path() / "all";
  copy_widened(kModels / "llama-mha-bf16-tied", all, is_product);
  const char* const some[] = {"0.mlp.down_proj.weight", "1.self_attn.k_proj.weight",
                              "1.self_attn.o_proj.weight", "0.mlp.up_proj.weight"};
  const std::vector<std::int32_t> tokens = {1, 30, 7, 7, 81, 12, 5};
  for (const Isa isa : {Isa::kScalar, best_isa()}) {
    HostRunner wide(all, isa);
    EXPECT_EQ(wide.model->row_type(), ElementType::kF32);
    BlockTable table(wide.pool);
    const auto expected = wide.run(table, tokens, 3);
    for (const char* const one : some) {
      SCOPED_TRACE(one);
      const fs::path mixed = temporary.path() / one;
      if (!fs::exists(mixed)) {
        copy_widened(kModels / "llama-mha-bf16-tied", mixed,
                     [&](const std::string& name) { return name == layers + one; });
      }
      HostRunner runner(mixed, isa);
      BlockTable mine(runner.pool);
      EXPECT_EQ(runner.run(mine, tokens, 3), expected);
    }
  }
}

// The head reads rows of its own type, however many there are.
TEST(Model, MayHaveAHeadOfAnotherElementType) {
  const TemporaryDirectory temporary;
  const fs::path wide = temporary.path() / "wide";
  copy_widened(kModels / "mistral-gqa-bf16", wide,
               [](const std::string& name) { return name == "lm_head.weight"; });
  std::vector<std::vector<float>> last;
  for (const fs::path& directory : {kModels / "mistral-gqa-bf16", wide}) {
    HostRunner runner(directory, best_isa(), 8);
    EXPECT_EQ(runner.model->row_type(), ElementType::kBf16);
    BlockTable table(runner.pool);
    ASSERT_TRUE(table.grow(8).ok());
    const std::vector<std::int32_t> tokens = {1, 30, 7, 7, 81, 12, 5, 9};
    const ForwardSpan span{&table, tokens, 8};
    ASSERT_TRUE(runner.forward->run({&span, 1}, {}).ok());
    for (int row = 0; row < 8; ++row) {
      const auto logits = runner.forward->logits(row);
      last.emplace_back(logits.begin(), logits.end());
    }
  }
  for (int row = 0; row < 8; ++row) {
    for (std::size_t i = 0; i < last[row].size(); ++i) {
      EXPECT_NEAR(last[row][i], last[row + 8][i], 0.05) << row << " " << i;
    }
  }
}

TEST(Model, RefusesAContextBeyondItsOwn) {
  const auto model =
      Model::load(kModels / "llama-mha-bf16-tied", {.isa = Isa::kScalar, .context_max = 100000});
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvlane
