// Tables as safetensors.
// SPDX-License-Identifier: Apache-2.0
#include "calib/kv_tables_file.h"

#include <cstring>
#include <utility>

#include "base/file.h"
#include "crypto/sha256.h"

namespace kvlane {
namespace {

constexpr float kTablesVersion = 1;
constexpr const char* kVersionName = "kvlane.version";
constexpr const char* kModelName = "kvlane.model";
constexpr const char* kTokensName = "kvlane.tokens";

// Says what the file is; taken out of the tables.
Result<std::vector<float>> take(KvTables& tables, const char* name, std::size_t size) {
  const auto node = tables.values.extract(name);
  if (node.empty() || node.mapped().size() != size) {
    return corrupt("this is no file of KV tables: it has no '" + std::string(name) + "' of " +
                   std::to_string(size) + " values");
  }
  return node.mapped();
}

Result<KvTables> read_values(ByteView file) {
  if (file.size() > kKvTablesFileBytesMax) {
    return corrupt("it has " + std::to_string(file.size()) + " bytes, at most " +
                   std::to_string(kKvTablesFileBytesMax) + " are allowed");
  }
  KVLANE_ASSIGN(const auto tensors, parse_safetensors(file));
  KvTables tables;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.type != ElementType::kF32) return corrupt("table '" + name + "' is not of type F32");
    std::vector<float>& values = tables.values[name];
    values.resize(tensor.bytes.size() / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  }
  return tables;
}

}  // namespace

Bytes build_kv_tables(const KvTables& tables, const ModelIdentity& model, std::uint64_t tokens) {
  KvTables all = tables;
  all.values[kVersionName] = {kTablesVersion};
  all.values[kTokensName] = {static_cast<float>(tokens)};
  for (const std::byte byte : model) {
    all.values[kModelName].push_back(std::to_integer<std::uint8_t>(byte));
  }
  std::vector<TensorSpec> specs;
  for (const auto& [name, values] : all.values) {
    specs.push_back({name, ElementType::kF32, {static_cast<std::int64_t>(values.size())}});
  }
  Bytes file = build_safetensors_header(specs);
  for (const auto& [name, values] : all.values) {
    const ByteView bytes = std::as_bytes(std::span(values));
    file.insert(file.end(), bytes.begin(), bytes.end());
  }
  return file;
}

bool is_kv_tables(const std::map<std::string, TensorView>& tensors) {
  return tensors.contains(kVersionName);
}

Result<KvTablesFile> parse_kv_tables(ByteView file) {
  KvTablesFile found;
  KVLANE_ASSIGN(found.tables, read_values(file));
  KVLANE_ASSIGN(const auto version, take(found.tables, kVersionName, 1));
  if (version[0] != kTablesVersion) {
    return unsupported("version " + std::to_string(version[0]) +
                       " of files of KV tables is not known, 1 is");
  }
  KVLANE_ASSIGN(const auto bytes, take(found.tables, kModelName, found.model.size()));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (!(bytes[i] >= 0 && bytes[i] <= 255)) return corrupt("'kvlane.model' is no row of bytes");
    found.model[i] = static_cast<std::byte>(bytes[i]);
  }
  KVLANE_ASSIGN(const auto tokens, take(found.tables, kTokensName, 1));
  found.tokens = tokens[0];
  return found;
}

Result<KvTables> parse_kv_tables(ByteView file, const ModelIdentity& model) {
  KVLANE_ASSIGN(KvTablesFile found, parse_kv_tables(file));
  if (found.model != model) {
    return invalid_argument("the tables belong to another model: to " +
                            to_hex(found.model).substr(0, 16) + ", not to " +
                            to_hex(model).substr(0, 16));
  }
  return std::move(found.tables);
}

std::vector<std::filesystem::path> kv_tables_files(const std::filesystem::path& directory,
                                                   const std::string& file) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  if (std::filesystem::exists(directory / kZackTables, error)) {
    files.push_back(directory / kZackTables);
  }
  if (!file.empty()) files.emplace_back(file);
  return files;
}

Result<KvTables> load_kv_tables(std::span<const std::filesystem::path> files,
                                const ModelIdentity& model) {
  KvTables all;
  for (const std::filesystem::path& file : files) {
    KVLANE_ASSIGN(KvTables tables, load_kv_tables(file, model));
    all.values.merge(tables.values);
  }
  return all;
}

Result<KvTables> load_kv_tables(const std::filesystem::path& path, const ModelIdentity& model) {
  KVLANE_ASSIGN(const MappedFile file, MappedFile::open(path));
  auto tables = parse_kv_tables(file.bytes(), model);
  if (!tables.ok()) return tables.status().with_context(path.string());
  return tables;
}

}  // namespace kvlane
