// `kvlane inspect`: what is in this checkpoint, this file of frames, this tensor file?
// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "calib/describe_safetensors.h"
#include "cli/command.h"
#include "cli/progress.h"
#include "cli/zack_rates.h"
#include "format/describe.h"
#include "format/tensor_file.h"
#include "model/describe.h"

namespace kvlane {
namespace {

struct InspectFlags {
  std::string path;
  bool json = false;
};

Result<std::string> describe_file(const std::filesystem::path& path, ByteView bytes) {
  if (path.extension() == ".safetensors") return describe_safetensors_json(bytes);
  return begins_tensor_file(bytes) ? describe_tensor_file_json(bytes) : describe_frame_json(bytes);
}

Result<std::string> describe_path(const std::string& path, bool whole) {
  if (std::filesystem::is_directory(path) || std::filesystem::path(path).extension() == ".gguf") {
    Progress progress("reading " + path);
    KVLANE_ASSIGN(std::string text, describe_checkpoint_json(path, progress.counter()));
    KVLANE_TRY(add_zack_rates(path, whole, text));
    return text;
  }
  KVLANE_ASSIGN(const MappedFile file, MappedFile::open(path));
  if (file.bytes().empty()) return invalid_argument(path + " is empty");
  auto description = describe_file(path, file.bytes());
  if (!description.ok()) return description.status().with_context(path);
  return description;
}

// "name: value" lines, indented by depth.
void print_lines(const nlohmann::ordered_json& value, int depth) {
  for (const auto& [name, member] : value.items()) {
    std::cout << std::string(2 * depth, ' ') << name << ":";
    const bool nested = member.is_object() || (member.is_array() && !member.empty() &&
                                               (member[0].is_object() || member[0].is_array()));
    if (nested) {
      std::cout << '\n';
      print_lines(member, depth + 1);
    } else {
      std::cout << ' ' << (member.is_string() ? member.get<std::string>() : member.dump()) << '\n';
    }
  }
}

Status inspect(const InspectFlags& flags) {
  KVLANE_ASSIGN(const std::string text, describe_path(flags.path, flags.json));
  if (flags.json) {
    std::cout << text << '\n';
  } else {
    print_lines(nlohmann::ordered_json::parse(text), 0);
  }
  return {};
}

}  // namespace

void add_inspect(Command& app) {
  Command command = app.add_subcommand(
      "inspect", "Tell what is in a checkpoint, a file of tensors or tables, or a file of frames");
  command.footer("Example: kvlane inspect models/kvlane-tiny-gqa");
  const auto flags = std::make_shared<InspectFlags>();
  command
      .add_option("PATH", flags->path,
                  "model directory or .gguf file, .safetensors, file of KV frames, or FILE.kvl")
      .required();
  command.add_flag("--json", flags->json, "one JSON object");
  command.action([flags] { return inspect(*flags); });
}

}  // namespace kvlane
