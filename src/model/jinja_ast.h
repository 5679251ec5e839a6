// The syntax tree of a chat template.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/jinja_value.h"

namespace kvlane::jinja {

// How deep expressions and statements may nest, together. Parsing, rendering and freeing are
// recursive; chains ("a + b + c", "x.y|f|g") are lists here and do not count.
inline constexpr int kNestingMax = 50;

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct Literal {
  Value value;
};
struct Name {
  std::string name;
};
struct ListLiteral {
  List::Kind kind = List::Kind::kList;
  std::vector<ExpressionPtr> items;
};
struct DictLiteral {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
};
struct Arguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};
struct FunctionCall {  // name(...)
  std::string name;
  Arguments arguments;
};
struct Negation {  // not operand, -operand, +operand
  enum class Kind { kNot, kMinus, kPlus };
  Kind kind;
  ExpressionPtr operand;
};
struct Conditional {  // then if condition else otherwise
  ExpressionPtr condition;
  ExpressionPtr then;
  ExpressionPtr otherwise;  // null: undefined
};
// Operators of one precedence, applied from left to right.
struct Chain {
  enum class Kind { kAnd, kOr, kAdd, kSubtract, kMultiply, kFloorDivide, kModulo, kConcatenate };
  ExpressionPtr first;
  std::vector<std::pair<Kind, ExpressionPtr>> rest;
};
// first < a <= b: each pair of neighbours must hold, as in Python.
struct Comparison {
  enum class Kind { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
  ExpressionPtr first;
  std::vector<std::pair<Kind, ExpressionPtr>> rest;
};

struct Attribute {  // .name
  std::string name;
};
struct Subscript {  // [index]
  ExpressionPtr index;
};
struct Slice {  // [start:stop:step]; each may be null
  ExpressionPtr start;
  ExpressionPtr stop;
  ExpressionPtr step;
};
struct MethodCall {  // .name(...)
  std::string name;
  Arguments arguments;
};
struct FilterCall {  // |name(...)
  std::string name;
  Arguments arguments;
};
struct TestCall {  // is name(...), is not name(...)
  std::string name;
  Arguments arguments;
  bool negated;
};
// What is done to a value, step by step.
struct Postfix {
  struct Step {
    int line;
    std::variant<Attribute, Subscript, Slice, MethodCall, FilterCall, TestCall> node;
  };
  ExpressionPtr first;
  std::vector<Step> steps;
};

struct Expression {
  int line;
  std::variant<Literal, Name, ListLiteral, DictLiteral, FunctionCall, Negation, Conditional, Chain,
               Comparison, Postfix>
      node;
};

struct Statement;
using Block = std::vector<Statement>;

struct Output {  // text, or {{ expression }}
  std::string text;
  ExpressionPtr expression;  // null: text
};
struct If {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block otherwise;
};
struct For {
  std::vector<std::string> targets;  // several: each item is unpacked
  ExpressionPtr iterable;
  ExpressionPtr condition;  // of the items that count; null: all
  Block body;
  Block otherwise;  // when there was no item
};
struct Set {
  std::vector<std::string> targets;
  std::string attribute;  // not empty: of the namespace that is the one target
  ExpressionPtr value;
};
struct Jump {
  enum class Kind { kBreak, kContinue };
  Kind kind;
};

struct Statement {
  int line;
  std::variant<Output, If, For, Set, Jump> node;
};

}  // namespace kvlane::jinja
