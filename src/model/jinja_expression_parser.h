// Expressions of chat templates, by precedence.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kvlane/status.h"
#include "model/jinja_ast.h"
#include "model/jinja_token_reader.h"

namespace kvlane::jinja {

// Counts how deep the parser is while it lives.
class Nesting {
 public:
  explicit Nesting(int& depth) : depth_(depth) { ++depth_; }
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

  Status check(int line) const {
    if (depth_ <= kNestingMax) return {};
    return exhausted(at_line(line, "nesting deeper than " + std::to_string(kNestingMax)));
  }

 private:
  int& depth_;
};

class ExpressionParser {
 public:
  // Both must outlive this; `depth` is how deep the statements around are.
  ExpressionParser(TokenReader& tokens, int& depth) : tokens_(tokens), depth_(depth) {}

  // A whole expression, "a if b else c" included.
  Result<ExpressionPtr> parse();
  // Without that: what stands after "in" of a for and in conditions, where "if" means something
  // else.
  Result<ExpressionPtr> parse_without_conditional() { return parse_or(); }

 private:
  using Level = Result<ExpressionPtr> (ExpressionParser::*)();
  struct ChainOperator {
    std::string_view text;
    Chain::Kind kind;
  };

  Result<ExpressionPtr> parse_or();
  Result<ExpressionPtr> parse_and();
  Result<ExpressionPtr> parse_not();
  Result<ExpressionPtr> parse_comparison();
  Result<ExpressionPtr> parse_sum();
  Result<ExpressionPtr> parse_concatenation();
  Result<ExpressionPtr> parse_product();
  Result<ExpressionPtr> parse_unary_and_filters() { return parse_unary(true); }
  Result<ExpressionPtr> parse_unary(bool with_filters);
  Result<ExpressionPtr> parse_primary();
  Result<ExpressionPtr> parse_name();
  Result<ExpressionPtr> parse_string();
  Result<ExpressionPtr> parse_parentheses();
  Result<ExpressionPtr> parse_list();
  Result<ExpressionPtr> parse_dict();

  Result<ExpressionPtr> parse_chain(Level operand, std::initializer_list<ChainOperator> operators);
  Result<ExpressionPtr> parse_postfix(ExpressionPtr first, bool with_filters);
  // One more step of a postfix expression; false when there is none.
  Result<bool> parse_step(std::vector<Postfix::Step>& steps, bool with_filters);
  Result<bool> parse_access(std::vector<Postfix::Step>& steps);
  Status parse_subscript(std::vector<Postfix::Step>& steps);
  Status parse_test(std::vector<Postfix::Step>& steps);
  Status parse_arguments(Arguments& arguments);
  Status refuse_power_and_division() const;

  TokenReader& tokens_;
  int& depth_;
};

}  // namespace kvlane::jinja
