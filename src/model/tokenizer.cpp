// The tokenizer put together: added tokens, normalisation, splitting, merging, and the way back.
// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer.h"

#include <algorithm>
#include <functional>
#include <new>
#include <optional>

#include "base/file.h"
#include "model/bpe.h"
#include "model/literal_set.h"
#include "model/nfc.h"
#include "model/pretokenizer.h"
#include "model/tokenizer_json.h"
#include "model/utf8.h"
#include "model/vocabulary.h"

namespace kvlane {
namespace {

LiteralSet literals_of(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<LiteralSet::Literal> literals;
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    if (tokens[index].normalized == normalized) {
      literals.push_back({tokens[index].content, static_cast<std::int32_t>(index)});
    }
  }
  return LiteralSet(std::move(literals));
}

// Bytes of white space at the end of `text`.
std::size_t trailing_space(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t start = end - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0U) == 0x80U) --start;
    if (!is_white_space(next_utf8(text.substr(start)).code_point)) break;
    end = start;
  }
  return text.size() - end;
}

// Bytes of white space at the beginning of `text`.
std::size_t leading_space(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = next_utf8(text.substr(at));
    if (!is_white_space(step.code_point)) break;
    at += step.bytes;
  }
  return at;
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerSpec spec)
      : vocabulary(std::move(spec.vocabulary)),
        added_tokens(std::move(spec.added_tokens)),
        raw_literals(literals_of(added_tokens, false)),
        normalized_literals(literals_of(added_tokens, true)),
        nfc(spec.nfc),
        pretokenizer(std::move(spec.pretokenizer)),
        prefix(std::move(spec.prefix)),
        suffix(std::move(spec.suffix)),
        special(static_cast<std::size_t>(vocabulary.size()), -1) {
    for (std::size_t index = 0; index < added_tokens.size(); ++index) {
      if (!added_tokens[index].special) continue;
      special[static_cast<std::size_t>(added_tokens[index].id)] = static_cast<std::int32_t>(index);
    }
  }

  // Words of one text on their way to ids.
  struct Encoding {
    Bpe::Scratch scratch;
    std::vector<std::int32_t> ids;
  };

  Status encode_raw(std::string_view text, Encoding& encoding) const;
  Status encode_normalized(std::string_view text, Encoding& encoding) const;
  Status find_added(std::string_view text, const LiteralSet& literals,
                    std::vector<std::int32_t>& ids, const PieceSink& rest) const;
  // The special token with this id, or null.
  const AddedToken* find_special(std::int32_t id) const {
    if (id < 0 || id >= vocabulary.size()) return nullptr;
    const std::int32_t index = special[static_cast<std::size_t>(id)];
    return index < 0 ? nullptr : &added_tokens[static_cast<std::size_t>(index)];
  }

  Vocabulary vocabulary;
  std::vector<AddedToken> added_tokens;
  LiteralSet raw_literals;  // values are indices of added_tokens
  LiteralSet normalized_literals;
  bool nfc;
  Pretokenizer pretokenizer;
  std::optional<Bpe> bpe;  // set before anybody sees this; refers to `vocabulary`
  std::vector<std::int32_t> prefix;
  std::vector<std::int32_t> suffix;
  std::vector<std::int32_t> special;  // [id]: index into added_tokens of a special token, or -1
};

// Appends the ids of the added tokens in `text` and gives what lies between them to `rest`.
Status Tokenizer::Impl::find_added(std::string_view text, const LiteralSet& literals,
                                   std::vector<std::int32_t>& ids, const PieceSink& rest) const {
  std::size_t done = 0;  // everything before it is said
  for (std::size_t at = 0; !literals.empty() && at < text.size();) {
    const std::optional<LiteralSet::Match> match = literals.longest_prefix(text.substr(at));
    if (!match) {
      ++at;
      continue;
    }
    const AddedToken& token = added_tokens[static_cast<std::size_t>(match->value)];
    std::size_t start = at;
    at += match->bytes;
    std::size_t end = at;
    if (token.strip_left) {
      start =
          std::max(done, start) - trailing_space(text.substr(done, std::max(done, start) - done));
    }
    if (token.strip_right) end += leading_space(text.substr(at));
    if (done < start) KVLANE_TRY(rest(text.substr(done, start - done)));
    ids.push_back(token.id);
    done = end;
  }
  return done < text.size() ? rest(text.substr(done)) : Status();
}

