// Opening a checkpoint directory: configuration, shards, and all checks that need no weights.
// SPDX-License-Identifier: Apache-2.0
#include "model/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "model/gguf.h"
#include "model/gguf_config.h"
#include "model/gguf_file.h"
#include "model/gguf_tensors.h"
#include "model/json_depth.h"
#include "model/layout.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kConfigName = "config.json";
constexpr const char* kGenerationConfigName = "generation_config.json";
constexpr const char* kWeightsName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

// Real configurations have a few KB; an index has some 100 bytes per tensor.
constexpr std::size_t kConfigBytesMax = std::size_t{1} << 20;
constexpr std::size_t kIndexBytesMax = std::size_t{16} << 20;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

Result<ModelConfig> read_model_config(const fs::path& directory) {
  const fs::path path = directory / kConfigName;
  KVLANE_ASSIGN(const std::string text, read_text_file(path, kConfigBytesMax));
  Result<ModelConfig> config = parse_model_config(text);
  if (!config.ok()) return config.status().with_context(path.string());

  const fs::path generation_path = directory / kGenerationConfigName;
  if (!is_there(generation_path)) return config;
  KVLANE_ASSIGN(const std::string generation, read_text_file(generation_path, kConfigBytesMax));
  KVLANE_TRY(apply_generation_config(generation, *config).with_context(generation_path.string()));
  return config;
}

// Which file of the directory holds each tensor, as the index of a sharded checkpoint says.
using WeightMap = std::map<std::string, std::string>;

// Only plain names: an index must not reach outside its directory.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name.front() != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

Result<WeightMap> parse_index(const std::string& text) {
  if (json_depth(text) > kJsonDepthMax) {
    return corrupt("it nests deeper than " + std::to_string(kJsonDepthMax) + " levels");
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return corrupt("it is not valid JSON");
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (map == json.end() || !map->is_object()) return corrupt("it has no weight_map object");
  WeightMap weights;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      return corrupt("weight_map gives tensor \"" + tensor + "\" no plain file name");
    }
    weights.emplace(tensor, file.get<std::string>());
  }
  return weights;
}

// What names of layers begin with, up to the number: "model.layers.".
std::string layers_prefix(const ModelLayout& layout) {
  const std::string& first = layout.layers[0].attention_norm.weight;
  return first.substr(0, first.find(".0.") + 1);
}

// The number behind the prefix; -1 for other names.
int layer_of(const std::string& name, const std::string& prefix) {
  if (!name.starts_with(prefix)) return -1;
  int layer = -1;
  std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
  return layer;
}

std::string module_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

}  // namespace

Result<Checkpoint> Checkpoint::open(const fs::path& directory) {
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  KVLANE_ASSIGN(const std::vector<fs::path> gguf, find_gguf(directory));
  std::error_code error;
  if (!gguf.empty()) {
    checkpoint.directory_ = gguf[0].has_parent_path() ? gguf[0].parent_path() : fs::path(".");
    KVLANE_TRY(checkpoint.open_gguf(gguf));
  } else if (!fs::is_directory(directory, error)) {
    const bool file = directory.extension() == ".gguf";
    return not_found(std::string("there is no ") + (file ? "file " : "directory ") +
                     directory.string());
  } else {
    KVLANE_ASSIGN(checkpoint.config_, read_model_config(directory));
    KVLANE_TRY(checkpoint.map_shards());
  }
  KVLANE_TRY(checkpoint.check_tensors());
  return checkpoint;
}

Status Checkpoint::open_gguf(const std::vector<fs::path>& paths) {
  std::vector<GgufFile> parts;
  for (const fs::path& path : paths) {
    KVLANE_ASSIGN(MappedFile mapped, MappedFile::open(path));
    Result<GgufFile> part = parse_gguf(mapped.bytes());
    if (!part.ok()) return part.status().with_context(path.string());
    parts.push_back(std::move(*part));
    shards_.push_back({path.filename().string(), std::move(mapped)});
  }
  return take_gguf(std::move(parts)).with_context(paths.front().string());
}

Status Checkpoint::take_gguf(std::vector<GgufFile> parts) {
  KVLANE_ASSIGN(const GgufFile file, join_gguf(std::move(parts)));
  KVLANE_ASSIGN(config_, gguf_config(file));
  KVLANE_ASSIGN(GgufTensors tensors, gguf_tensors(file, config_));
  tensors_ = std::move(tensors.views);
  converted_ = std::move(tensors.converted);
  return {};
}

