// Tables of KV formats in a file: spec/kv_tables.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "format/shape.h"
#include "kvlane/status.h"
#include "model/safetensors.h"
#include "quant/kv_tables.h"

namespace kvlane {

// A longer file is refused: ten times what the largest public models would need.
inline constexpr std::size_t kKvTablesFileBytesMax = std::size_t{1} << 30;

// tokens: of the text that the tables come from.
Bytes build_kv_tables(const KvTables& tables, const ModelIdentity& model, std::uint64_t tokens);

// Tables, and whose they are.
struct KvTablesFile {
  KvTables tables;
  ModelIdentity model;
  float tokens = 0;  // of the text that the tables come from, as the file says: for people
};

// Whether a safetensors file with these tensors says that it is one of tables.
bool is_kv_tables(const std::map<std::string, TensorView>& tensors);

// Untrusted bytes. kCorrupt when they are no file of tables, kUnsupported for another version.
Result<KvTablesFile> parse_kv_tables(ByteView file);

// The same for one model: kInvalidArgument when they belong to another.
Result<KvTables> parse_kv_tables(ByteView file, const ModelIdentity& model);

// Where the directory of a model that `kvlane calibrate zack` made has its tables (spec/zack.md).
inline constexpr const char* kZackTables = "kvlane/zack.safetensors";

// The files of tables that formats of the model in `directory` read: its own, if it has some, and
// `file`, unless that is empty.
std::vector<std::filesystem::path> kv_tables_files(const std::filesystem::path& directory,
                                                   const std::string& file);

// All tables of these files; empty without any.
Result<KvTables> load_kv_tables(std::span<const std::filesystem::path> files,
                                const ModelIdentity& model);

// The same for a file, whose name errors say.
Result<KvTables> load_kv_tables(const std::filesystem::path& path, const ModelIdentity& model);

}  // namespace kvlane
