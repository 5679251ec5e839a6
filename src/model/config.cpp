// Reading config.json: field by field, with transformers' defaults, refusing what would change
// results. SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "model/json_depth.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;

// Reads fields of one JSON object. The first error sticks: check status() once, after the last
// field. An absent field and a null are the same.
class FieldReader {
 public:
  // `object` must outlive the reader; `prefix` goes before names in errors ("rope_scaling.").
  explicit FieldReader(const Json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  const Status& status() const { return status_; }

  // Keeps `status` unless there is an error already; success changes nothing.
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  // The field, or nullptr.
  const Json* find(const char* name) const {
    const auto at = object_.find(name);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }

  int integer(const char* name, int min, int max, std::optional<int> fallback = std::nullopt) {
    const Json* field = find(name);
    if (field == nullptr) return absent(name, fallback, min);
    if (!field->is_number_integer()) return wrong_kind(name, "a whole number", min);
    // A float can be a whole number too big for 64 bits; an unsigned one can wrap when read as
    // signed.
    const double value = field->get<double>();
    if (value < min || value > max) {
      fail(invalid_argument(prefix_ + name + " is " + field->dump() + "; kvlane takes " +
                            std::to_string(min) + " to " + std::to_string(max)));
      return min;
    }
    return field->get<int>();
  }

  // A finite number above zero.
  double positive(const char* name, std::optional<double> fallback = std::nullopt) {
    const Json* field = find(name);
    if (field == nullptr) return absent(name, fallback, 1.0);
    if (!field->is_number()) return wrong_kind(name, "a number", 1.0);
    const double value = field->get<double>();
    if (!std::isfinite(value) || value <= 0) {
      fail(invalid_argument(prefix_ + name + " is " + field->dump() + ", which is not above zero"));
      return 1.0;
    }
    return value;
  }

  bool flag(const char* name, bool fallback) {
    const Json* field = find(name);
    if (field == nullptr) return fallback;
    if (!field->is_boolean()) return wrong_kind(name, "true or false", fallback);
    return field->get<bool>();
  }

  std::string text(const char* name, const char* fallback) {
    const Json* field = find(name);
    if (field == nullptr) return fallback;
    if (!field->is_string()) return wrong_kind(name, "a string", std::string(fallback));
    return field->get<std::string>();
  }

 private:
  template <class T>
  T absent(const char* name, const std::optional<T>& fallback, T otherwise) {
    if (!fallback) fail(invalid_argument("it has no " + prefix_ + name));
    return fallback.value_or(otherwise);
  }

  template <class T>
  T wrong_kind(const char* name, const char* wanted, T otherwise) {
    fail(invalid_argument(prefix_ + name + " is not " + wanted));
    return otherwise;
  }

  const Json& object_;
  std::string prefix_;
  Status status_;
};

// What the families differ in when config.json is silent.
struct FamilyDefaults {
  int context;
  int head_dim;  // 0: hidden / heads
  std::int32_t bos;
  std::int32_t eos;
};
constexpr FamilyDefaults kLlamaDefaults{2048, 0, 1, 2};
constexpr FamilyDefaults kQwen3Defaults{32768, 128, -1, -1};

// Text from the file, for errors. Long text is only measured: cutting it could split a character.
std::string in_quotes(const std::string& text) {
  constexpr std::size_t kShown = 64;
  return text.size() > kShown ? "a text of " + std::to_string(text.size()) + " bytes"
                              : "\"" + text + "\"";
}

Result<Json> parse_object(std::string_view text) {
  if (json_depth(text) > kJsonDepthMax) {
    return invalid_argument("it nests deeper than " + std::to_string(kJsonDepthMax) + " levels");
  }
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return invalid_argument("it is not valid JSON");
  if (!json.is_object()) return invalid_argument("it is not a JSON object");
  return json;
}

Result<std::string> read_architecture(const Json& json) {
  const auto list = json.find("architectures");
  if (list != json.end() && list->is_array() && !list->empty() && list->front().is_string()) {
    return list->front().get<std::string>();
  }
  // Base configurations carry a model_type only.
  const auto family = json.find("model_type");
  if (family != json.end() && *family == "llama") return std::string("LlamaForCausalLM");
  if (family != json.end() && *family == "qwen3") return std::string("Qwen3ForCausalLM");
  return unsupported("it names no architecture that kvlane knows");
}

void read_dimensions(FieldReader& fields, const FamilyDefaults& defaults, ModelConfig& config) {
  config.layers = fields.integer("num_hidden_layers", 1, kLayersMax);
  config.hidden = fields.integer("hidden_size", 1, kHiddenMax);
  config.heads = fields.integer("num_attention_heads", 1, kHeadsMax);
  config.kv_heads = fields.integer("num_key_value_heads", 1, kHeadsMax, config.heads);
  config.head_dim =
      fields.integer("head_dim", 2, kHeadDimMax,
                     defaults.head_dim != 0 ? defaults.head_dim : config.hidden / config.heads);
  config.ffn = fields.integer("intermediate_size", 1, kFfnMax);
  config.vocab = fields.integer("vocab_size", 1, kVocabMax);
  config.context = fields.integer("max_position_embeddings", 1, kContextMax, defaults.context);
  config.norm_eps = static_cast<float>(fields.positive("rms_norm_eps", 1e-6));
  config.tied_embeddings = fields.flag("tie_word_embeddings", false);

  if (config.heads % config.kv_heads != 0) {
    fields.fail(invalid_argument("num_attention_heads " + std::to_string(config.heads) +
                                 " is not a multiple of num_key_value_heads " +
                                 std::to_string(config.kv_heads)));
  }
  // The default head_dim has not passed the range check of a field.
  if (config.head_dim < 2 || config.head_dim > kHeadDimMax || config.head_dim % 2 != 0) {
    fields.fail(invalid_argument("head_dim is " + std::to_string(config.head_dim) +
                                 ", which is not an even number from 2 to " +
                                 std::to_string(kHeadDimMax)));
  }
}

void refuse_features(FieldReader& fields, bool qwen3, const ModelConfig& config) {
  for (const char* bias : {"attention_bias", "mlp_bias"}) {
    if (fields.flag(bias, false)) {
      fields.fail(unsupported(std::string(bias) + " is true; kvlane has no biases"));
    }
  }
  if (const std::string act = fields.text("hidden_act", "silu"); act != "silu") {
    fields.fail(unsupported("hidden_act is " + in_quotes(act) + "; kvlane computes silu"));
  }
  if (fields.find("quantization_config") != nullptr) {
    fields.fail(
        unsupported("it has a quantization_config; kvlane reads F32, BF16 and F16 weights"));
  }
  // Llama itself has no window: a configuration that names one is another model in its clothes.
  const int window = fields.integer("sliding_window", 0, INT32_MAX, INT32_MAX);
  const int first_windowed = fields.integer("max_window_layers", 0, INT32_MAX, qwen3 ? 28 : 0);
  if (fields.flag("use_sliding_window", !qwen3) && window < config.context &&
      first_windowed < config.layers) {
    fields.fail(unsupported("sliding_window " + std::to_string(window) +
                            " is in use; kvlane attends to the whole context"));
  }
  if (const Json* types = fields.find("layer_types")) {
    for (const Json& type : *types) {
      if (type != "full_attention") {
        fields.fail(
            unsupported("layer_types has " +
                        (type.is_string() ? in_quotes(type.get<std::string>()) : "no text") +
                        "; kvlane computes full_attention"));
      }
    }
  }
}

// Old files have rope_theta and rope_scaling side by side, those of transformers 5 have
// rope_parameters with both inside. As there, a rope_scaling that says something wins.
void read_rope(FieldReader& fields, ModelConfig& config) {
  config.rope_theta = fields.positive("rope_theta", 10000.0);
  if (fields.positive("partial_rotary_factor", 1.0) != 1.0) {
    fields.fail(unsupported("partial_rotary_factor is not 1"));
  }
  const char* name = "rope_scaling";
  const Json* rope = fields.find(name);
  if (rope == nullptr || rope->empty()) rope = fields.find(name = "rope_parameters");
  if (rope == nullptr) return;
  if (!rope->is_object()) return fields.fail(invalid_argument(std::string(name) + " is no object"));

  FieldReader inner(*rope, std::string(name) + ".");
  config.rope_theta = inner.positive("rope_theta", config.rope_theta);
  if (inner.positive("partial_rotary_factor", 1.0) != 1.0) {
    inner.fail(unsupported(std::string(name) + ".partial_rotary_factor is not 1"));
  }
  const std::string type = inner.text("rope_type", inner.text("type", "default").c_str());
  if (type == "llama3") {
    RopeScaling& scaling = config.rope_scaling;
    scaling.kind = RopeScaling::Kind::kLlama3;
    scaling.factor = inner.positive("factor");
    scaling.low_freq_factor = inner.positive("low_freq_factor");
    scaling.high_freq_factor = inner.positive("high_freq_factor");
    scaling.original_max_position =
        inner.integer("original_max_position_embeddings", 1, kContextMax, config.context);
    // Between the two lies the smooth part; its formula divides by their difference.
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      inner.fail(
          invalid_argument(std::string(name) + ".high_freq_factor is not above low_freq_factor"));
    }
  } else if (type != "default") {
    inner.fail(unsupported(std::string(name) + " has the type " + in_quotes(type) +
                           "; kvlane knows default and llama3"));
  }
  fields.fail(inner.status());
}

