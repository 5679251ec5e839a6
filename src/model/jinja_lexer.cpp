// The lexical rules of Jinja 3.1, with its order of attempts where that matters.
// SPDX-License-Identifier: Apache-2.0
#include "model/jinja_lexer.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "model/jinja_escape.h"
#include "model/utf8.h"

namespace kvlane::jinja {
namespace {

using Kind = Token::Kind;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Longest first, so that "==" is not "=" twice.
constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

// \r\n and \r become \n, and one newline at the end goes.
std::string normalize_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t at = 0; at < source.size(); ++at) {
    if (source[at] != '\r') {
      text += source[at];
      continue;
    }
    text += '\n';
    if (at + 1 < source.size() && source[at + 1] == '\n') ++at;
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) KVLANE_TRY(lex_text_and_tag());
    add(Kind::kEnd);
    return std::move(tokens_);
  }

 private:
  bool follows(std::string_view text) const { return source_.substr(at_).starts_with(text); }

  void advance(std::size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes),
                                         '\n'));
    at_ += bytes;
  }
  void skip_space() {
    while (at_ < source_.size()) {
      const Utf8Step step = next_utf8(source_.substr(at_));
      if (!is_python_space(step.code_point)) return;
      advance(step.bytes);
    }
  }
  void add(Kind kind, std::string text = {}, std::int64_t integer = 0) {
    tokens_.push_back({kind, line_, std::move(text), integer});
  }
  Status malformed(std::string_view what) const { return corrupt(at_line(line_, what)); }

  Status lex_text_and_tag();
  void add_text(std::string_view text, char tag, char sign);
  Status skip_comment();
  Status lex_inside(bool print);
  bool take_end(bool print);
  Status lex_token();
  Status lex_integer();
  Status lex_string();
  Status track_bracket(char bracket);

  std::string_view source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // whether the text that comes now begins a line
  std::string brackets_;       // open ones inside a tag: in them, "}}" is no end
  std::vector<Token> tokens_;
};

Status Lexer::lex_text_and_tag() {
  std::size_t begin = at_;
  while (true) {
    begin = source_.find('{', begin);
    if (begin == std::string_view::npos || begin + 1 == source_.size()) {
      add(Kind::kText, std::string(source_.substr(at_)));
      advance(source_.size() - at_);
      return {};
    }
    const char next = source_[begin + 1];
    if (next == '%' || next == '{' || next == '#') break;
    ++begin;
  }
  const std::string_view text = source_.substr(at_, begin - at_);
  const char tag = source_[begin + 1];
  char sign = begin + 2 < source_.size() ? source_[begin + 2] : '\0';
  if (sign != '-' && sign != '+') sign = '\0';
  add_text(text, tag, sign);
  advance(text.size() + 2 + (sign != '\0' ? 1 : 0));
  line_starting_ = false;
  if (tag == '#') return skip_comment();
  return lex_inside(tag == '{');
}

// The text before a tag, less what the tag takes away.
void Lexer::add_text(std::string_view text, char tag, char sign) {
  if (sign == '-') {
    text = strip_end(text);
  } else if (sign != '+' && tag != '{') {
    // lstrip_blocks: white space between the beginning of the line and the tag.
    const std::size_t newline = text.rfind('\n');
    const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if ((line > 0 || line_starting_) && strip_end(text.substr(line)).empty()) {
      text = text.substr(0, line);
    }
  }
  if (!text.empty()) add(Kind::kText, std::string(text));
}

Status Lexer::skip_comment() {
  const std::size_t end = source_.find("#}", at_);
  if (end == std::string_view::npos) return malformed("a comment does not end");
  const char sign = end > at_ ? source_[end - 1] : '\0';
  advance(end + 2 - at_);
  const std::size_t after = at_;
  if (sign == '-') {
    skip_space();
  } else if (sign != '+' && follows("\n")) {
    advance(1);
  }
  line_starting_ = at_ > after && source_[at_ - 1] == '\n';
  return {};
}

Status Lexer::lex_inside(bool print) {
  const int first_line = line_;
  add(print ? Kind::kPrintBegin : Kind::kTagBegin);
  brackets_.clear();
  while (true) {
    if (brackets_.empty() && take_end(print)) return {};
    const std::size_t before = at_;
    skip_space();
    if (at_ > before) continue;
    if (at_ == source_.size()) return corrupt(at_line(first_line, "a tag does not end"));
    KVLANE_TRY(lex_token());
  }
}

