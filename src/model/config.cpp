// Reading config.json: the family says how.
// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "model/config_fields.h"
#include "model/family.h"
#include "model/json_depth.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;

Result<Json> parse_object(std::string_view text) {
  if (json_depth(text) > kJsonDepthMax) {
    return invalid_argument("it nests deeper than " + std::to_string(kJsonDepthMax) + " levels");
  }
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return invalid_argument("it is not valid JSON");
  if (!json.is_object()) return invalid_argument("it is not a JSON object");
  return json;
}

// What a configuration has that no family here computes.
Status refuse_by_feature(const Json& json) {
  const auto has = [&](const char* name) { return !json.value(name, Json()).is_null(); };
  for (const char* const experts : {"num_local_experts", "num_experts", "n_routed_experts",
                                    "moe_num_experts", "moe_intermediate_size"}) {
    if (has(experts)) {
      return unsupported(std::string("it is a mixture of experts (") + experts +
                         "); kvlane computes dense models");
    }
  }
  if (has("kv_lora_rank")) {
    return unsupported(
        "it has multi-head latent attention (kv_lora_rank); kvlane has caches of K "
        "and V");
  }
  if (json.value("is_encoder_decoder", Json()) == true ||
      json.value("add_cross_attention", Json()) == true || has("cross_attention_layers")) {
    return unsupported("it has cross attention; kvlane computes decoders alone");
  }
  for (const char* const part : {"text_config", "ffn_config"}) {
    if (json.value(part, Json()).is_object()) KVLANE_TRY(refuse_by_feature(json[part]));
  }
  return {};
}

Result<const Family*> find_family(const Json& json) {
  const auto list = json.find("architectures");
  const bool named =
      list != json.end() && list->is_array() && !list->empty() && list->front().is_string();
  const std::string architecture = named ? list->front().get<std::string>() : "";
  // Base configurations carry a model_type only.
  const auto type = json.find("model_type");
  for (const Family* const family : families()) {
    const bool is_it =
        named ? architecture == family->architecture
              : type != json.end() && type->is_string() && *type == std::string(family->model_type);
    if (is_it) return family;
  }
  KVLANE_TRY(refuse_by_feature(json));
  if (!named) return unsupported("it names no architecture that kvlane knows");
  std::string known;
  for (const Family* const family : families()) {
    known += std::string(known.empty() ? "" : ", ") + std::string(family->architecture);
  }
  return unsupported("its architecture is " + in_quotes(architecture) + "; kvlane knows " + known);
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
Status read_special_tokens(const Json& json, const Family& family, ModelConfig& config) {
  const Json bos = json.value("bos_token_id", family.bos < 0 ? Json() : Json(family.bos));
  const Json eos = json.value("eos_token_id", family.eos < 0 ? Json() : Json(family.eos));
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
  KVLANE_ASSIGN(const Family* const family, find_family(json));
  KVLANE_TRY(refuse_by_feature(json));
  ModelConfig config;
  config.architecture = family->architecture;
  FieldReader fields(json);
  family->read(fields, config);
  check_layer_types(fields, config);
  read_type(fields, config);
  KVLANE_TRY(fields.status());
  KVLANE_TRY(read_special_tokens(json, *family, config));
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
