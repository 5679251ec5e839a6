// Text to token ids and back, as tokenizer.json or tokenizer.model of a checkpoint says.
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
#include "model/detokenizer.h"

namespace kvlane {

// Longest text that is encoded, in bytes: far more than any context holds, and a text that is one
// single word needs about 30 bytes of memory for each of its own.
inline constexpr std::size_t kTextBytesMax = 32U << 20;

// Immutable after load, thread-safe. Movable.
class Tokenizer {
 public:
  // Reads DIR/tokenizer.json; without one DIR/tokenizer.model, and DIR/tokenizer_config.json if
  // there is one; without either what a GGUF file there says, or instead of DIR, or vocab.json,
  // merges.txt and tokenizer_config.json. Constructs it does not know are kUnsupported and named.
  static Result<Tokenizer> load(const std::filesystem::path& directory);
  // BPE over bytes or, as sentencepiece does it, over characters.
  static Result<Tokenizer> parse(std::string_view tokenizer_json);
  // BPE models of sentencepiece. Control tokens, and tokens that `tokenizer_config_json` adds, are
  // recognised in texts; what lies between is encoded as a text of its own. That file also says
  // whether BOS and EOS are put around texts: with an empty one BOS is, EOS not.
  static Result<Tokenizer> parse_sentencepiece(std::string_view tokenizer_model,
                                               std::string_view tokenizer_config_json = "");

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The ids that the `tokenizers` package (for tokenizer.model the sentencepiece library) gives for
  // encode(text, add_special_tokens): added tokens inside the text are recognised; the
  // post-processor (BOS) acts only with `add_special`. In bytes that are no UTF-8 every invalid
  // sequence counts as one U+FFFD: the ids are those of Python's text.decode("utf-8", "replace").
  // kInvalidArgument for too long a text.
  Result<std::vector<std::int32_t>> encode(std::string_view text, bool add_special = true) const;

  // The text of the tokens, special ones left out, as the package has it: without the space that
  // sentencepiece puts before a text. Bytes that are no UTF-8 are replaced by U+FFFD: one for each
  // invalid sequence, or for each invalid byte where bytes are tokens of sentencepiece ("<0xE4>").
  // The package replaces the valid characters among the latter as well if an invalid one follows;
  // that cannot be streamed. Ids outside the vocabulary give nothing.
  std::string decode(std::span<const std::int32_t> ids) const;

  // The raw bytes of one token inside a text (a special token's are its text); empty for an unknown
  // id.
  std::string_view token_bytes(std::int32_t id) const;
  bool is_special(std::int32_t id) const;
  // The id of the added token with this content, else of the token with these bytes (" the", not
  // the file's spelling "\u0120the"); -1 if there is none.
  std::int32_t find(std::string_view content) const;
  // One more than the largest id.
  int vocab_size() const;
  // How its tokens become text; lives as long as this.
  const Detokenizer& detokenizer() const;

 private:
  struct Impl;
  static Result<Tokenizer> load_gpt2(const std::filesystem::path& directory);
  static Result<Tokenizer> load_gguf(const std::filesystem::path& path);
  static Result<Tokenizer> load_sentencepiece(const std::filesystem::path& model,
                                              const std::filesystem::path& config);
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// Text of a growing sequence of tokens: what push() and finish() return, joined, equals decode() of
// all ids. Never returns half a UTF-8 character. Thread-compatible.
class TokenStream {
 public:
  // Whether the tokens begin a text or go on after others, so that a space before them is part of
  // it, as sentencepiece's models need it said.
  enum class Begin { kText, kContinuation };

  // `tokenizer` must outlive this.
  explicit TokenStream(const Tokenizer& tokenizer, Begin begin = Begin::kText);
  std::string push(std::int32_t id);
  // What is still held back; invalid bytes become U+FFFD.
  std::string finish();

 private:
  std::string release(std::size_t bytes);

  const Tokenizer* tokenizer_;
  Detokenizer::Progress progress_;
  std::string pending_;  // an incomplete UTF-8 character
};

}  // namespace kvlane
