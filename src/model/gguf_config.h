// The architecture of a GGUF file, in the words of config.json.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kvlane/status.h"
#include "model/config.h"
#include "model/gguf.h"

namespace kvlane {

// An entry of metadata; null when it is absent or of another type.
template <class T>
const T* find_entry(const GgufFile& file, std::string_view name) {
  const auto at = file.metadata.find(name);
  return at == file.metadata.end() ? nullptr : std::get_if<T>(&at->second);
}

// A tensor that belongs to the configuration.
inline constexpr std::string_view kRopeDivisors = "rope_freqs.weight";

// The architectures "llama" (of which Mistral is one), "qwen2" and "qwen3": their metadata is
// written as config.json and read as any other. kUnsupported names another architecture and what
// would change the result; kCorrupt names what is missing.
Result<ModelConfig> gguf_config(const GgufFile& file);

}  // namespace kvlane
