// What a parser says about a token that it did not expect.
// SPDX-License-Identifier: Apache-2.0
#include "model/jinja_token_reader.h"

namespace kvlane::jinja {
namespace {

using Kind = Token::Kind;

std::string describe(const Token& token) {
  switch (token.kind) {
    case Kind::kText: return "text";
    case Kind::kTagBegin: return "'{%'";
    case Kind::kTagEnd: return "'%}'";
    case Kind::kPrintBegin: return "'{{'";
    case Kind::kPrintEnd: return "'}}'";
    case Kind::kName:
    case Kind::kInteger:
    case Kind::kOperator: return "'" + token.text.substr(0, 64) + "'";
    case Kind::kString: return "a string";
    case Kind::kEnd: return "the end of the template";
  }
  return "a token";
}

}  // namespace

Status TokenReader::unexpected(std::string_view wanted) const {
  return corrupt(
      at_line(line(), "expected " + std::string(wanted) + ", found " + describe(peek())));
}

}  // namespace kvlane::jinja
