// Finding a format's tables, with one sentence for each way in which they can be missing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "kvlane/status.h"
#include "quant/kv_tables.h"

namespace kvlane {

// "kvquant.layers.3.k.": what the names of all tables of one tensor begin with.
std::string table_prefix(std::string_view format, int layer, bool is_key);

// The values of a table, all finite, which belong to `tables`. Null or empty `tables`, or none of
// this name: kInvalidArgument that says how they are made; another size: kInvalidArgument with both
// sizes.
Result<std::span<const float>> find_table(const KvTables* tables, std::string_view format,
                                          const std::string& name, std::size_t size);

// Names what the tables of a format say, for workers and frames to compare (spec/frame.md, section
// 4): of all those whose names begin with `format` and a dot.
std::uint64_t tables_id(const KvTables& tables, std::string_view format);
// The same where a format reads those of several.
std::uint64_t tables_id(const KvTables& tables, std::initializer_list<std::string_view> formats);

}  // namespace kvlane