Status Tokenizer::Impl::encode_raw(std::string_view text, Encoding& encoding) const {
  return find_added(text, raw_literals, encoding.ids, [&](std::string_view piece) -> Status {
    if (!nfc) return encode_normalized(piece, encoding);
    KVLANE_ASSIGN(const std::string normal, to_nfc(piece));
    return encode_normalized(normal, encoding);
  });
}

Status Tokenizer::Impl::encode_normalized(std::string_view text, Encoding& encoding) const {
  const PieceSink word = [&](std::string_view bytes) {
    bpe->encode(bytes, encoding.scratch, encoding.ids);
    return Status();
  };
  return find_added(text, normalized_literals, encoding.ids,
                    [&](std::string_view piece) { return pretokenizer.split(piece, word); });
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "tokenizer.json";
  KVLANE_ASSIGN(const std::string text, read_text_file(path, kTokenizerJsonBytesMax));
  Result<Tokenizer> tokenizer = parse(text);
  if (!tokenizer.ok()) return tokenizer.status().with_context(path.string());
  return tokenizer;
}

Result<Tokenizer> Tokenizer::parse(std::string_view tokenizer_json) {
  KVLANE_ASSIGN(TokenizerSpec spec, parse_tokenizer_json(tokenizer_json));
  const std::vector<Bpe::Merge> merges = std::move(spec.merges);
  const Bpe::Options options = spec.bpe;
  auto impl = std::make_unique<Impl>(std::move(spec));
  KVLANE_ASSIGN(impl->bpe, Bpe::create(impl->vocabulary, merges, options));
  return Tokenizer(std::move(impl));
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text, bool add_special) const {
  if (text.size() > kTextBytesMax) {
    return invalid_argument("a text of " + std::to_string(text.size()) +
                            " bytes; kvlane takes up to " + std::to_string(kTextBytesMax));
  }
  if (const std::optional<std::size_t> offset = find_invalid_utf8(text)) {
    return invalid_argument("the text is not valid UTF-8 at byte " + std::to_string(*offset));
  }
  try {
    Impl::Encoding encoding;
    if (add_special) encoding.ids = impl_->prefix;
    KVLANE_TRY(impl_->encode_raw(text, encoding));
    if (add_special) {
      encoding.ids.insert(encoding.ids.end(), impl_->suffix.begin(), impl_->suffix.end());
    }
    return std::move(encoding.ids);
  } catch (const std::bad_alloc&) {
    return exhausted("not enough memory to encode a text of " + std::to_string(text.size()) +
                     " bytes");
  }
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    if (!is_special(id)) bytes.append(impl_->vocabulary.bytes(id));
  }
  std::string text;
  text.reserve(bytes.size());
  append_replacing_invalid(text, bytes);
  return text;
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  const AddedToken* special = impl_->find_special(id);
  return special != nullptr ? special->content : impl_->vocabulary.bytes(id);
}

bool Tokenizer::is_special(std::int32_t id) const { return impl_->find_special(id) != nullptr; }

std::int32_t Tokenizer::find(std::string_view content) const {
  const auto added =
      std::find_if(impl_->added_tokens.begin(), impl_->added_tokens.end(),
                   [&](const AddedToken& token) { return token.content == content; });
  return added != impl_->added_tokens.end() ? added->id : impl_->vocabulary.find(content);
}

int Tokenizer::vocab_size() const { return impl_->vocabulary.size(); }

}  // namespace kvlane
