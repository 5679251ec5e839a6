// Entries, and what several families share; rotation is in gguf_rope.cpp.
// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_config_writer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/config_fields.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;

// Above each limit of a dimension, and exact as a double.
constexpr double kWholeMax = INT32_MAX;

bool is_whole(double number) {
  return std::floor(number) == number && std::abs(number) <= kWholeMax;
}

}  // namespace

GgufConfigWriter::GgufConfigWriter(const GgufFile& file, std::string_view architecture)
    : file_(file),
      prefix_(std::string(architecture) + "."),
      json_(std::make_unique<Json>(Json::object())) {}

GgufConfigWriter::~GgufConfigWriter() = default;

template <class T>
const T* GgufConfigWriter::find(const std::string& name, const char* kind) {
  const auto at = file_.metadata.find(name);
  if (at == file_.metadata.end()) return nullptr;
  const T* const value = std::get_if<T>(&at->second);
  if (value == nullptr) fail(corrupt("'" + name + "' is no " + kind));
  return value;
}

std::optional<double> GgufConfigWriter::number(const char* name) {
  const double* const value = find<double>(prefix_ + name, "number");
  if (value == nullptr) return std::nullopt;
  if (!std::isfinite(*value)) {
    fail(corrupt(quoted(name) + " is not finite"));
    return std::nullopt;
  }
  return *value;
}

std::optional<std::string_view> GgufConfigWriter::text(const char* name) {
  const auto* const value = find<std::string_view>(prefix_ + name, "text");
  return value == nullptr ? std::nullopt : std::optional(*value);
}

bool GgufConfigWriter::has_tensor(std::string_view name) const {
  return file_.tensors.contains(name);
}

void GgufConfigWriter::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

std::string GgufConfigWriter::quoted(const char* name) const { return "'" + prefix_ + name + "'"; }

void GgufConfigWriter::copy_integer(const char* to, const char* from,
                                    std::optional<double> fallback) {
  const std::optional<double> value = number(from);
  if (!value && !fallback) return fail(corrupt("it has no " + quoted(from)));
  const double whole = value.value_or(fallback.value_or(0));
  if (!is_whole(whole)) return fail(corrupt(quoted(from) + " is no whole number, or too large"));
  set_integer(to, static_cast<std::int64_t>(whole));
}

void GgufConfigWriter::copy_number(const char* to, const char* from) {
  if (const std::optional<double> value = number(from)) (*json_)[to] = *value;
}

void GgufConfigWriter::refuse(const char* name, const char* what) {
  const std::optional<double> value = number(name);
  if (!value || *value == 0) return;
  fail(unsupported(quoted(name) + " says that it has " + what));
}

void GgufConfigWriter::refuse_features() {
  refuse("expert_count", "experts");
  refuse("attention.kv_lora_rank", "multi-head latent attention");
}

void GgufConfigWriter::set_architecture(std::string_view name) {
  (*json_)["architectures"] = Json::array({std::string(name)});
}
void GgufConfigWriter::set_flag(const char* to, bool value) { (*json_)[to] = value; }
void GgufConfigWriter::set_integer(const char* to, std::int64_t value) { (*json_)[to] = value; }
void GgufConfigWriter::set_rope_scaling(Json scaling) {
  (*json_)["rope_scaling"] = std::move(scaling);
}

void GgufConfigWriter::dimensions() {
  copy_integer("num_hidden_layers", "block_count");
  copy_integer("hidden_size", "embedding_length");
  copy_integer("max_position_embeddings", "context_length");
  copy_integer("num_attention_heads", "attention.head_count");
  refuse_features();
}

int GgufConfigWriter::head_length() {
  const double heads = number("attention.head_count").value_or(0);
  const double hidden = number("embedding_length").value_or(0);
  if (!(heads >= 1 && hidden >= 1)) return 0;  // an error of its own
  const double key = number("attention.key_length").value_or(std::floor(hidden / heads));
  const double value = number("attention.value_length").value_or(key);
  const double rotary = number("rope.dimension_count").value_or(key);
  if (!is_whole(key) || value != key || rotary != key) {
    fail(unsupported("its heads have other lengths for values or rotation than for keys"));
    return 0;
  }
  return static_cast<int>(key);
}