bool Lexer::take_end(bool print) {
  const std::string_view close = print ? "}}" : "%}";
  const char sign = follows("-") || (follows("+") && !print) ? source_[at_] : '\0';
  if (source_.substr(at_ + (sign != '\0' ? 1 : 0)).starts_with(close)) {
    add(print ? Kind::kPrintEnd : Kind::kTagEnd);
    advance(close.size() + (sign != '\0' ? 1 : 0));
    const std::size_t after = at_;
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && !print && follows("\n")) {
      advance(1);  // trim_blocks
    }
    line_starting_ = at_ > after && source_[at_ - 1] == '\n';
    return true;
  }
  return false;
}

Status Lexer::lex_token() {
  const char c = source_[at_];
  if (is_letter(c)) {
    std::size_t end = at_;
    while (end < source_.size() && (is_letter(source_[end]) || is_digit(source_[end]))) ++end;
    add(Kind::kName, std::string(source_.substr(at_, end - at_)));
    advance(end - at_);
    return {};
  }
  if (is_digit(c)) return lex_integer();
  if (c == '\'' || c == '"') return lex_string();
  for (const std::string_view candidate : kOperators) {
    if (!follows(candidate)) continue;
    if (candidate.size() == 1) KVLANE_TRY(track_bracket(c));
    add(Kind::kOperator, std::string(candidate));
    advance(candidate.size());
    return {};
  }
  std::string quoted;
  append_utf8(quoted, next_utf8(source_.substr(at_)).code_point);
  return malformed("unexpected character '" + quoted + "' in a tag");
}

Status Lexer::track_bracket(char bracket) {
  constexpr std::string_view kOpen = "([{";
  constexpr std::string_view kClose = ")]}";
  if (kOpen.find(bracket) != std::string_view::npos) brackets_ += bracket;
  const std::size_t kind = kClose.find(bracket);
  if (kind == std::string_view::npos) return {};
  if (brackets_.empty() || brackets_.back() != kOpen[kind]) {
    return malformed(std::string("unexpected '") + bracket + "'");
  }
  brackets_.pop_back();
  return {};
}

Status Lexer::lex_integer() {
  std::size_t end = at_;
  while (end < source_.size() && is_digit(source_[end])) ++end;
  const std::string_view digits = source_.substr(at_, end - at_);
  const char next = end < source_.size() ? source_[end] : '\0';
  const bool fraction = next == '.' && end + 1 < source_.size() && is_digit(source_[end + 1]);
  if (fraction || is_letter(next)) {
    return unsupported(
        at_line(line_, "a number other than a decimal whole number is not supported"));
  }
  std::int64_t value = 0;
  if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec != std::errc() ||
      (digits.size() > 1 && digits[0] == '0')) {
    return malformed("the number '" + std::string(digits.substr(0, 32)) + "' is not valid");
  }
  add(Kind::kInteger, std::string(digits), value);
  advance(digits.size());
  return {};
}

Status Lexer::lex_string() {
  const char quote = source_[at_];
  std::size_t end = at_ + 1;
  while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
  if (end >= source_.size()) return malformed("a string does not end");
  Result<std::string> text = resolve_escapes(source_.substr(at_ + 1, end - at_ - 1));
  if (!text.ok()) return {text.status().code(), at_line(line_, text.status().message())};
  add(Kind::kString, std::move(*text));
  advance(end + 1 - at_);
  return {};
}

}  // namespace

bool is_python_space(std::uint32_t code_point) {
  return is_white_space(code_point) || (code_point >= 0x1C && code_point <= 0x1F);
}

std::string_view strip_end(std::string_view text) {
  while (!text.empty()) {
    std::size_t start = text.size() - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0U) == 0x80U) --start;
    if (!is_python_space(next_utf8(text.substr(start)).code_point)) break;
    text = text.substr(0, start);
  }
  return text;
}

Result<std::vector<Token>> tokenize(std::string_view source) {
  const std::string text = normalize_newlines(source);
  return Lexer(text).run();
}

}  // namespace kvlane::jinja
