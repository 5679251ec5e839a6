// A model for tests of restoring: as little as has everything.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/temporary_directory.h"
#include "base/test_results.h"
#include "format/block_name.h"
#include "model/model.h"
#include "model/synth.h"
#include "quant/tables_fixture.h"

namespace kvlane::tiny_model_fixture {

// Several heads, and layers for two extents a block.
inline constexpr const char* kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96, "head_dim": 32,
  "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 5, "vocab_size": 200,
  "max_position_embeddings": 1024, "torch_dtype": "bfloat16", "tie_word_embeddings": false})";

inline std::unique_ptr<Model> load(const ModelOptions& model_options = {}) {
  const TemporaryDirectory directory;
  SynthOptions options;
  options.config_json = kConfig;
  const Status written = write_synthetic_checkpoint(options, directory.path());
  EXPECT_TRUE(written.ok()) << written.message();
  return take(Model::load(directory.path(), model_options));
}

// On the host, loaded once.
inline const Model& tiny_model() {
  static const std::unique_ptr<Model> model = load();
  return *model;
}

// For its cache; null for "bf16".
inline std::shared_ptr<const KvFormat> tiny_format(const std::string& name) {
  const Model& model = tiny_model();
  KvTables tables;
  const KvShape shape = model.config().kv_shape();
  if (name.starts_with("zack")) tables_fixture::add_zack_tables(shape, true, tables);
  return take(make_kv_format(
      name, {.shape = shape, .rope = &model.rope(), .tables = &tables, .isa = model.isa()}));
}

// Names as good as any others.
inline std::vector<BlockName> block_names(int count) {
  std::vector<BlockName> names(count);
  for (int i = 0; i < count; ++i) {
    names[i].fill(std::byte{0x5A});
    names[i][0] = static_cast<std::byte>(i);
  }
  return names;
}

}  // namespace kvlane::tiny_model_fixture