void GgufConfigWriter::llama_like() {
  dimensions();
  copy_integer("intermediate_size", "feed_forward_length");
  copy_integer("num_key_value_heads", "attention.head_count_kv", number("attention.head_count"));
  set_integer("head_dim", head_length());
  copy_number("rms_norm_eps", "attention.layer_norm_rms_epsilon");
  rope();
}

int GgufConfigWriter::layers() {
  const double blocks = number("block_count").value_or(0);
  return is_whole(blocks) ? static_cast<int>(blocks) : 0;
}

// The first layer with a window, of a list that says it for each, or of a period P: every P-th
// layer has none, but all have one where P is 0.
std::optional<int> GgufConfigWriter::first_windowed() {
  constexpr const char* kName = "attention.sliding_window_pattern";
  const auto at = file_.metadata.find(prefix_ + kName);
  if (at == file_.metadata.end()) return 0;
  if (const auto* const list = std::get_if<std::vector<double>>(&at->second)) {
    if (static_cast<double>(list->size()) != layers()) {
      fail(corrupt(quoted(kName) + " has " + std::to_string(list->size()) + " elements for " +
                   std::to_string(layers()) + " layers"));
      return std::nullopt;
    }
    const auto first = std::find_if(list->begin(), list->end(), [](double on) { return on != 0; });
    if (std::find(first, list->end(), 0.0) == list->end()) {
      return static_cast<int>(first - list->begin());
    }
  } else {
    const std::optional<double> period = number(kName);
    if (period == 0.0) return 0;
    if (period == 1.0) return layers();
  }
  fail(unsupported(quoted(kName) + " gives windows to layers that others follow without one"));
  return std::nullopt;
}

GgufConfigWriter::Window GgufConfigWriter::window() {
  constexpr const char* kName = "attention.sliding_window";
  const double tokens = number(kName).value_or(0);
  if (tokens == 0) return {};
  if (!is_whole(tokens) || tokens < 0) {
    fail(corrupt(quoted(kName) + " is no whole number, or too large"));
    return {};
  }
  const std::optional<int> first = first_windowed();
  if (!first || *first >= layers()) return {};
  return {static_cast<int>(tokens), *first};
}

int GgufConfigWriter::window_of_all() {
  const Window found = window();
  if (found.first_layer > 0) {
    fail(unsupported(quoted("attention.sliding_window_pattern") +
                     " gives a window to some layers, where this architecture has it in all"));
  }
  return found.tokens;
}

void GgufConfigWriter::add_end_id(double id) {
  Json& ids = (*json_)["eos_token_id"];
  if (ids.is_null()) ids = Json::array();
  if (!(id >= 0 && id < kVocabMax)) return;
  const auto whole = static_cast<std::int64_t>(id);
  if (std::find(ids.begin(), ids.end(), whole) == ids.end()) ids.push_back(whole);
}

void GgufConfigWriter::add_end(const char* entry) {
  const double* const id = find<double>(entry, "number");
  add_end_id(id != nullptr ? *id : -1);
}

void GgufConfigWriter::add_end_token(std::string_view token) {
  const auto* const tokens = find_entry<std::vector<std::string_view>>(file_, kGgufTokens);
  if (tokens == nullptr) return;
  const auto found = std::find(tokens->begin(), tokens->end(), token);
  if (found != tokens->end()) add_end_id(static_cast<double>(found - tokens->begin()));
}

void GgufConfigWriter::set_token(const char* to, const char* entry) {
  const double* const id = find<double>(entry, "number");
  const bool there = id != nullptr && *id >= 0 && *id < kVocabMax;
  (*json_)[to] = there ? Json(static_cast<std::int64_t>(*id)) : Json();
}

Result<ModelConfig> GgufConfigWriter::parse() const {
  KVLANE_TRY(status_);
  return parse_model_config(json_->dump());
}

}  // namespace kvlane
