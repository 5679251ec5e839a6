// Entry by entry; parse_model_config() checks what comes out.
// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_config.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "model/config_fields.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;

struct Architecture {
  std::string_view gguf;
  const char* name;
};
constexpr std::array<Architecture, 3> kArchitectures = {{
    {"llama", "LlamaForCausalLM"},
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
}};

// Writes entries of one architecture into a config.json. The first error sticks.
class ConfigWriter {
 public:
  ConfigWriter(const GgufFile& file, std::string_view architecture)
      : file_(file), prefix_(std::string(architecture) + ".") {}

  const double* find(const char* name) const { return find_entry<double>(file_, prefix_ + name); }

  // A whole number; absent: `fallback`, or an error.
  void integer(const char* to, const char* from, std::optional<double> fallback = std::nullopt) {
    const double* const value = find(from);
    if (value == nullptr && !fallback) return fail(corrupt("it has no '" + prefix_ + from + "'"));
    const double number = value != nullptr ? *value : *fallback;
    if (std::floor(number) != number || std::abs(number) > kVocabMax * 16.0) {
      return fail(corrupt("'" + prefix_ + from + "' is no whole number, or too large"));
    }
    json_[to] = static_cast<std::int64_t>(number);
  }
  void number(const char* to, const char* from) {
    if (const double* const value = find(from)) json_[to] = *value;
  }
  void refuse_above_zero(const char* from, const char* what) {
    const double* const value = find(from);
    if (value == nullptr || *value == 0) return;
    fail(unsupported("'" + prefix_ + from + "' says that it has " + what));
  }
  // The scaling that GGUF says as config.json does, and that of Llama 3.1 and later, which
  // llama.cpp writes as divisors of the frequencies: as LongRoPE has them, for all lengths.
  void rope_scaling() {
    const auto divisors = file_.tensors.find(kRopeDivisors);
    const auto* const type = find_entry<std::string_view>(file_, prefix_ + "rope.scaling.type");
    const double* const factor = find("rope.scaling.factor");
    if (divisors != file_.tensors.end()) {
      const GgufTensor& tensor = divisors->second;
      if (tensor.type != GgufType::kF32 || tensor.shape.size() != 1) {
        return fail(corrupt("'rope_freqs.weight' is no list of F32"));
      }
      if (type != nullptr && *type != "none") {
        return fail(unsupported("it has 'rope_freqs.weight' and '" + prefix_ +
                                "rope.scaling.type'; kvlane reads one of them"));
      }
      std::vector<float> values(static_cast<std::size_t>(tensor.shape[0]));
      dequantise(tensor, 0, values.size(), values.data());
      json_["rope_scaling"] = {{"rope_type", "longrope"},
                               {"short_factor", values},
                               {"long_factor", values},
                               {"factor", 1},
                               {"attention_factor", 1}};
      return;
    }
    if (type == nullptr || *type == "none") return;
    if (*type != "linear" || factor == nullptr) {
      return fail(unsupported("'" + prefix_ + "rope.scaling.type' is " +
                              in_quotes(std::string(*type)) + "; kvlane reads none and linear"));
    }
    json_["rope_scaling"] = {{"rope_type", "linear"}, {"factor", *factor}};
  }
  void set(const char* to, Json value) { json_[to] = std::move(value); }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  Result<ModelConfig> parse() const {
    KVLANE_TRY(status_);
    return parse_model_config(json_.dump());
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
  Json json_ = Json::object();
  Status status_;
};

// An id that lies in the metadata; null when there is none.
Json token(const GgufFile& file, const char* name) {
  const double* const id = find_entry<double>(file, name);
  if (id == nullptr || !(*id >= 0 && *id < kVocabMax)) return {};
  return static_cast<std::int64_t>(*id);
}

// Ids that end an answer: of a text, and of a turn.
Json end_tokens(const GgufFile& file) {
  Json ids = Json::array();
  for (const char* const name : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    Json id = token(file, name);
    if (!id.is_null()) ids.push_back(std::move(id));
  }
  return ids;
}

Result<Architecture> find_architecture(const GgufFile& file) {
  const auto* const name = find_entry<std::string_view>(file, "general.architecture");
  if (name == nullptr) return corrupt("it has no 'general.architecture'");
  for (const Architecture& known : kArchitectures) {
    if (known.gguf == *name) return known;
  }
  return unsupported("'general.architecture' is " + in_quotes(std::string(*name)) +
                     "; kvlane reads llama, qwen2 and qwen3");
}

}  // namespace

Result<ModelConfig> gguf_config(const GgufFile& file) {
  KVLANE_ASSIGN(const Architecture architecture, find_architecture(file));
  const auto embedding = file.tensors.find(std::string_view("token_embd.weight"));
  if (embedding == file.tensors.end() || embedding->second.shape.size() != 2) {
    return corrupt("it has no table 'token_embd.weight'");
  }
  ConfigWriter writer(file, architecture.gguf);
  writer.set("architectures", Json::array({architecture.name}));
  writer.set("vocab_size", embedding->second.shape[0]);
  writer.set("tie_word_embeddings", !file.tensors.contains(std::string_view("output.weight")));
  const bool bias = file.tensors.contains(std::string_view("blk.0.attn_output.bias"));
  writer.set("attention_bias", bias);
  writer.set("mlp_bias", file.tensors.contains(std::string_view("blk.0.ffn_down.bias")));
  writer.integer("num_hidden_layers", "block_count");
  writer.integer("hidden_size", "embedding_length");
  writer.integer("intermediate_size", "feed_forward_length");
  writer.integer("max_position_embeddings", "context_length");
  writer.integer("num_attention_heads", "attention.head_count");
  const double* const heads = writer.find("attention.head_count");
  const double* const hidden = writer.find("embedding_length");
  writer.integer("num_key_value_heads", "attention.head_count_kv", heads ? *heads : 0);
  if (heads != nullptr && hidden != nullptr && *heads > 0) {
    writer.integer("head_dim", "attention.key_length", std::floor(*hidden / *heads));
    const double* const key = writer.find("attention.key_length");
    const double* const value = writer.find("attention.value_length");
    const double* const rotary = writer.find("rope.dimension_count");
    const double head_dim = key != nullptr ? *key : std::floor(*hidden / *heads);
    if ((value != nullptr && *value != head_dim) || (rotary != nullptr && *rotary != head_dim)) {
      writer.fail(unsupported("its heads have other lengths for values or rotation than for keys"));
    }
  }
  writer.number("rms_norm_eps", "attention.layer_norm_rms_epsilon");
  writer.number("rope_theta", "rope.freq_base");
  writer.rope_scaling();
  writer.refuse_above_zero("expert_count", "experts");
  writer.refuse_above_zero("attention.sliding_window", "a sliding window");
  writer.set("bos_token_id", token(file, "tokenizer.ggml.bos_token_id"));
  writer.set("eos_token_id", end_tokens(file));
  return writer.parse();
}

}  // namespace kvlane
