// The tokenizer put together: special tokens, an encoder for the text between them, and the way
// back.
// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer.h"

#include <algorithm>
#include <new>
#include <optional>

#include "base/file.h"
#include "model/bpe_encoder.h"
#include "model/gguf.h"
#include "model/gguf_file.h"
#include "model/gguf_tokenizer.h"
#include "model/gpt2_files.h"
#include "model/sentencepiece_model.h"
#include "model/tokenizer_json.h"
#include "model/utf8.h"

namespace kvlane {
namespace {

std::vector<AddedToken> tokens_of(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> some;
  std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(some),
               [&](const AddedToken& token) { return token.normalized == normalized; });
  return some;
}

// Empty without such a file.
Result<std::string> read_if_there(const std::filesystem::path& path) {
  Result<std::string> text = read_text_file(path, kTokenizerBytesMax);
  if (!text.ok() && text.status().code() == Code::kNotFound) return std::string();
  return text;
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerParts parts)
      : vocabulary(std::move(parts.vocabulary)),
        added_tokens(std::move(parts.added_tokens)),
        raw_tokens(tokens_of(added_tokens, false)),
        prefix(std::move(parts.prefix)),
        suffix(std::move(parts.suffix)),
        special(static_cast<std::size_t>(vocabulary.size()), -1) {
    for (std::size_t index = 0; index < added_tokens.size(); ++index) {
      if (!added_tokens[index].special) continue;
      special[static_cast<std::size_t>(added_tokens[index].id)] = static_cast<std::int32_t>(index);
    }
  }

  // `parts` but for their encoder, which refers to the vocabulary here.
  static Result<std::unique_ptr<Impl>> create(TokenizerParts parts) {
    DecoderOptions decoder = std::move(parts.decoder);
    auto impl = std::make_unique<Impl>(std::move(parts));
    KVLANE_ASSIGN(impl->detokenizer, Detokenizer::create(std::move(decoder), impl->vocabulary));
    return impl;
  }

  // The special token with this id, or null.
  const AddedToken* find_special(std::int32_t id) const {
    if (id < 0 || id >= vocabulary.size()) return nullptr;
    const std::int32_t index = special[static_cast<std::size_t>(id)];
    return index < 0 ? nullptr : &added_tokens[static_cast<std::size_t>(index)];
  }

  Vocabulary vocabulary;
  std::vector<AddedToken> added_tokens;
  AddedTokenFinder raw_tokens;
  std::vector<std::int32_t> prefix;
  std::vector<std::int32_t> suffix;
  std::vector<std::int32_t> special;  // [id]: index into added_tokens of a special token, or -1
  // Set before anybody sees this; they refer to `vocabulary`.
  std::optional<Detokenizer> detokenizer;
  std::unique_ptr<const TextEncoder> encoder;
};

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& directory) {
  const std::filesystem::path json = directory / "tokenizer.json";
  const std::filesystem::path model = directory / "tokenizer.model";
  std::error_code ignored;
  if (!std::filesystem::exists(json, ignored) && std::filesystem::exists(model, ignored)) {
    return load_sentencepiece(model, directory / "tokenizer_config.json");
  }
  KVLANE_ASSIGN(const std::vector<std::filesystem::path> gguf, find_gguf(directory));
  if (!gguf.empty() && !std::filesystem::exists(json, ignored)) return load_gguf(gguf.front());
  if (!std::filesystem::exists(json, ignored) &&
      std::filesystem::exists(directory / "merges.txt", ignored)) {
    return load_gpt2(directory);
  }
  KVLANE_ASSIGN(const std::string text, read_text_file(json, kTokenizerBytesMax));
  Result<Tokenizer> tokenizer = parse(text);
  if (!tokenizer.ok()) return tokenizer.status().with_context(json.string());
  return tokenizer;
}

Result<Tokenizer> Tokenizer::load_gguf(const std::filesystem::path& path) {
  const auto load = [&]() -> Result<Tokenizer> {
    KVLANE_ASSIGN(const MappedFile mapped, MappedFile::open(path));
    KVLANE_ASSIGN(const GgufFile file, parse_gguf(mapped.bytes()));
    KVLANE_ASSIGN(const std::string text, gguf_tokenizer_json(file));
    return parse(text);
  };
  Result<Tokenizer> tokenizer = load();
  if (!tokenizer.ok()) return tokenizer.status().with_context(path.string());
  return tokenizer;
}

Result<Tokenizer> Tokenizer::load_sentencepiece(const std::filesystem::path& model,
                                                const std::filesystem::path& config) {
  KVLANE_ASSIGN(const std::string text, read_text_file(model, kTokenizerBytesMax));
  KVLANE_ASSIGN(const std::string config_text, read_if_there(config));
  Result<Tokenizer> tokenizer = parse_sentencepiece(text, config_text);
  if (!tokenizer.ok()) return tokenizer.status().with_context(model.string());
  return tokenizer;
}

