// A model for tests of restoring: as little as has everything.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "base/temporary_directory.h"
#include "model/expected_fixture.h"
#include "model/model.h"
#include "model/synth.h"

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
  return expected_fixture::take(Model::load(directory.path(), model_options));
}

}  // namespace kvlane::tiny_model_fixture
