// Any bytes as a GGUF file; what comes out of it must lie inside, and be a model and a tokenizer or
// an error.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "model/gguf.h"
#include "model/gguf_config.h"
#include "model/gguf_file.h"
#include "model/gguf_tensors.h"
#include "model/gguf_tokenizer.h"
#include "model/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const kvlane::ByteView bytes = std::as_bytes(std::span(data, size));
  const auto file = kvlane::parse_gguf(bytes);
  if (!file.ok()) {
    if (file.status().message().empty()) std::abort();
    return 0;
  }
  for (const auto& [name, tensor] : file->tensors) {
    const std::byte* const begin = tensor.bytes.data();
    if (begin < bytes.data() || begin + tensor.bytes.size() > bytes.data() + size) std::abort();
  }
  const auto joined = kvlane::join_gguf({*file});
  if (joined.ok() && joined->tensors.size() != file->tensors.size()) std::abort();
  if (const auto config = kvlane::gguf_config(*file); config.ok()) {
    const auto tensors = kvlane::gguf_tensors(*file, *config);
    if (tensors.ok() && tensors->views.size() > file->tensors.size()) std::abort();
  }
  static_cast<void>(kvlane::gguf_chat(*file));
  if (const auto json = kvlane::gguf_tokenizer_json(*file); json.ok()) {
    const auto tokenizer = kvlane::Tokenizer::parse(*json);
    if (tokenizer.ok()) static_cast<void>(tokenizer->encode("It's <s> 12 caf\xC3\xA9"));
  }
  return 0;
}
