// Folded checkpoints: the same function, the same files but for what is folded, and tables that
// belong to them.
// SPDX-License-Identifier: Apache-2.0
#include "calib/folded_checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/bf16.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "base/test_results.h"
#include "calib/calibrate_zack.h"
#include "calib/fold.h"
#include "calib/kv_tables_file.h"
#include "model/expected_fixture.h"
#include "model/forward.h"
#include "model/model.h"
#include "model/widen.h"

namespace kvlane {
namespace {

using expected_fixture::kModels;

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) { return take(read_text_file(path, 1 << 24)); }

std::vector<std::int32_t> some_tokens(int count) {
  std::vector<std::int32_t> tokens(count);
  for (int i = 0; i < count; ++i) tokens[i] = (3 + i * 7 + i * i % 13) % 96;
  return tokens;
}

constexpr RotationKind kKinds[] = {RotationKind::kStacked, RotationKind::kProduct};

ZackRotations rotations_for(const fs::path& directory, const Checkpoint& checkpoint,
                            RotationKind kind = RotationKind::kStacked) {
  const auto model = take(Model::load(directory, {.isa = best_isa()}));
  const ZackSums sums = take(sum_for_zack(*model, some_tokens(512), {}));
  return take(zack_rotations(sums.grams, output_grams(checkpoint), {.kind = kind}));
}

// After each of the tokens, [tokens][vocab]. format: null, a cache of rows.
std::vector<float> logits_of(const Model& model, std::span<const std::int32_t> tokens,
                             const KvFormat* format = nullptr) {
  const KvShape shape = model.config().kv_shape();
  BlockPool pool = take(BlockPool::create(shape, 8 * shape.block_bytes()));
  BlockPool sealed = take(BlockPool::create_sealed(
      shape, format ? format->slab_sizes() : SlabSizes(shape.layers, 64), 8 * shape.block_bytes()));
  BlockTable table = format ? BlockTable(sealed, pool, format->window()) : BlockTable(pool);
  const auto count = static_cast<int>(tokens.size());
  EXPECT_TRUE(table.grow(count).ok());
  const auto forward = take(Forward::create(model, count, count, format));
  const ForwardSpan span{&table, tokens, count};
  EXPECT_TRUE(forward->run({&span, 1}, {}).ok());
  std::vector<float> logits;
  for (int i = 0; i < count; ++i) {
    const auto row = forward->logits(i);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

double root_of_mean_square(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += std::pow(double{a[i]} - b[i], 2);
  return std::sqrt(squares / static_cast<double>(a.size()));
}

struct Fixture {
  const char* name;
  const char* plain;  // as in model/forward_test.cpp
};

const Fixture kFixtures[] = {{"llama-mha-bf16-tied", "bfloat16"},
                             {"llama-gqa-bf16-llama3-sharded", "bfloat16"},
                             {"qwen3-gqa-bf16", "bfloat16"},
                             {"llama-mqa-f32", "float32+bfloat16_kv"},
                             {"llama-gqa-f16", "float32+bfloat16_kv"},
                             {"llama-bf16-biases-linear", "bfloat16"},
                             {"qwen2-gqa-bf16", "bfloat16"},
                             {"phi3-gqa-bf16-longrope", "bfloat16"},
                             {"falcon-gqa-bf16", "bfloat16"},
                             {"falcon-mha-f32-sequential", "float32+bfloat16_kv"},
                             {"opt-mha-bf16", "bfloat16"}};

// Both models are as far from exact arithmetic as a plain implementation in the same types, times
// the 1.25 of model/forward_test.cpp, and in the folded one two of the weights were rounded once
// more. Errors of two independent computations add as squares.
TEST(FoldedCheckpoint, ComputesTheSameFunction) {
  for (const Fixture& fixture : kFixtures) {
    for (const RotationKind kind : kKinds) {
      SCOPED_TRACE(fixture.name);
      SCOPED_TRACE(static_cast<int>(kind));
      const fs::path from = kModels / fixture.name;
      const TemporaryDirectory directory;
      const fs::path out = directory.path() / "out";
      const Checkpoint checkpoint = take(Checkpoint::open(from));
      const ZackRotations rotations = rotations_for(from, checkpoint, kind);
      take(write_folded_checkpoint(checkpoint, rotations, {}, 512, out, {}));
      const auto tokens = some_tokens(200);
      const auto before = take(Model::load(from, {.isa = best_isa()}));
      const auto after = take(Model::load(out, {.isa = best_isa()}));
      const auto json = nlohmann::json::parse(text_of(from / "expected.json"));
      const double plain = json["errors"][fixture.plain]["rms"].get<double>();
      const std::vector<float> logits = logits_of(*before, tokens);
      const double difference = root_of_mean_square(logits, logits_of(*after, tokens));
      EXPECT_GT(difference, 0);
      EXPECT_LT(difference, 1.25 * std::sqrt(3.0) * plain);

      // With all dimensions, K and queries being rotated as well.
      const KvTables tables = take(load_kv_tables(out / kZackTables, after->identity()));
      const auto format = take(make_kv_format(
          "zack:keep=1",
          {.shape = after->config().kv_shape(), .tables = &tables, .isa = after->isa()}));
      EXPECT_LT(root_of_mean_square(logits, logits_of(*after, tokens, format.get())),
                1.25 * std::sqrt(3.0) * plain);
    }
  }
}

// W_O R times R^T W_V is W_O W_V, in the weights themselves.
TEST(FoldedCheckpoint, RotationsOfTheWeightsCancel) {
  const Checkpoint checkpoint = take(Checkpoint::open(kModels / "llama-mqa-f32"));
  const ModelConfig& config = checkpoint.config();
  const ZackRotations stacked = rotations_for(kModels / "llama-mqa-f32", checkpoint);
  const ZackRotations products =
      rotations_for(kModels / "llama-mqa-f32", checkpoint, RotationKind::kProduct);
  const auto floats = [](const TensorView& tensor, ByteView bytes) {
    std::vector<float> values(bytes.size() / element_bytes(tensor.type));
    widen(tensor.type, bytes.data(), values.size(), values.data());
    return values;
  };
  const int d = config.head_dim;
  const auto product = [&](const std::vector<float>& w_o, const std::vector<float>& w_v, int head,
                           int row, int column) {
    double sum = 0;
    for (int i = 0; i < d; ++i) {
      sum += double{w_o[(row * config.heads + head) * d + i]} * w_v[i * config.hidden + column];
    }
    return sum;
  };
  const std::string v_name = "model.layers.1.self_attn.v_proj.weight";
  const std::string o_name = output_projection(config, 1);
  const TensorView& v = checkpoint.tensors().at(v_name);
  const TensorView& o = checkpoint.tensors().at(o_name);
  const auto folds = tensor_folds(config);
  EXPECT_EQ(folds.size(), 4U);
  const auto w_v = floats(v, v.bytes);
  const auto w_o = floats(o, o.bytes);
  for (const ZackRotations& rotations : {stacked, products}) {
    const auto folded_v = floats(v, take(fold(config, v, folds.at(v_name), rotations)));
    const auto folded_o = floats(o, take(fold(config, o, folds.at(o_name), rotations)));
    EXPECT_NE(folded_v, w_v);
    for (int head = 0; head < config.heads; ++head) {
      for (int row = 0; row < config.hidden; ++row) {
        for (int column = 0; column < config.hidden; ++column) {
          ASSERT_NEAR(product(folded_o, folded_v, head, row, column),
                      product(w_o, w_v, head, row, column), 1e-6);
        }
      }
    }
  }
}

TEST(FoldedCheckpoint, OutputGramsStackTheSlicesOfAGroup) {
  const Checkpoint checkpoint = take(Checkpoint::open(kModels / "llama-gqa-bf16-llama3-sharded"));
  const ModelConfig& config = checkpoint.config();
  const int d = config.head_dim;
  const int group = config.heads / config.kv_heads;
  const auto grams = output_grams(checkpoint);
  ASSERT_EQ(grams.size(), std::size_t(config.layers) * config.kv_heads * d * d);
  for (int layer = 0; layer < config.layers; ++layer) {
    const TensorView& o = checkpoint.tensors().at(output_projection(config, layer));
    std::vector<float> w(std::size_t(config.hidden) * config.heads * d);
    widen(o.type, o.bytes.data(), w.size(), w.data());
    for (int head = 0; head < config.kv_heads; ++head) {
      for (int i = 0; i < d; ++i) {
        for (int j = i; j < d; ++j) {
          double expected = 0;
          for (int row = 0; row < config.hidden; ++row) {
            for (int h = head * group; h < (head + 1) * group; ++h) {
              const float* const slice = w.data() + (row * config.heads + h) * d;
              expected += double{slice[i]} * slice[j];
            }
          }
          ASSERT_NEAR(grams[((layer * config.kv_heads + head) * d + i) * d + j], expected, 1e-12);
        }
      }
    }
  }
}

TEST(FoldedCheckpoint, LeavesAllElseAsItWas) {
  const fs::path from = kModels / "llama-gqa-bf16-llama3-sharded";
  const TemporaryDirectory directory;
  const fs::path out = directory.path() / "out";
  const Checkpoint checkpoint = take(Checkpoint::open(from));
  fs::create_directory(directory.path() / "out.folding");  // of an interrupted run
  ASSERT_TRUE(write_file(directory.path() / "out.folding" / "old", as_byte_view("old")).ok());
  std::uint64_t last = 0;
  std::uint64_t all = 0;
  take(write_folded_checkpoint(checkpoint, rotations_for(from, checkpoint), {}, 512, out,
                               [&](std::uint64_t done, std::uint64_t total) {
                                 EXPECT_GE(done, last);
                                 last = done;
                                 all = total;
                               }));
  EXPECT_EQ(last, all);
  EXPECT_FALSE(fs::exists(directory.path() / "out.folding"));
  EXPECT_FALSE(fs::exists(out / "old"));
  const Checkpoint folded = take(Checkpoint::open(out));
  ASSERT_EQ(folded.shards().size(), checkpoint.shards().size());
  for (std::size_t i = 0; i < folded.shards().size(); ++i) {
    EXPECT_EQ(folded.shards()[i].name, checkpoint.shards()[i].name);
    EXPECT_EQ(folded.shards()[i].file.bytes().size(), checkpoint.shards()[i].file.bytes().size());
  }
  int changed = 0;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const TensorView& other = folded.tensors().at(name);
    EXPECT_EQ(other.type, tensor.type);
    EXPECT_EQ(other.shape, tensor.shape);
    const bool same = std::ranges::equal(other.bytes, tensor.bytes);
    const bool may_change = name.ends_with("v_proj.weight") || name.ends_with("o_proj.weight");
    EXPECT_EQ(same, !may_change) << name;
    if (!same) ++changed;
  }
  EXPECT_EQ(changed, 4);
  // What holds no weights comes along.
  EXPECT_EQ(text_of(out / "expected.json"), text_of(from / "expected.json"));
  EXPECT_EQ(text_of(out / "model.safetensors.index.json"),
            text_of(from / "model.safetensors.index.json"));
  EXPECT_FALSE(fs::exists(out / "expected.safetensors"));
  auto config = nlohmann::ordered_json::parse(text_of(out / "config.json"));
  EXPECT_EQ(config["kvlane"]["zack"]["tables"], "kvlane/zack.safetensors");
  config.erase("kvlane");
  EXPECT_EQ(config, nlohmann::ordered_json::parse(text_of(from / "config.json")));
}

TEST(FoldedCheckpoint, TablesBelongToTheFoldedModel) {
  const fs::path from = kModels / "qwen3-gqa-bf16";
  const TemporaryDirectory directory;
  const fs::path out = directory.path() / "out";
  const Checkpoint checkpoint = take(Checkpoint::open(from));
  const ZackRotations rotations = rotations_for(from, checkpoint);
  const ModelIdentity identity =
      take(write_folded_checkpoint(checkpoint, rotations, {}, 512, out, {}));
  EXPECT_EQ(identity, take(take(Checkpoint::open(out)).identity({})));
  const KvTables tables = take(load_kv_tables(out / kZackTables, identity));
  EXPECT_EQ(load_kv_tables(out / kZackTables, take(checkpoint.identity({}))).status().code(),
            Code::kInvalidArgument);
  const ModelConfig& config = checkpoint.config();
  const std::size_t d = config.head_dim;
  EXPECT_EQ(tables.values.size(), 4U * config.layers);
  for (int layer = 0; layer < config.layers; ++layer) {
    for (const bool is_key : {true, false}) {
      const std::string prefix = "zack.layers." + std::to_string(layer) + (is_key ? ".k." : ".v.");
      const auto& matrices = tables.values.at(prefix + "rotation");
      const auto& values = tables.values.at(prefix + "singular_values");
      ASSERT_EQ(matrices.size(), config.kv_heads * d * d);
      ASSERT_EQ(values.size(), config.kv_heads * d);
      for (int head = 0; head < config.kv_heads; ++head) {
        const std::size_t index = layer * config.kv_heads + head;
        const Rotation& rotation = (is_key ? rotations.qk : rotations.vw)[index];
        for (std::size_t i = 0; i < d * d; ++i) {
          EXPECT_EQ(matrices[head * d * d + i], static_cast<float>(rotation.matrix[i]));
        }
        EXPECT_TRUE(std::is_sorted(values.begin() + head * d, values.begin() + (head + 1) * d,
                                   std::greater<>()));
      }
    }
  }
}

// Where queries have a rotation of their own, it lies beside that of K, and nothing else changes.
TEST(FoldedCheckpoint, TablesHaveTheRotationOfQueriesWhereItIsAnother) {
  const fs::path from = kModels / "qwen3-gqa-bf16";
  const TemporaryDirectory directory;
  const fs::path out = directory.path() / "out";
  const Checkpoint checkpoint = take(Checkpoint::open(from));
  const ZackRotations rotations = rotations_for(from, checkpoint, RotationKind::kProduct);
  const ModelIdentity identity =
      take(write_folded_checkpoint(checkpoint, rotations, {}, 512, out, {}));
  const KvTables tables = take(load_kv_tables(out / kZackTables, identity));
  const ModelConfig& config = checkpoint.config();
  const std::size_t matrix = std::size_t(config.head_dim) * config.head_dim;
  EXPECT_EQ(tables.values.size(), 5U * config.layers);
  for (int layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = "zack.layers." + std::to_string(layer) + ".k.";
    const auto& keys = tables.values.at(prefix + "rotation");
    const auto& queries = tables.values.at(prefix + "query_rotation");
    ASSERT_EQ(queries.size(), config.kv_heads * matrix);
    for (int head = 0; head < config.kv_heads; ++head) {
      const Rotation& rotation = rotations.qk[std::size_t(layer) * config.kv_heads + head];
      for (std::size_t i = 0; i < matrix; ++i) {
        EXPECT_EQ(keys[head * matrix + i], static_cast<float>(rotation.matrix[i]));
        EXPECT_EQ(queries[head * matrix + i], static_cast<float>(rotation.dual[i]));
      }
    }
  }
}

// K, [tokens][kv_heads][head_dim] of one layer, as it is cached.
std::vector<float> keys_of(const Model& model, std::span<const std::int32_t> tokens, int layer) {
  const KvShape shape = model.config().kv_shape();
  BlockPool pool = take(BlockPool::create(shape, 8 * shape.block_bytes()));
  BlockTable table(pool);
  const auto count = static_cast<int>(tokens.size());
  EXPECT_TRUE(table.grow(count).ok());
  const auto forward = take(Forward::create(model, count, count));
  const ForwardSpan span{&table, tokens, count};
  EXPECT_TRUE(forward->run({&span, 1}, {}).ok());
  std::vector<float> keys;
  for (int token = 0; token < count; ++token) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      const std::uint16_t* const row = table.rows(token / kBlockTokens, layer) +
                                       head * shape.page_elements() +
                                       std::size_t(token % kBlockTokens) * shape.head_dim;
      for (int i = 0; i < shape.head_dim; ++i) keys.push_back(to_float(bf16{row[i]}));
    }
  }
  return keys;
}

