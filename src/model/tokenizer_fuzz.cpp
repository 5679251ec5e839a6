// Any bytes as tokenizer.json, or as tokenizer.model where they begin like one; a tokenizer that
// comes out of it must take a text there and back.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "model/tokenizer.h"
#include "model/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  // The first piece of a model: field 1, a message.
  const kvlane::Result<kvlane::Tokenizer> tokenizer =
      file.starts_with('\n') ? kvlane::Tokenizer::parse_sentencepiece(file)
                             : kvlane::Tokenizer::parse(file);
  if (!tokenizer.ok()) {
    if (tokenizer.status().code() == kvlane::Code::kInternal) std::abort();
    return 0;
  }
  const std::string text =
      "It's 12345  <|endoftext|> <s>a \xE2\x96\x81[INST] --go caf\xC3\xA9 e\xCC\x81\n\n\t "
      "\xE4\xBD\xA0\xE5\xA5\xBD "
      "\xF0\x9F\x98\x80!? ";
  const auto ids = tokenizer->encode(text);
  if (!ids.ok()) return 0;  // a split rule that gives up
  const std::string decoded = tokenizer->decode(*ids);
  if (kvlane::find_invalid_utf8(decoded)) std::abort();
  kvlane::TokenStream stream(*tokenizer);
  std::string joined;
  for (const std::int32_t id : *ids) joined += stream.push(id);
  joined += stream.finish();
  if (joined != decoded) std::abort();
  return 0;
}