// Transformers 5 writes "dtype", its predecessors "torch_dtype".
void read_type(FieldReader& fields, ModelConfig& config) {
  const std::string name = fields.text("dtype", fields.text("torch_dtype", "bfloat16").c_str());
  if (name == "bfloat16") {
    config.type = ElementType::kBf16;
  } else if (name == "float16") {
    config.type = ElementType::kFp16;
  } else if (name == "float32") {
    config.type = ElementType::kF32;
  } else {
    fields.fail(unsupported("its dtype is " + in_quotes(name) +
                            "; kvlane reads bfloat16, float16 and float32"));
  }
}

Result<std::int32_t> token_id(const Json& json, const char* name, const ModelConfig& config) {
  if (!json.is_number_integer()) {
    return invalid_argument(std::string(name) + " is not a token id");
  }
  const double id = json.get<double>();
  if (id < 0 || id >= config.vocab) {
    return invalid_argument(std::string(name) + " " + json.dump() +
                            " lies outside the vocabulary of " + std::to_string(config.vocab));
  }
  return json.get<std::int32_t>();
}

// One id or a list of them.
Result<std::vector<std::int32_t>> read_eos(const Json& json, const ModelConfig& config) {
  constexpr const char* kName = "eos_token_id";
  if (json.is_array() && json.size() > kEosMax) {
    return invalid_argument("eos_token_id has " + std::to_string(json.size()) +
                            " ids, more than the limit of " + std::to_string(kEosMax));
  }
  std::vector<std::int32_t> ids;
  if (!json.is_array()) {
    KVLANE_ASSIGN(const std::int32_t id, token_id(json, kName, config));
    ids.push_back(id);
    return ids;
  }
  for (const Json& element : json) {
    KVLANE_ASSIGN(const std::int32_t id, token_id(element, kName, config));
    ids.push_back(id);
  }
  return ids;
}

