// A safetensors file as JSON.
// SPDX-License-Identifier: Apache-2.0
#include "calib/describe_safetensors.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>

#include "calib/kv_tables_file.h"
#include "crypto/sha256.h"
#include "model/safetensors.h"

namespace kvlane {
namespace {

using Json = nlohmann::ordered_json;

// Null where it is none.
Json whole_number(float value) {
  constexpr float kMax = 1e18F;
  if (!(value >= 0 && value <= kMax)) return nullptr;
  return static_cast<std::uint64_t>(value);
}

// "kvquant" of "kvquant.layers.3.k.lower".
std::set<std::string> formats_of(const KvTables& tables) {
  std::set<std::string> formats;
  for (const auto& [name, values] : tables.values) {
    const auto end = name.find(".layers.");
    if (end != std::string::npos) formats.insert(name.substr(0, end));
  }
  return formats;
}

}  // namespace

Result<std::string> describe_safetensors_json(ByteView file) {
  KVLANE_ASSIGN(const auto tensors, parse_safetensors(file));
  Json description = {{"kind", "safetensors"}};
  if (is_kv_tables(tensors)) {
    KVLANE_ASSIGN(const KvTablesFile found, parse_kv_tables(file));
    description = {{"kind", "kv_tables"},
                   {"model_identity", to_hex(found.model)},
                   {"tokens", whole_number(found.tokens)},
                   {"formats", formats_of(found.tables)}};
  }
  Json list = Json::array();
  std::uint64_t values = 0;
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    values += tensor.bytes.size() / element_bytes(tensor.type);
    bytes += tensor.bytes.size();
    list.push_back({{"name", name},
                    {"dtype", safetensors_type_name(tensor.type)},
                    {"shape", tensor.shape},
                    {"bytes", tensor.bytes.size()}});
  }
  description.update({{"values", values}, {"bytes", bytes}, {"tensors", std::move(list)}});
  return description.dump(2);
}

}  // namespace kvlane