Result<Tokenizer> Tokenizer::load_gpt2(const std::filesystem::path& directory) {
  KVLANE_ASSIGN(const std::string vocabulary,
                read_text_file(directory / "vocab.json", kTokenizerBytesMax));
  KVLANE_ASSIGN(const std::string merges,
                read_text_file(directory / "merges.txt", kTokenizerBytesMax));
  KVLANE_ASSIGN(const std::string config, read_if_there(directory / "tokenizer_config.json"));
  const Result<std::string> text = gpt2_tokenizer_json(vocabulary, merges, config);
  if (!text.ok()) return text.status().with_context(directory.string());
  Result<Tokenizer> tokenizer = parse(*text);
  if (!tokenizer.ok()) return tokenizer.status().with_context(directory.string());
  return tokenizer;
}

Result<Tokenizer> Tokenizer::parse(std::string_view tokenizer_json) {
  KVLANE_ASSIGN(TokenizerSpec spec, parse_tokenizer_json(tokenizer_json));
  std::vector<AddedToken> normalized = tokens_of(spec.parts.added_tokens, true);
  KVLANE_ASSIGN(std::unique_ptr<Impl> impl, Impl::create(std::move(spec.parts)));
  KVLANE_ASSIGN(Bpe bpe, Bpe::create(impl->vocabulary, spec.merges, spec.bpe));
  impl->encoder =
      std::make_unique<BpeEncoder>(std::move(spec.normalizer), std::move(normalized),
                                   Pretokenizer(std::move(spec.pretokenizer)), std::move(bpe));
  return Tokenizer(std::move(impl));
}

Result<Tokenizer> Tokenizer::parse_sentencepiece(std::string_view tokenizer_model,
                                                 std::string_view tokenizer_config_json) {
  SentencePieceConfig config;
  if (!tokenizer_config_json.empty()) {
    Result<SentencePieceConfig> parsed = parse_sentencepiece_config(tokenizer_config_json);
    if (!parsed.ok()) return parsed.status().with_context("tokenizer_config.json");
    config = std::move(*parsed);
  }
  KVLANE_ASSIGN(SentencePieceSpec spec, parse_sentencepiece_model(tokenizer_model, config));
  KVLANE_ASSIGN(std::unique_ptr<Impl> impl, Impl::create(std::move(spec.parts)));
  impl->encoder = std::move(spec.encoder);
  return Tokenizer(std::move(impl));
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text, bool add_special) const {
  if (text.size() > kTextBytesMax) {
    return invalid_argument("a text of " + std::to_string(text.size()) +
                            " bytes; kvlane takes up to " + std::to_string(kTextBytesMax));
  }
  try {
    std::string mended;
    if (find_invalid_utf8(text)) {
      append_replacing_invalid(mended, text);
      text = mended;
    }
    std::vector<std::int32_t> ids;
    if (add_special) ids = impl_->prefix;
    KVLANE_TRY(impl_->raw_tokens.find(text, ids, [&](std::string_view piece) {
      return impl_->encoder->encode(piece, piece.data() == text.data(), ids);
    }));
    if (add_special) ids.insert(ids.end(), impl_->suffix.begin(), impl_->suffix.end());
    return ids;
  } catch (const std::bad_alloc&) {
    return exhausted("not enough memory to encode a text of " + std::to_string(text.size()) +
                     " bytes");
  }
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string bytes;
  Detokenizer::Progress progress = impl_->detokenizer->start();
  for (const std::int32_t id : ids) {
    if (!is_special(id)) impl_->detokenizer->append(id, progress, bytes);
  }
  std::string text;
  text.reserve(bytes.size());
  append_replacing_invalid(text, bytes, impl_->detokenizer->invalid_unit());
  return text;
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  const AddedToken* special = impl_->find_special(id);
  return special != nullptr ? special->content : impl_->detokenizer->bytes(id);
}

bool Tokenizer::is_special(std::int32_t id) const { return impl_->find_special(id) != nullptr; }

std::int32_t Tokenizer::find(std::string_view content) const {
  const auto added =
      std::find_if(impl_->added_tokens.begin(), impl_->added_tokens.end(),
                   [&](const AddedToken& token) { return token.content == content; });
  return added != impl_->added_tokens.end() ? added->id : impl_->detokenizer->find(content);
}

int Tokenizer::vocab_size() const { return impl_->vocabulary.size(); }

const Detokenizer& Tokenizer::detokenizer() const { return *impl_->detokenizer; }

}  // namespace kvlane
