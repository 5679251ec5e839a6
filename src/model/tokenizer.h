// Text to token ids and back, as tokenizer.json of a checkpoint says (byte-level BPE).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvlane/status.h"

namespace kvlane {

// Longest text that is encoded, in bytes: far more than any context holds, and a text that is one
// single word needs about 30 bytes of memory for each of its own.
inline constexpr std::size_t kTextBytesMax = 32U << 20;

// Immutable after load, thread-safe. Movable.
class Tokenizer {
 public:
  // Reads DIR/tokenizer.json; constructs it does not know are kUnsupported and named.
  static Result<Tokenizer> load(const std::filesystem::path& directory);
  static Result<Tokenizer> parse(std::string_view tokenizer_json);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The ids that the `tokenizers` package gives for encode(text, add_special_tokens): added tokens
  // inside the text are recognised; the post-processor (BOS) acts only with `add_special`.
  // kInvalid- Argument for invalid UTF-8, with the offset of the first bad byte, and for too long a
  // text.
  Result<std::vector<std::int32_t>> encode(std::string_view text, bool add_special = true) const;

  // The bytes of the tokens, special ones left out. They may end inside a UTF-8 character; invalid
  // sequences are replaced by U+FFFD. Ids outside the vocabulary give nothing.
  std::string decode(std::span<const std::int32_t> ids) const;

  // The raw bytes of one token (a special token's are its text); empty for an unknown id.
  std::string_view token_bytes(std::int32_t id) const;
  bool is_special(std::int32_t id) const;
  // The id of the added token with this content, else of the token with these bytes (" the", not
  // the file's spelling "\u0120the"); -1 if there is none.
  std::int32_t find(std::string_view content) const;
  // One more than the largest id.
  int vocab_size() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// Text of a growing sequence of tokens: what push() and finish() return, joined, equals decode() of
// all ids. Never returns half a UTF-8 character.
class TokenStream {
 public:
  explicit TokenStream(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  std::string push(std::int32_t id);
  // What is still held back; invalid bytes become U+FFFD.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;  // an incomplete UTF-8 character
};

}  // namespace kvlane
