// Looks tables up and checks what every format asks of them.
// SPDX-License-Identifier: Apache-2.0
#include "quant/table_lookup.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "format/checksum.h"

namespace kvlane {

std::string table_prefix(std::string_view format, int layer, bool is_key) {
  return std::string(format) + ".layers." + std::to_string(layer) + (is_key ? ".k." : ".v.");
}

Result<std::span<const float>> find_table(const KvTables* tables, std::string_view format,
                                          const std::string& name, std::size_t size) {
  const std::string quoted = "KV format '" + std::string(format) + "'";
  const bool behind_zack = format.find('+') != std::string_view::npos;
  const std::string how =
      format == "zack"
          ? "kvlane calibrate zack DIR --text FILE --out OUT, then OUT in the model's place"
          : "kvlane calibrate tables DIR --text FILE " +
                (behind_zack ? "--for " + std::string(format) + " " : std::string()) +
                "--out FILE, then --kv-tables FILE";
  if (tables == nullptr || tables->values.empty()) {
    return invalid_argument(quoted + " needs tables: " + how);
  }
  const auto at = tables->values.find(name);
  if (at == tables->values.end()) {
    return invalid_argument(quoted + ": the tables have no '" + name +
                            "'; to make them again: " + how);
  }
  if (at->second.size() != size) {
    return invalid_argument(quoted + ": table '" + name + "' has " +
                            std::to_string(at->second.size()) + " values where this model needs " +
                            std::to_string(size));
  }
  if (!std::ranges::all_of(at->second, [](float value) { return std::isfinite(value); })) {
    return invalid_argument(quoted + ": table '" + name + "' has a value that is not finite");
  }
  return std::span<const float>(at->second);
}

std::uint64_t tables_id(const KvTables& tables, std::string_view format) {
  return tables_id(tables, {format});
}

std::uint64_t tables_id(const KvTables& tables, std::initializer_list<std::string_view> formats) {
  static_assert(std::endian::native == std::endian::little);
  std::vector<std::uint64_t> checksums;
  for (const auto& table : tables.values) {
    const std::string_view name = table.first;
    if (std::ranges::none_of(formats, [&](std::string_view format) {
          return name.starts_with(format) && name.substr(format.size()).starts_with('.');
        })) {
      continue;
    }
    checksums.push_back(xxh3_64(as_byte_view(name)));
    checksums.push_back(xxh3_64(std::as_bytes(std::span(table.second))));
  }
  return xxh3_64(std::as_bytes(std::span(checksums)));
}

}  // namespace kvlane
