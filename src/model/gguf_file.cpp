// By names first; what the files themselves say is held against that.
// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_file.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "model/safetensors.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;

// What lies behind NAME: "-00002-of-00003".
constexpr std::size_t kPartBytes = 15;
constexpr const char* kSplitTensors = "split.tensors.count";

struct PartName {
  std::string name;
  int number = 0;  // from 1 on
  int count = 0;
};

std::optional<int> five_digits(std::string_view text) {
  int number = 0;
  for (const char digit : text.substr(0, 5)) {
    if (std::isdigit(static_cast<unsigned char>(digit)) == 0) return std::nullopt;
    number = 10 * number + (digit - '0');
  }
  return number;
}

std::optional<PartName> part_name(const fs::path& file) {
  const std::string stem = file.stem().string();
  if (stem.size() < kPartBytes) return std::nullopt;
  const std::string_view part = std::string_view(stem).substr(stem.size() - kPartBytes);
  const std::optional<int> number = five_digits(part.substr(1));
  const std::optional<int> count = five_digits(part.substr(10));
  if (part[0] != '-' || part.substr(6, 4) != "-of-" || !number || !count) return std::nullopt;
  return PartName{stem.substr(0, stem.size() - kPartBytes), *number, *count};
}

// The files of the model that `file` is a part of, or itself.
Result<std::vector<fs::path>> parts_of(const fs::path& file) {
  std::vector<fs::path> parts;
  const std::optional<PartName> name = part_name(file);
  if (!name) {
    parts.push_back(file);
    return parts;
  }
  if (name->number < 1 || name->number > name->count) {
    return corrupt(file.string() + " is part " + std::to_string(name->number) + " of " +
                   std::to_string(name->count) + " by its name");
  }
  if (name->count > kGgufPartsMax) {
    return unsupported(file.string() + " is one of " + std::to_string(name->count) +
                       " parts; kvlane takes up to " + std::to_string(kGgufPartsMax));
  }
  for (int part = 1; part <= name->count; ++part) {
    char suffix[32];
    std::snprintf(suffix, sizeof suffix, "-%05d-of-%05d.gguf", part, name->count);
    parts.push_back(file.parent_path() / (name->name + suffix));
    std::error_code error;
    if (!fs::is_regular_file(parts.back(), error)) {
      return corrupt("there is no file " + parts.back().string() + ", which " +
                     file.filename().string() + " is a part of one model with");
    }
  }
  return parts;
}

Status check_entry(const GgufFile& part, const char* name, std::size_t expected) {
  const std::string what = std::string("'") + name + "'";
  const double* const value = find_entry<double>(part, name);
  if (value == nullptr) return corrupt("it has no number " + what);
  if (*value == static_cast<double>(expected)) return {};
  return corrupt(what + " is not " + std::to_string(expected));
}

// Of the part with this index, whose first one names `tensors` in all.
Status check_part(const GgufFile& part, std::size_t index, std::size_t count, std::size_t tensors) {
  KVLANE_TRY(check_entry(part, "split.count", count));
  KVLANE_TRY(check_entry(part, "split.no", index));
  return check_entry(part, kSplitTensors, tensors);
}

}  // namespace

Result<std::vector<fs::path>> find_gguf(const fs::path& model) {
  std::error_code error;
  std::vector<fs::path> found;
  if (fs::is_regular_file(model, error)) {
    if (model.extension() == ".gguf") return parts_of(model);
    return found;
  }
  if (fs::exists(model / "config.json", error)) return found;
  fs::directory_iterator file(model, error);
  for (; !error && file != fs::directory_iterator(); file.increment(error)) {
    if (file->path().extension() == ".gguf") found.push_back(file->path());
  }
  if (found.empty()) return found;
  std::ranges::sort(found);
  KVLANE_ASSIGN(std::vector<fs::path> parts, parts_of(found.front()));
  for (const fs::path& other : found) {
    if (std::ranges::find(parts, other) != parts.end()) continue;
    return unsupported(model.string() + " has several .gguf files, and " +
                       other.filename().string() + " is no part of the model that " +
                       parts.front().filename().string() + " is; name the file");
  }
  return parts;
}

Result<GgufFile> join_gguf(std::vector<GgufFile> parts) {
  if (parts.size() == 1 && !parts[0].metadata.contains(std::string_view("split.count"))) {
    return std::move(parts[0]);
  }
  const double* const said = find_entry<double>(parts[0], kSplitTensors);
  if (said == nullptr || !(*said >= 0 && *said <= static_cast<double>(kTensorsMax))) {
    return corrupt(std::string("'") + kSplitTensors + "' is missing, or no number of tensors");
  }
  const auto tensors = static_cast<std::size_t>(*said);
  GgufFile whole;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const std::string where =
        "part " + std::to_string(part + 1) + " of " + std::to_string(parts.size());
    KVLANE_TRY(check_part(parts[part], part, parts.size(), tensors).with_context(where));
    for (auto& [name, tensor] : parts[part].tensors) {
      if (whole.tensors.emplace(name, std::move(tensor)).second) continue;
      return corrupt(where + ": tensor '" + name + "' is in a part before it");
    }
  }
  if (whole.tensors.size() != tensors) {
    return corrupt("its parts have " + std::to_string(whole.tensors.size()) + " tensors, and '" +
                   kSplitTensors + "' says " + std::to_string(tensors));
  }
  whole.metadata = std::move(parts[0].metadata);
  return whole;
}

}  // namespace kvlane