// Nothing lies between OPT's products and its K and queries, so those come rotated out of their
// weights, and nothing is left to rotate: ZACK's section on models without RoPE.
TEST(FoldedCheckpoint, KeysAndQueriesFoldWhereThereIsNoRope) {
  const fs::path from = kModels / "opt-mha-f32";
  const Checkpoint checkpoint = take(Checkpoint::open(from));
  const ModelConfig& config = checkpoint.config();
  ASSERT_TRUE(folds_keys(config));
  for (const RotationKind kind : kKinds) {
    const TemporaryDirectory directory;
    const fs::path out = directory.path() / "out";
    const ZackRotations rotations = rotations_for(from, checkpoint, kind);
    take(write_folded_checkpoint(checkpoint, rotations, {}, 512, out, {}));
    const Checkpoint folded = take(Checkpoint::open(out));
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      const bool same = std::ranges::equal(folded.tensors().at(name).bytes, tensor.bytes);
      const bool projection = name.find("_proj.") != std::string::npos;
      EXPECT_EQ(same, !projection || name.ends_with("out_proj.bias")) << name;
    }

    const auto before = take(Model::load(from, {.isa = best_isa()}));
    const auto after = take(Model::load(out, {.isa = best_isa()}));
    const KvTables tables = take(load_kv_tables(out / kZackTables, after->identity()));
    EXPECT_FALSE(tables.values.contains("zack.layers.0.k.rotation"));
    EXPECT_FALSE(tables.values.contains("zack.layers.0.k.query_rotation"));
    const auto format = take(make_kv_format(
        "zack:keep=1", {.shape = config.kv_shape(), .tables = &tables, .isa = after->isa()}));
    EXPECT_EQ(format->key_rotation(0, 0), nullptr);
    EXPECT_EQ(format->query_rotation(0, 0), nullptr);

    const auto tokens = some_tokens(100);
    const int d = config.head_dim;
    for (int layer = 0; layer < config.layers; ++layer) {
      const std::vector<float> plain = keys_of(*before, tokens, layer);
      const std::vector<float> rotated = keys_of(*after, tokens, layer);
      ASSERT_EQ(plain.size(), rotated.size());
      for (std::size_t row = 0; row < plain.size() / d; ++row) {
        const std::size_t head = std::size_t(layer) * config.kv_heads + row % config.kv_heads;
        double squares = 0;
        for (int i = 0; i < d; ++i) squares += std::pow(double{plain[row * d + i]}, 2);
        for (int j = 0; j < d; ++j) {
          double expected = 0;
          for (int i = 0; i < d; ++i) {
            expected += plain[row * d + i] * rotations.qk[head].matrix[std::size_t(i) * d + j];
          }
          // Two roundings to BF16, one of them behind the product.
          ASSERT_NEAR(rotated[row * d + j], expected, 0.02 * std::sqrt(squares))
              << layer << " " << row << " " << j;
        }
      }
    }
  }
}