// Like transformers, prefers the single file when both kinds are there.
Status Checkpoint::map_shards() {
  if (is_there(directory_ / kWeightsName)) return map_shard(kWeightsName, nullptr);
  const fs::path index_path = directory_ / kIndexName;
  if (!is_there(index_path)) {
    return not_found(directory_.string() + " has neither " + kWeightsName + " nor " + kIndexName);
  }
  KVLANE_ASSIGN(const std::string text, read_text_file(index_path, kIndexBytesMax));
  const Result<WeightMap> weights = parse_index(text);
  if (!weights.ok()) return weights.status().with_context(index_path.string());

  std::map<std::string, std::vector<std::string>> tensors_of;
  for (const auto& [tensor, file] : *weights) tensors_of[file].push_back(tensor);
  if (tensors_of.size() > kShardsMax) {
    return invalid_argument(index_path.string() + " names " + std::to_string(tensors_of.size()) +
                            " files, more than the limit of " + std::to_string(kShardsMax));
  }
  for (const auto& [file, tensors] : tensors_of) KVLANE_TRY(map_shard(file, &tensors));
  return {};
}

Status Checkpoint::map_shard(const std::string& name, const std::vector<std::string>* wanted) {
  const std::string path = (directory_ / name).string();
  KVLANE_ASSIGN(MappedFile file, MappedFile::open(path));
  auto found = parse_safetensors(file.bytes());
  if (!found.ok()) return found.status().with_context(path);
  if (wanted == nullptr) {
    tensors_ = std::move(*found);
  } else {
    for (const std::string& tensor : *wanted) {
      const auto at = found->find(tensor);
      if (at == found->end()) {
        return corrupt(path + " lacks tensor \"" + tensor + "\", which " + kIndexName +
                       " says it holds");
      }
      tensors_.insert(found->extract(at));
    }
  }
  shards_.push_back({name, std::move(file)});
  return {};
}

Status Checkpoint::check_tensors() {
  std::set<std::string> known, modules;
  const ModelLayout layout = model_layout(config_);
  const std::string prefix = layers_prefix(layout);
  for (const TensorSpec& spec : model_tensors(config_)) {
    if (spec.name == layout.head && !config_.tied_embeddings && !tensors_.contains(spec.name)) {
      return corrupt(directory_.string() + " has no tensor \"" + spec.name +
                     "\", but tie_word_embeddings of config.json is false");
    }
    KVLANE_ASSIGN(const TensorView found, tensor(spec.name, spec.shape));
    known.insert(spec.name);
    modules.insert(module_of(spec.name));
  }
  for (const auto& [name, view] : tensors_) {
    // Old Llama checkpoints store the rotary frequencies, which follow from the configuration.
    if (known.contains(name) || name.find(".rotary_emb.inv_freq") != std::string::npos) continue;
    // A bias or a scale of what is computed here would silently be left out. Others may stay:
    // layers beyond num_hidden_layers, an output projection that is tied anyway.
    const int layer = layer_of(name, prefix);
    if (modules.contains(module_of(name)) || (layer >= 0 && layer < config_.layers)) {
      return unsupported(file_of(view) + " has tensor \"" + name +
                         "\", which kvlane does not know in a " + config_.architecture);
    }
  }
  config_.type = tensors_.at(layout.embedding).type;
  return {};
}

const Checkpoint::Shard* Checkpoint::shard_of(const TensorView& tensor) const {
  const auto shard = std::find_if(shards_.begin(), shards_.end(), [&](const Shard& candidate) {
    const ByteView bytes = candidate.file.bytes();
    return tensor.bytes.data() >= bytes.data() &&
           tensor.bytes.data() <= bytes.data() + bytes.size();
  });
  return shard == shards_.end() ? nullptr : &*shard;
}

std::string Checkpoint::file_of(const TensorView& tensor) const {
  const Shard* const shard = shard_of(tensor);
  return (directory_ / (shard != nullptr ? shard->name : shards_[0].name)).string();
}

Result<TensorView> Checkpoint::tensor(const std::string& name,
                                      const std::vector<std::int64_t>& shape) const {
  const auto at = tensors_.find(name);
  if (at == tensors_.end()) {
    return corrupt(directory_.string() + " has no tensor \"" + name + "\"");
  }
  if (at->second.shape != shape) {
    return corrupt(file_of(at->second) + ": tensor \"" + name + "\" has the shape " +
                   shape_text(at->second.shape) + " where config.json asks for " +
                   shape_text(shape));
  }
  return at->second;
}

void Checkpoint::release(const TensorView& tensor) const {
  if (const Shard* const shard = shard_of(tensor)) shard->file.release(tensor.bytes);
}

}  // namespace kvlane
