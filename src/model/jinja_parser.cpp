// Statements of chat templates: text, output, if, for, set, break, continue.
// SPDX-License-Identifier: Apache-2.0
#include "model/jinja_parser.h"

#include <initializer_list>

#include "model/jinja_expression_parser.h"
#include "model/jinja_token_reader.h"
#include "model/utf8.h"

namespace kvlane::jinja {
namespace {

using Kind = Token::Kind;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens)
      : tokens_(std::move(tokens)), expressions_(tokens_, depth_) {}

  Result<Block> run() {
    KVLANE_ASSIGN(Block block, parse_block({}));
    if (!tokens_.at(Kind::kEnd)) return tokens_.unexpected("the end of the template");
    return block;
  }

 private:
  // Up to a tag with one of these names, whose "{%" is read and whose name comes next; without
  // names, up to the end of the template.
  Result<Block> parse_block(std::initializer_list<std::string_view> ends);
  Result<Statement> parse_tag();
  Result<Statement> parse_output();
  Result<Statement> parse_if(int line);
  Result<Statement> parse_for(int line);
  Result<Statement> parse_set(int line);
  Result<std::vector<std::string>> parse_targets();
  Status end_tag() { return tokens_.expect(Kind::kTagEnd, "'%}'"); }

  TokenReader tokens_;
  int depth_ = 0;
  int loops_ = 0;  // how many loops are around
  ExpressionParser expressions_;
};

Result<Block> Parser::parse_block(std::initializer_list<std::string_view> ends) {
  const Nesting nesting(depth_);
  KVLANE_TRY(nesting.check(tokens_.line()));
  Block block;
  while (!tokens_.at(Kind::kEnd)) {
    const int line = tokens_.line();
    if (tokens_.at(Kind::kText)) {
      block.push_back({line, Output{std::move(tokens_.next().text), nullptr}});
      continue;
    }
    if (tokens_.at(Kind::kPrintBegin)) {
      KVLANE_ASSIGN(Statement output, parse_output());
      block.push_back(std::move(output));
      continue;
    }
    KVLANE_TRY(tokens_.expect(Kind::kTagBegin, "a tag"));
    for (const std::string_view end : ends) {
      if (tokens_.at_name(end)) return block;
    }
    KVLANE_ASSIGN(Statement statement, parse_tag());
    block.push_back(std::move(statement));
  }
  if (ends.size() == 0) return block;
  return tokens_.unexpected("'{% " + std::string(*(ends.end() - 1)) + " %}'");
}

Result<Statement> Parser::parse_output() {
  const int line = tokens_.next().line;
  Output output;
  KVLANE_ASSIGN(output.expression, expressions_.parse());
  KVLANE_TRY(tokens_.expect(Kind::kPrintEnd, "'}}'"));
  return Statement{line, std::move(output)};
}

Result<Statement> Parser::parse_tag() {
  const int line = tokens_.line();
  if (!tokens_.at(Kind::kName)) return tokens_.unexpected("the name of a tag");
  const std::string name = tokens_.next().text;
  if (name == "if") return parse_if(line);
  if (name == "for") return parse_for(line);
  if (name == "set") return parse_set(line);
  if (name == "break" || name == "continue") {
    if (loops_ == 0) return corrupt(at_line(line, "'" + name + "' outside a loop"));
    KVLANE_TRY(end_tag());
    return Statement{line, Jump{name == "break" ? Jump::Kind::kBreak : Jump::Kind::kContinue}};
  }
  for (const std::string_view end : {"elif", "else", "endif", "endfor"}) {
    if (name == end) return corrupt(at_line(line, "'" + name + "' without its beginning"));
  }
  return unsupported(at_line(line, "the tag '" + name.substr(0, 64) + "' is not supported"));
}

Result<Statement> Parser::parse_if(int line) {
  If node;
  while (true) {
    KVLANE_ASSIGN(ExpressionPtr condition, expressions_.parse_without_conditional());
    KVLANE_TRY(end_tag());
    KVLANE_ASSIGN(Block body, parse_block({"elif", "else", "endif"}));
    node.branches.emplace_back(std::move(condition), std::move(body));
    if (!tokens_.take_name("elif")) break;
  }
  if (tokens_.take_name("else")) {
    KVLANE_TRY(end_tag());
    KVLANE_ASSIGN(node.otherwise, parse_block({"endif"}));
  }
  tokens_.next();
  KVLANE_TRY(end_tag());
  return Statement{line, std::move(node)};
}

Result<Statement> Parser::parse_for(int line) {
  For node;
  KVLANE_ASSIGN(node.targets, parse_targets());
  if (!tokens_.take_name("in")) return tokens_.unexpected("'in'");
  KVLANE_ASSIGN(node.iterable, expressions_.parse_without_conditional());
  if (tokens_.take_name("if")) {
    KVLANE_ASSIGN(node.condition, expressions_.parse());
  }
  if (tokens_.at_name("recursive")) {
    return unsupported(at_line(line, "a recursive 'for' is not supported"));
  }
  KVLANE_TRY(end_tag());
  ++loops_;
  KVLANE_ASSIGN(node.body, parse_block({"else", "endfor"}));
  --loops_;
  if (tokens_.take_name("else")) {
    KVLANE_TRY(end_tag());
    KVLANE_ASSIGN(node.otherwise, parse_block({"endfor"}));
  }
  tokens_.next();
  KVLANE_TRY(end_tag());
  return Statement{line, std::move(node)};
}

Result<Statement> Parser::parse_set(int line) {
  Set node;
  KVLANE_ASSIGN(node.targets, parse_targets());
  if (node.targets.size() == 1 && tokens_.take_operator(".")) {
    if (!tokens_.at(Kind::kName)) return tokens_.unexpected("the name of an attribute");
    node.attribute = tokens_.next().text;
  }
  if (tokens_.at(Kind::kTagEnd) || tokens_.at_operator("|")) {
    return unsupported(at_line(line, "a 'set' around a block is not supported"));
  }
  KVLANE_TRY(tokens_.expect_operator("="));
  KVLANE_ASSIGN(node.value, expressions_.parse());
  if (tokens_.at_operator(",")) {
    return unsupported(
        at_line(line, "a 'set' to several values without brackets is not supported"));
  }
  KVLANE_TRY(end_tag());
  return Statement{line, std::move(node)};
}

// "a" or "a, b" or "(a, b)".
Result<std::vector<std::string>> Parser::parse_targets() {
  std::vector<std::string> targets;
  const bool brackets = tokens_.take_operator("(");
  do {
    const int line = tokens_.line();
    if (!tokens_.at(Kind::kName)) return tokens_.unexpected("the name of a variable");
    targets.push_back(tokens_.next().text);
    for (const std::string_view reserved :
         {"true", "false", "none", "True", "False", "None", "loop"}) {
      if (targets.back() != reserved) continue;
      return corrupt(at_line(line, "'" + targets.back() + "' cannot be assigned to"));
    }
  } while (tokens_.take_operator(","));
  if (brackets) KVLANE_TRY(tokens_.expect_operator(")"));
  return targets;
}

}  // namespace

Result<Block> parse(std::string_view source) {
  if (source.size() > kTemplateBytesMax) {
    return exhausted("a chat template of " + std::to_string(source.size()) +
                     " bytes; kvlane takes up to " + std::to_string(kTemplateBytesMax));
  }
  if (const auto offset = find_invalid_utf8(source)) {
    return corrupt("the chat template is not valid UTF-8 at byte " + std::to_string(*offset));
  }
  KVLANE_ASSIGN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace kvlane::jinja
