// Which files are a model in GGUF, and what they are together.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "kvlane/status.h"
#include "model/gguf.h"

namespace kvlane {

// Most files that one model may be split into.
inline constexpr int kGgufPartsMax = 1024;

// `model` is a .gguf file, or a directory with one and without config.json; empty for all others.
// gguf-split cuts models into NAME-00001-of-00003.gguf and so on: any of them stands for all, in
// their order, and the metadata is in the first. kCorrupt names a part that is missing,
// kUnsupported files of a directory that are no parts of one model.
Result<std::vector<std::filesystem::path>> find_gguf(const std::filesystem::path& model);

// One file of all parts, which are in their order: the metadata of the first with the tensors of
// all. kCorrupt where "split.no", "split.count" or "split.tensors.count" say that they are not the
// parts of one model. A single file needs none of these.
Result<GgufFile> join_gguf(std::vector<GgufFile> parts);

}  // namespace kvlane
