// The family says how; parse_model_config() checks what comes out.
// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_config.h"

#include <string>

#include "model/config_fields.h"
#include "model/gguf_config_writer.h"

namespace kvlane {

Result<const Family*> gguf_family(const GgufFile& file) {
  const auto* const name = find_entry<std::string_view>(file, "general.architecture");
  if (name == nullptr) return corrupt("it has no 'general.architecture'");
  std::string known;
  for (const Family* const family : families()) {
    if (family->gguf == nullptr) continue;
    if (family->gguf->architecture == *name) return family;
    known += (known.empty() ? "" : ", ") + std::string(family->gguf->architecture);
  }
  // What no family here computes is told rather than the name of one that does.
  GgufConfigWriter features(file, *name);
  features.refuse_features();
  KVLANE_TRY(features.status());
  return unsupported("'general.architecture' is " + in_quotes(std::string(*name)) +
                     "; kvlane reads " + known);
}

Result<ModelConfig> gguf_config(const GgufFile& file) {
  KVLANE_ASSIGN(const Family* const family, gguf_family(file));
  const auto embedding = file.tensors.find(std::string_view("token_embd.weight"));
  if (embedding == file.tensors.end() || embedding->second.shape.size() != 2) {
    return corrupt("it has no table 'token_embd.weight'");
  }
  GgufConfigWriter writer(file, family->gguf->architecture);
  writer.set_architecture(family->architecture);
  writer.set_integer("vocab_size", embedding->second.shape[0]);
  writer.set_flag("tie_word_embeddings", !writer.has_tensor("output.weight"));
  writer.set_token("bos_token_id", "tokenizer.ggml.bos_token_id");
  writer.add_end("tokenizer.ggml.eos_token_id");
  writer.add_end("tokenizer.ggml.eot_token_id");
  family->gguf->write(writer);
  return writer.parse();
}

}  // namespace kvlane
