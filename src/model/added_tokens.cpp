// The search, and the white space and words around what it finds.
// SPDX-License-Identifier: Apache-2.0
#include "model/added_tokens.h"

#include <algorithm>
#include <optional>
#include <set>

#include "model/utf8.h"

namespace kvlane {
namespace {

LiteralSet literals_of(const std::vector<AddedToken>& tokens) {
  std::vector<LiteralSet::Literal> literals;
  std::set<std::string_view> seen;
  for (std::size_t index = 0; index < tokens.size(); ++index) {
    if (!seen.insert(tokens[index].pattern).second) continue;
    literals.push_back({tokens[index].pattern, static_cast<std::int32_t>(index)});
  }
  return LiteralSet(std::move(literals));
}

// Where the last character of `text`, which is not empty, begins.
std::size_t last_character(std::string_view text) {
  std::size_t start = text.size() - 1;
  while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0U) == 0x80U) --start;
  return start;
}

// Bytes of white space at the end of `text`.
std::size_t trailing_space(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    const std::size_t start = last_character(text.substr(0, end));
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

// Whether `character` is what `\w` matches in the package: alphabetic (letters, letter numbers,
// circled and squared letters), a mark, a decimal digit, a connector or a joiner.
bool is_word_character(std::string_view character) {
  static const Result<SplitRule> kWord = SplitRule::compile(
      "[\\p{L}\\p{M}\\p{Nd}\\p{Nl}_\u203f\u2040\u2054\ufe33\ufe34\ufe4d-\ufe4f\uff3f\u200c\u200d"
      "\u24b6-\u24e9\U0001f130-\U0001f149\U0001f150-\U0001f169\U0001f170-\U0001f189]");
  bool word = false;
  if (kWord.ok()) {
    static_cast<void>(kWord->scan(character, [&](std::string_view /*piece*/, bool is_match) {
      word = is_match;
      return Status();
    }));
  }
  return word;
}

// Whether no word character touches text[start, end).
bool stands_alone(std::string_view text, std::size_t start, std::size_t end) {
  if (start > 0) {
    const std::string_view before = text.substr(0, start);
    if (is_word_character(before.substr(last_character(before)))) return false;
  }
  if (end == text.size()) return true;
  const std::string_view after = text.substr(end);
  return !is_word_character(after.substr(0, next_utf8(after).bytes));
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), literals_(literals_of(tokens_)) {}

Status AddedTokenFinder::find(std::string_view text, std::vector<std::int32_t>& ids,
                              const PieceSink& rest) const {
  std::size_t done = 0;  // everything before it is said
  for (std::size_t at = 0; !literals_.empty() && at < text.size();) {
    const std::optional<LiteralSet::Match> match = literals_.longest_prefix(text.substr(at));
    if (!match) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(match->value)];
    std::size_t start = at;
    at += match->bytes;
    std::size_t end = at;
    if (token.single_word && !stands_alone(text, start, end)) continue;
    if (token.strip_left) {
      start = std::max(done, start);
      start -= trailing_space(text.substr(done, start - done));
    }
    if (token.strip_right) end += leading_space(text.substr(at));
    if (done < start) KVLANE_TRY(rest(text.substr(done, start - done)));
    ids.push_back(token.id);
    done = end;
  }
  return done < text.size() ? rest(text.substr(done)) : Status();
}

}  // namespace kvlane