// Here an absent field means the family's default, but null means none.
Status read_special_tokens(const Json& json, const FamilyDefaults& defaults, ModelConfig& config) {
  const Json bos = json.value("bos_token_id", defaults.bos < 0 ? Json() : Json(defaults.bos));
  const Json eos = json.value("eos_token_id", defaults.eos < 0 ? Json() : Json(defaults.eos));
  if (!bos.is_null()) {
    KVLANE_ASSIGN(config.bos, token_id(bos, "bos_token_id", config));
  }
  if (!eos.is_null()) {
    KVLANE_ASSIGN(config.eos, read_eos(eos, config));
  }
  return {};
}

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view config_json) {
  KVLANE_ASSIGN(const Json json, parse_object(config_json));
  ModelConfig config;
  KVLANE_ASSIGN(config.architecture, read_architecture(json));
  const bool qwen3 = config.architecture == "Qwen3ForCausalLM";
  if (!qwen3 && config.architecture != "LlamaForCausalLM") {
    return unsupported("its architecture is " + in_quotes(config.architecture) +
                       "; kvlane knows LlamaForCausalLM and Qwen3ForCausalLM");
  }
  config.qk_norm = qwen3;
  const FamilyDefaults& defaults = qwen3 ? kQwen3Defaults : kLlamaDefaults;

  FieldReader fields(json);
  read_dimensions(fields, defaults, config);
  read_rope(fields, config);
  read_type(fields, config);
  refuse_features(fields, qwen3, config);
  KVLANE_TRY(fields.status());
  KVLANE_TRY(read_special_tokens(json, defaults, config));
  return config;
}

Status apply_generation_config(std::string_view generation_config_json, ModelConfig& config) {
  KVLANE_ASSIGN(const Json json, parse_object(generation_config_json));
  const auto eos = json.find("eos_token_id");
  if (eos == json.end() || eos->is_null()) return {};
  KVLANE_ASSIGN(config.eos, read_eos(*eos, config));
  return {};
}

}  // namespace kvlane
