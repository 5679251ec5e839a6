// A checkpoint as one JSON object.
// SPDX-License-Identifier: Apache-2.0
#include "model/describe.h"

#include <nlohmann/json.hpp>

#include "crypto/sha256.h"
#include "model/checkpoint.h"
#include "model/layout.h"

namespace kvlane {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson describe_rope(const ModelConfig& config) {
  OrderedJson rope = {{"theta", config.rope_theta}, {"type", "default"}};
  const RopeScaling& scaling = config.rope_scaling;
  using Kind = RopeScaling::Kind;
  if (scaling.kind == Kind::kNone) return rope;
  rope["factor"] = scaling.factor;
  if (scaling.kind != Kind::kLinear) {
    rope["original_max_position"] = scaling.original_max_position;
  }
  switch (scaling.kind) {
    case Kind::kLinear: rope["type"] = "linear"; break;
    case Kind::kLlama3:
      rope["type"] = "llama3";
      rope["low_freq_factor"] = scaling.low_freq_factor;
      rope["high_freq_factor"] = scaling.high_freq_factor;
      break;
    case Kind::kYarn:
      rope["type"] = "yarn";
      rope["attention_factor"] = scaling.attention_factor;
      break;
    default: rope["type"] = "longrope"; rope["attention_factor"] = scaling.attention_factor;
  }
  return rope;
}

const char* activation_name(Activation activation) {
  switch (activation) {
    case Activation::kRelu: return "relu";
    case Activation::kGelu: return "gelu";
    default: return "swiglu";
  }
}

OrderedJson describe_config(const ModelConfig& config) {
  return {
      {"architecture", config.architecture},
      {"dtype", element_name(config.type)},
      {"layers", config.layers},
      {"hidden", config.hidden},
      {"heads", config.heads},
      {"kv_heads", config.kv_heads},
      {"head_dim", config.head_dim},
      {"ffn", config.ffn},
      {"vocab", config.vocab},
      {"context", config.context},
      {"norm_eps", config.norm_eps},
      {"norm", config.norm == NormKind::kLayer ? "layer" : "rms"},
      {"activation", activation_name(config.activation)},
      {"biases", config.qkv_bias || config.attention_out_bias || config.ffn_bias},
      {"parallel", config.parallel},
      {"window", config.window > 0 ? OrderedJson(config.window) : OrderedJson()},
      {"positions", config.learned_positions > 0 ? "learned" : "rotary"},
      {"rope", config.learned_positions > 0 ? OrderedJson() : describe_rope(config)},
      {"qk_norm", config.qk_norm},
      {"tied_embeddings", config.tied_embeddings},
      {"bos", config.bos < 0 ? OrderedJson() : OrderedJson(config.bos)},
      {"eos", config.eos},
  };
}

}  // namespace

Result<std::string> describe_checkpoint_json(
    const std::filesystem::path& directory,
    const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  KVLANE_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(directory));
  const ModelConfig& config = checkpoint.config();
  std::uint64_t parameters = 0;
  std::uint64_t weight_bytes = 0;
  for (const TensorSpec& spec : model_tensors(config)) {
    parameters += spec.elements();
    weight_bytes += checkpoint.tensors().at(spec.name).bytes.size();
  }
  OrderedJson shards = OrderedJson::array();
  for (const Checkpoint::Shard& shard : checkpoint.shards()) {
    shards.push_back({{"file", shard.name}, {"bytes", shard.file.bytes().size()}});
  }
  KVLANE_ASSIGN(const ModelIdentity identity, checkpoint.identity(progress));

  OrderedJson json = {{"kind", "checkpoint"}, {"directory", directory.string()}};
  json.update(describe_config(config));
  json["parameters"] = parameters;
  json["weight_bytes"] = weight_bytes;
  json["shards"] = shards;
  json["kv_bytes_per_token"] = config.kv_shape().block_bytes() / kBlockTokens;
  json["identity"] = to_hex(identity);
  // A directory's name need not be UTF-8.
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace kvlane
