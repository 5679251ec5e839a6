// Recursive descent along the precedence of Jinja 3.1. What differs from Python is on purpose: '~'
// binds tighter than '+', filters and tests tighter than all binary operators.
// SPDX-License-Identifier: Apache-2.0
#include "model/jinja_expression_parser.h"

#include <algorithm>
#include <array>

namespace kvlane::jinja {
namespace {

using Kind = Token::Kind;

constexpr std::array<std::string_view, 7> kKeywords = {"and", "or", "not", "in",
                                                       "is",  "if", "else"};

template <class Node>
ExpressionPtr make(int line, Node node) {
  return std::make_unique<const Expression>(Expression{line, std::move(node)});
}

struct ComparisonOperator {
  std::string_view text;
  Comparison::Kind kind;
};
constexpr std::array<ComparisonOperator, 6> kComparisons = {{
    {"==", Comparison::Kind::kEqual},
    {"!=", Comparison::Kind::kNotEqual},
    {"<", Comparison::Kind::kLess},
    {"<=", Comparison::Kind::kLessEqual},
    {">", Comparison::Kind::kGreater},
    {">=", Comparison::Kind::kGreaterEqual},
}};

// Takes the operator, if there is one.
bool take_comparison(TokenReader& tokens, Comparison::Kind& kind) {
  if (tokens.take_name("in")) {
    kind = Comparison::Kind::kIn;
    return true;
  }
  const Token& second = tokens.peek_second();
  if (tokens.at_name("not") && second.kind == Kind::kName && second.text == "in") {
    tokens.next();
    tokens.next();
    kind = Comparison::Kind::kNotIn;
    return true;
  }
  for (const ComparisonOperator& candidate : kComparisons) {
    if (!tokens.take_operator(candidate.text)) continue;
    kind = candidate.kind;
    return true;
  }
  return false;
}

}  // namespace

Result<ExpressionPtr> ExpressionParser::parse() {
  const Nesting nesting(depth_);
  KVLANE_TRY(nesting.check(tokens_.line()));
  const int line = tokens_.line();
  KVLANE_ASSIGN(ExpressionPtr value, parse_or());
  if (!tokens_.take_name("if")) return value;
  Conditional conditional;
  conditional.then = std::move(value);
  KVLANE_ASSIGN(conditional.condition, parse_or());
  if (tokens_.take_name("else")) {
    KVLANE_ASSIGN(conditional.otherwise, parse());
  } else if (tokens_.at_name("if")) {
    return unsupported(at_line(line, "an 'if' after an 'if' without 'else' is not supported"));
  }
  return make(line, std::move(conditional));
}

Result<ExpressionPtr> ExpressionParser::parse_chain(
    Level operand, std::initializer_list<ChainOperator> operators) {
  const int line = tokens_.line();
  Chain chain;
  KVLANE_ASSIGN(chain.first, (this->*operand)());
  while (true) {
    const auto* found =
        std::find_if(operators.begin(), operators.end(), [&](const ChainOperator& o) {
          return tokens_.at_operator(o.text) || tokens_.at_name(o.text);
        });
    if (found == operators.end()) break;
    tokens_.next();
    KVLANE_ASSIGN(ExpressionPtr next, (this->*operand)());
    chain.rest.emplace_back(found->kind, std::move(next));
  }
  if (chain.rest.empty()) return std::move(chain.first);
  return make(line, std::move(chain));
}

Result<ExpressionPtr> ExpressionParser::parse_or() {
  return parse_chain(&ExpressionParser::parse_and, {{"or", Chain::Kind::kOr}});
}

Result<ExpressionPtr> ExpressionParser::parse_and() {
  return parse_chain(&ExpressionParser::parse_not, {{"and", Chain::Kind::kAnd}});
}

Result<ExpressionPtr> ExpressionParser::parse_not() {
  const int line = tokens_.line();
  if (!tokens_.take_name("not")) return parse_comparison();
  const Nesting nesting(depth_);
  KVLANE_TRY(nesting.check(line));
  KVLANE_ASSIGN(ExpressionPtr operand, parse_not());
  return make(line, Negation{Negation::Kind::kNot, std::move(operand)});
}

Result<ExpressionPtr> ExpressionParser::parse_comparison() {
  const int line = tokens_.line();
  Comparison comparison;
  KVLANE_ASSIGN(comparison.first, parse_sum());
  for (Comparison::Kind kind{}; take_comparison(tokens_, kind);) {
    KVLANE_ASSIGN(ExpressionPtr next, parse_sum());
    comparison.rest.emplace_back(kind, std::move(next));
  }
  if (comparison.rest.empty()) return std::move(comparison.first);
  return make(line, std::move(comparison));
}

Result<ExpressionPtr> ExpressionParser::parse_sum() {
  return parse_chain(&ExpressionParser::parse_concatenation,
                     {{"+", Chain::Kind::kAdd}, {"-", Chain::Kind::kSubtract}});
}

Result<ExpressionPtr> ExpressionParser::parse_concatenation() {
  return parse_chain(&ExpressionParser::parse_product, {{"~", Chain::Kind::kConcatenate}});
}

Result<ExpressionPtr> ExpressionParser::parse_product() {
  KVLANE_ASSIGN(ExpressionPtr product, parse_chain(&ExpressionParser::parse_unary_and_filters,
                                                   {{"*", Chain::Kind::kMultiply},
                                                    {"//", Chain::Kind::kFloorDivide},
                                                    {"%", Chain::Kind::kModulo}}));
  KVLANE_TRY(refuse_power_and_division());
  return product;
}

Status ExpressionParser::refuse_power_and_division() const {
  if (!tokens_.at_operator("**") && !tokens_.at_operator("/")) return {};
  return unsupported(
      at_line(tokens_.line(), "the operator '" + tokens_.peek().text + "' is not supported"));
}

Result<ExpressionPtr> ExpressionParser::parse_unary(bool with_filters) {
  const Nesting nesting(depth_);
  KVLANE_TRY(nesting.check(tokens_.line()));
  const int line = tokens_.line();
  ExpressionPtr value;
  if (tokens_.at_operator("-") || tokens_.at_operator("+")) {
    const bool minus = tokens_.next().text == "-";
    // A filter after "-x" applies to the negative.
    KVLANE_ASSIGN(ExpressionPtr operand, parse_unary(false));
    value = make(
        line, Negation{minus ? Negation::Kind::kMinus : Negation::Kind::kPlus, std::move(operand)});
  } else {
    KVLANE_ASSIGN(value, parse_primary());
  }
  return parse_postfix(std::move(value), with_filters);
}

Result<ExpressionPtr> ExpressionParser::parse_primary() {
  const int line = tokens_.line();
  switch (tokens_.peek().kind) {
    case Kind::kName: return parse_name();
    case Kind::kString: return parse_string();
    case Kind::kInteger: return make(line, Literal{Value::integer(tokens_.next().integer)});
    default: break;
  }
  if (tokens_.take_operator("(")) return parse_parentheses();
  if (tokens_.take_operator("[")) return parse_list();
  if (tokens_.take_operator("{")) return parse_dict();
  return tokens_.unexpected("a value");
}

Result<ExpressionPtr> ExpressionParser::parse_name() {
  const int line = tokens_.line();
  if (std::find(kKeywords.begin(), kKeywords.end(), tokens_.peek().text) != kKeywords.end()) {
    return tokens_.unexpected("a value");
  }
  std::string name = std::move(tokens_.next().text);
  if (name == "true" || name == "True") return make(line, Literal{Value::boolean(true)});
  if (name == "false" || name == "False") return make(line, Literal{Value::boolean(false)});
  if (name == "none" || name == "None") return make(line, Literal{Value::none()});
  if (!tokens_.at_operator("(")) return make(line, Name{std::move(name)});
  FunctionCall call;
  call.name = std::move(name);
  KVLANE_TRY(parse_arguments(call.arguments));
  return make(line, std::move(call));
}

Result<ExpressionPtr> ExpressionParser::parse_string() {
  const int line = tokens_.line();
  std::string text;
  while (tokens_.at(Kind::kString)) text += tokens_.next().text;  // neighbours are joined
  return make(line, Literal{Value::text(std::move(text))});
}

Result<ExpressionPtr> ExpressionParser::parse_parentheses() {
  const int line = tokens_.line();
  ListLiteral tuple;
  tuple.kind = List::Kind::kTuple;
  if (tokens_.take_operator(")")) return make(line, std::move(tuple));
  KVLANE_ASSIGN(ExpressionPtr first, parse());
  if (tokens_.take_operator(")")) return first;
  tuple.items.push_back(std::move(first));
  while (!tokens_.take_operator(")")) {
    KVLANE_TRY(tokens_.expect_operator(","));
    if (tokens_.take_operator(")")) break;
    KVLANE_ASSIGN(ExpressionPtr item, parse());
    tuple.items.push_back(std::move(item));
  }
  return make(line, std::move(tuple));
}

Result<ExpressionPtr> ExpressionParser::parse_list() {
  const int line = tokens_.line();
  ListLiteral list;
  while (!tokens_.take_operator("]")) {
    if (!list.items.empty()) {
      KVLANE_TRY(tokens_.expect_operator(","));
      if (tokens_.take_operator("]")) break;
    }
    KVLANE_ASSIGN(ExpressionPtr item, parse());
    list.items.push_back(std::move(item));
  }
  return make(line, std::move(list));
}

Result<ExpressionPtr> ExpressionParser::parse_dict() {
  const int line = tokens_.line();
  DictLiteral dict;
  while (!tokens_.take_operator("}")) {
    if (!dict.items.empty()) {
      KVLANE_TRY(tokens_.expect_operator(","));
      if (tokens_.take_operator("}")) break;
    }
    KVLANE_ASSIGN(ExpressionPtr key, parse());
    KVLANE_TRY(tokens_.expect_operator(":"));
    KVLANE_ASSIGN(ExpressionPtr value, parse());
    dict.items.emplace_back(std::move(key), std::move(value));
  }
  return make(line, std::move(dict));
}

Result<ExpressionPtr> ExpressionParser::parse_postfix(ExpressionPtr first, bool with_filters) {
  const int line = first->line;
  Postfix postfix;
  postfix.first = std::move(first);
  while (true) {
    KVLANE_ASSIGN(const bool more, parse_step(postfix.steps, with_filters));
    if (!more) break;
  }
  if (postfix.steps.empty()) return std::move(postfix.first);
  return make(line, std::move(postfix));
}

Result<bool> ExpressionParser::parse_step(std::vector<Postfix::Step>& steps, bool with_filters) {
  const int line = tokens_.line();
  if (tokens_.at_operator("(")) {
    return unsupported(at_line(line, "a call of something that has no name is not supported"));
  }
  // A filter or test takes the whole expression before it, so no access follows one without
  // brackets; Jinja parses "x|f.g" as a filter named "f.g".
  const bool filtered = !steps.empty() && (std::holds_alternative<FilterCall>(steps.back().node) ||
                                           std::holds_alternative<TestCall>(steps.back().node));
  if (!filtered) {
    KVLANE_ASSIGN(const bool access, parse_access(steps));
    if (access) return true;
  }
  if (!with_filters) return false;
  if (tokens_.take_name("is")) {
    KVLANE_TRY(parse_test(steps));
    return true;
  }
  if (!tokens_.take_operator("|")) return false;
  if (!tokens_.at(Kind::kName)) return tokens_.unexpected("the name of a filter");
  FilterCall filter;
  filter.name = std::move(tokens_.next().text);
  if (tokens_.at_operator("(")) KVLANE_TRY(parse_arguments(filter.arguments));
  steps.push_back({line, std::move(filter)});
  return true;
}

// ".name", ".name(...)", "[...]".
Result<bool> ExpressionParser::parse_access(std::vector<Postfix::Step>& steps) {
  const int line = tokens_.line();
  if (tokens_.take_operator("[")) {
    KVLANE_TRY(parse_subscript(steps));
    return true;
  }
  if (!tokens_.take_operator(".")) return false;
  if (!tokens_.at(Kind::kName)) return tokens_.unexpected("the name of an attribute");
  std::string name = std::move(tokens_.next().text);
  if (!tokens_.at_operator("(")) {
    steps.push_back({line, Attribute{std::move(name)}});
    return true;
  }
  MethodCall call;
  call.name = std::move(name);
  KVLANE_TRY(parse_arguments(call.arguments));
  steps.push_back({line, std::move(call)});
  return true;
}

Status ExpressionParser::parse_subscript(std::vector<Postfix::Step>& steps) {
  const int line = tokens_.line();
  std::array<ExpressionPtr, 3> parts;
  std::size_t count = 0;
  while (true) {
    if (!tokens_.at_operator(":") && !tokens_.at_operator("]")) {
      KVLANE_ASSIGN(parts[count], parse());
    }
    if (count == 2 || !tokens_.take_operator(":")) break;
    ++count;
  }
  KVLANE_TRY(tokens_.expect_operator("]"));
  if (count > 0) {
    steps.push_back({line, Slice{std::move(parts[0]), std::move(parts[1]), std::move(parts[2])}});
    return {};
  }
  if (parts[0] == nullptr) return corrupt(at_line(line, "'[]' without an index"));
  steps.push_back({line, Subscript{std::move(parts[0])}});
  return {};
}

Status ExpressionParser::parse_test(std::vector<Postfix::Step>& steps) {
  const int line = tokens_.line();
  TestCall test;
  test.negated = tokens_.take_name("not");
  if (!tokens_.at(Kind::kName)) return tokens_.unexpected("the name of a test");
  test.name = std::move(tokens_.next().text);
  const bool name = tokens_.at(Kind::kName) && !tokens_.at_name("else") && !tokens_.at_name("or") &&
                    !tokens_.at_name("and");
  if (tokens_.at_operator("(")) {
    KVLANE_TRY(parse_arguments(test.arguments));
  } else if (tokens_.at_name("is")) {
    return corrupt(at_line(line, "tests cannot be chained with 'is'"));
  } else if (name && tokens_.at_name("if")) {
    // Jinja would take "if" for the argument of the test and then complain.
    return corrupt(at_line(line, "'if' directly after a test needs brackets around the test"));
  } else if (name || tokens_.at(Kind::kString) || tokens_.at(Kind::kInteger) ||
             tokens_.at_operator("[") || tokens_.at_operator("{")) {
    // One argument may follow without brackets: "x is divisibleby 3".
    KVLANE_ASSIGN(ExpressionPtr first, parse_primary());
    KVLANE_ASSIGN(ExpressionPtr argument, parse_postfix(std::move(first), false));
    test.arguments.positional.push_back(std::move(argument));
  }
  steps.push_back({line, std::move(test)});
  return {};
}

Status ExpressionParser::parse_arguments(Arguments& arguments) {
  KVLANE_TRY(tokens_.expect_operator("("));
  for (bool first = true; !tokens_.take_operator(")"); first = false) {
    if (!first) {
      KVLANE_TRY(tokens_.expect_operator(","));
      if (tokens_.take_operator(")")) break;
    }
    if (tokens_.at_operator("*") || tokens_.at_operator("**")) {
      return unsupported(at_line(tokens_.line(), "arguments with '*' are not supported"));
    }
    const Token& second = tokens_.peek_second();
    if (tokens_.at(Kind::kName) && second.kind == Kind::kOperator && second.text == "=") {
      std::string name = std::move(tokens_.next().text);
      tokens_.next();
      KVLANE_ASSIGN(ExpressionPtr value, parse());
      arguments.named.emplace_back(std::move(name), std::move(value));
      continue;
    }
    if (!arguments.named.empty()) {
      return corrupt(at_line(tokens_.line(), "an argument without a name follows one with a name"));
    }
    KVLANE_ASSIGN(ExpressionPtr value, parse());
    arguments.positional.push_back(std::move(value));
  }
  return {};
}

}  // namespace kvlane::jinja
