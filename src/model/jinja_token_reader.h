// The tokens of a template as a parser reads them, with its errors and its limit of nesting.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/jinja_lexer.h"

namespace kvlane::jinja {

class TokenReader {
 public:
  // `tokens` ends with kEnd.
  explicit TokenReader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& peek() const { return tokens_[at_]; }
  // The token after the next one; kEnd if there is none.
  const Token& peek_second() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  int line() const { return peek().line; }
  // The token that was read; the last one is never passed. May be moved from.
  Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }

  bool at(Token::Kind kind) const { return peek().kind == kind; }
  bool at_operator(std::string_view text) const {
    return at(Token::Kind::kOperator) && peek().text == text;
  }
  bool at_name(std::string_view text) const {
    return at(Token::Kind::kName) && peek().text == text;
  }
  bool take_operator(std::string_view text) { return at_operator(text) && (next(), true); }
  bool take_name(std::string_view text) { return at_name(text) && (next(), true); }

  Status expect(Token::Kind kind, std::string_view what) {
    if (!at(kind)) return unexpected(what);
    next();
    return {};
  }
  Status expect_operator(std::string_view text) {
    return take_operator(text) ? Status() : unexpected("'" + std::string(text) + "'");
  }
  // The next token is not what it must be.
  Status unexpected(std::string_view wanted) const;

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

}  // namespace kvlane::jinja