TEST(FoldedCheckpoint, DoesNotReplaceAnything) {
  const fs::path from = kModels / "llama-mha-bf16-tied";
  const TemporaryDirectory directory;
  const fs::path out = directory.path() / "out";
  fs::create_directory(out);
  const Checkpoint checkpoint = take(Checkpoint::open(from));
  const auto written =
      write_folded_checkpoint(checkpoint, rotations_for(from, checkpoint), {}, 512, out, {});
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.status().message(), out.string() + " is there already");
  EXPECT_TRUE(fs::is_empty(out));
  EXPECT_FALSE(fs::exists(directory.path() / "out.folding"));
}

TEST(FoldedCheckpoint, RefusesWeightsThatNoLongerFit) {
  ModelConfig config;
  config.hidden = 2;
  config.heads = config.kv_heads = 1;
  config.head_dim = 2;
  const double half = std::sqrt(0.5);
  const ZackRotations rotation = {.qk = {}, .vw = {{{half, half, half, -half}, {1, 1}}}};
  const std::vector<fp16> largest(4, to_fp16(65504));
  const TensorView weights{ElementType::kFp16, {2, 2}, std::as_bytes(std::span(largest))};
  EXPECT_EQ(fold(config, weights, {.heads = {{0, 0, 0}}}, rotation).status().message(),
            "a rotated weight is beyond the range of F16");
  EXPECT_EQ(fold(config, weights, {.heads = {}, .outputs_of = 0}, rotation).status().code(),
            Code::kUnsupported);
}

}  // namespace
}  // namespace kvlane
