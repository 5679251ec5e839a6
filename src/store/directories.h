// The directories of a store: their marks, and the lock that keeps a second process out.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "kvlane/status.h"

namespace kvlane {

// What a mark says: spec/store.md, section 2.
struct DirectoryMark {
  std::string identity;  // 32 hexadecimal digits
  int number = 0;
};

// Nothing: the directory has no mark. kCorrupt when there is a file of that name that is none,
// kInvalidArgument when `directory` is no directory.
Result<std::optional<DirectoryMark>> read_mark(const std::filesystem::path& directory);

// kInvalidArgument when the directory is not empty: what is there belongs to somebody else.
Status require_empty(const std::filesystem::path& directory);

// Makes the directory, its folder of segments and its mark; what is there stays.
Status mark_directory(const std::filesystem::path& directory, const DirectoryMark& mark);

Result<std::string> new_identity();

// Held as long as the descriptor lives. kUnavailable when another process holds it.
Result<Descriptor> lock_directory(const std::filesystem::path& directory);

std::filesystem::path catalogue_path(const std::filesystem::path& directory);
std::filesystem::path segments_path(const std::filesystem::path& directory);
// And back: nothing, when it is no name of a segment.
std::string segment_file_name(std::uint32_t number);
std::optional<std::uint32_t> segment_number(const std::string& file_name);

}  // namespace kvlane
