// A walk over the syntax tree with a stack of scopes: one for the template, one for each turn of a
// loop.
// SPDX-License-Identifier: Apache-2.0
#include "model/jinja_interpreter.h"

#include <algorithm>
#include <array>

#include "model/jinja_lexer.h"
#include "model/jinja_operators.h"

namespace kvlane::jinja {
namespace {

// A namespace weighs more than a number.
constexpr std::int64_t kNamespaceWork = 16;

class Interpreter {
 public:
  Interpreter(Variables variables, const Clock& clock) : clock_(clock) {
    scopes_.push_back(std::move(variables));
  }
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;
  // Namespaces can hold each other in circles, which would keep them alive.
  ~Interpreter() {
    for (const std::shared_ptr<Namespace>& space : namespaces_) space->attributes.clear();
  }

  Result<std::string> run(const Block& block) {
    const Result<Flow> flow = run_block(block);
    if (flow.ok()) return std::move(output_);
    return Status(flow.status().code(), at_line(line_, flow.status().message()));
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  Result<Flow> run_block(const Block& block);
  Result<Flow> run(const Output& output);
  Result<Flow> run(const If& statement);
  Result<Flow> run(const For& statement);
  Result<Flow> run(const Set& statement);
  Result<Flow> run(const Jump& jump) {
    return jump.kind == Jump::Kind::kBreak ? Flow::kBreak : Flow::kContinue;
  }
  Result<std::shared_ptr<const List>> loop_items(const For& statement);
  Result<bool> run_turns(const For& statement, const std::shared_ptr<Loop>& loop);

  Result<Value> evaluate(const Expression& expression);
  // What may be a stream.
  Result<Value> evaluate_iterable(const Expression& expression);
  Result<Value> evaluate(const Literal& literal) { return literal.value; }
  Result<Value> evaluate(const Name& name) { return look_up(name.name); }
  Result<Value> evaluate(const ListLiteral& literal);
  Result<Value> evaluate(const DictLiteral& literal);
  Result<Value> evaluate(const FunctionCall& call);
  Result<Value> evaluate(const Negation& negation);
  Result<Value> evaluate(const Conditional& conditional);
  Result<Value> evaluate(const Chain& chain);
  Result<Value> evaluate(const Comparison& comparison);
  Result<Value> evaluate(const Postfix& postfix);
  Result<Value> take_step(const Value& value, const Attribute& step);
  Result<Value> take_step(const Value& value, const Subscript& step);
  Result<Value> take_step(const Value& value, const Slice& step);
  Result<Value> take_step(const Value& value, const MethodCall& step);
  Result<Value> take_step(const Value& value, const FilterCall& step);
  Result<Value> take_step(const Value& value, const TestCall& step);
  Result<Values> evaluate_arguments(const Arguments& arguments);
  Result<Value> make_namespace(Values arguments);

  const Value* find(std::string_view name) const;
  Value look_up(std::string_view name) const;
  void assign(std::string_view name, Value value);
  // One target takes the value, several its items.
  Status assign_targets(const std::vector<std::string>& targets, const Value& value);

  const Clock& clock_;
  Budget budget_;
  int line_ = 1;  // of what runs now; where an error happened
  std::string output_;
  std::vector<Variables> scopes_;  // the innermost last
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

// ---- statements ----

Result<Interpreter::Flow> Interpreter::run_block(const Block& block) {
  for (const Statement& statement : block) {
    line_ = statement.line;
    KVLANE_TRY(budget_.spend(1));
    KVLANE_ASSIGN(const Flow flow,
                  std::visit([&](const auto& node) { return run(node); }, statement.node));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::run(const Output& output) {
  std::string printed;
  std::string_view text = output.text;
  if (output.expression != nullptr) {
    KVLANE_ASSIGN(const Value value, evaluate(*output.expression));
    KVLANE_ASSIGN(printed, to_text(value));
    text = printed;
  }
  KVLANE_TRY(budget_.spend_bytes(text.size()));
  if (text.size() > kRenderedBytesMax - output_.size()) {
    return exhausted("the prompt has more than " + std::to_string(kRenderedBytesMax) + " bytes");
  }
  output_.append(text);
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::run(const If& statement) {
  for (const auto& [condition, body] : statement.branches) {
    KVLANE_ASSIGN(const Value value, evaluate(*condition));
    if (value.truthy()) return run_block(body);
  }
  return run_block(statement.otherwise);
}

Result<Interpreter::Flow> Interpreter::run(const For& statement) {
  KVLANE_ASSIGN(const std::shared_ptr<const List> items, loop_items(statement));
  auto loop = std::make_shared<Loop>();
  loop->items = items;
  KVLANE_ASSIGN(const bool turned, run_turns(statement, loop));
  return turned ? Flow::kNext : run_block(statement.otherwise);
}

// What the loop runs over: the items that fulfil its condition.
Result<std::shared_ptr<const List>> Interpreter::loop_items(const For& statement) {
  KVLANE_ASSIGN(const Value iterable, evaluate_iterable(*statement.iterable));
  KVLANE_ASSIGN(const Value all, to_list(iterable, budget_));
  if (statement.condition == nullptr) return all.shared_list();
  std::vector<Value> chosen;
  for (const Value& item : all.as_list()->items) {
    scopes_.emplace_back();
    KVLANE_TRY(assign_targets(statement.targets, item));
    KVLANE_ASSIGN(const Value condition, evaluate(*statement.condition));
    scopes_.pop_back();
    if (condition.truthy()) chosen.push_back(item);
  }
  KVLANE_ASSIGN(const Value list, make_list(std::move(chosen), budget_));
  return list.shared_list();
}

// Whether a turn came to its end. A loop that only ever breaks or continues runs its `else`, in
// Jinja as here.
Result<bool> Interpreter::run_turns(const For& statement, const std::shared_ptr<Loop>& loop) {
  bool turned = false;
  for (loop->index = 0; loop->index < loop->items->items.size(); ++loop->index) {
    KVLANE_TRY(budget_.spend(1));
    // What a turn assigns is gone after it.
    scopes_.emplace_back();
    assign("loop", Value::of(std::shared_ptr<const Loop>(loop)));
    KVLANE_TRY(assign_targets(statement.targets, loop->items->items[loop->index]));
    KVLANE_ASSIGN(const Flow flow, run_block(statement.body));
    scopes_.pop_back();
    if (flow == Flow::kBreak) break;
    turned = turned || flow == Flow::kNext;
  }
  return turned;
}

Result<Interpreter::Flow> Interpreter::run(const Set& statement) {
  KVLANE_ASSIGN(Value value, evaluate(*statement.value));
  if (statement.attribute.empty()) {
    KVLANE_TRY(assign_targets(statement.targets, value));
    return Flow::kNext;
  }
  const Value target = look_up(statement.targets.front());
  Namespace* space = target.as_namespace();
  if (space == nullptr) {
    return invalid_argument("'" + statement.targets.front() + "' is no namespace, so '" +
                            statement.attribute + "' cannot be set");
  }
  space->attributes.insert_or_assign(statement.attribute, std::move(value));
  return Flow::kNext;
}

// ---- expressions ----

Result<Value> Interpreter::evaluate(const Expression& expression) {
  KVLANE_ASSIGN(Value value, evaluate_iterable(expression));
  if (is_stream(value)) return stream_error();
  return value;
}

Result<Value> Interpreter::evaluate_iterable(const Expression& expression) {
  line_ = expression.line;
  KVLANE_TRY(budget_.spend(1));
  return std::visit([&](const auto& node) { return evaluate(node); }, expression.node);
}

Result<Value> Interpreter::evaluate(const ListLiteral& literal) {
  std::vector<Value> items;
  for (const ExpressionPtr& item : literal.items) {
    KVLANE_ASSIGN(Value value, evaluate(*item));
    items.push_back(std::move(value));
  }
  return make_list(std::move(items), budget_, literal.kind);
}

Result<Value> Interpreter::evaluate(const DictLiteral& literal) {
  std::vector<std::pair<std::string, Value>> items;
  for (const auto& [key_expression, value_expression] : literal.items) {
    KVLANE_ASSIGN(const Value key, evaluate(*key_expression));
    KVLANE_ASSIGN(Value value, evaluate(*value_expression));
    if (key.as_text() == nullptr) {
      return unsupported(std::string(key.kind()) + " as the key of a dict is not supported");
    }
    // A key given twice stays in its place and takes the later value.
    const auto known = std::find_if(items.begin(), items.end(),
                                    [&](const auto& item) { return item.first == *key.as_text(); });
    if (known != items.end()) {
      known->second = std::move(value);
    } else {
      items.emplace_back(*key.as_text(), std::move(value));
    }
  }
  return make_dict(std::move(items), budget_);
}

Result<Value> Interpreter::evaluate(const FunctionCall& call) {
  if (const Value* variable = find(call.name)) {
    return invalid_argument("'" + call.name + "' is " + std::string(variable->kind()) +
                            ", which cannot be called");
  }
  KVLANE_ASSIGN(Values arguments, evaluate_arguments(call.arguments));
  if (call.name == "namespace") return make_namespace(std::move(arguments));
  return call_function(call.name, arguments, clock_, budget_);
}

Result<Value> Interpreter::make_namespace(Values arguments) {
  if (!arguments.positional.empty()) {
    return unsupported("'namespace' with arguments without names is not supported");
  }
  KVLANE_TRY(budget_.spend(kNamespaceWork));
  namespaces_.push_back(std::make_shared<Namespace>());
  for (auto& [name, value] : arguments.named) {
    namespaces_.back()->attributes.insert_or_assign(std::move(name), std::move(value));
  }
  return Value::of(namespaces_.back());
}

Result<Value> Interpreter::evaluate(const Negation& negation) {
  KVLANE_ASSIGN(const Value operand, evaluate(*negation.operand));
  return negate(negation.kind, operand);
}

Result<Value> Interpreter::evaluate(const Conditional& conditional) {
  KVLANE_ASSIGN(const Value condition, evaluate(*conditional.condition));
  if (condition.truthy()) return evaluate(*conditional.then);
  if (conditional.otherwise != nullptr) return evaluate(*conditional.otherwise);
  return Value();
}

Result<Value> Interpreter::evaluate(const Chain& chain) {
  KVLANE_ASSIGN(Value value, evaluate(*chain.first));
  for (const auto& [kind, operand] : chain.rest) {
    const bool logical = kind == Chain::Kind::kAnd || kind == Chain::Kind::kOr;
    // What decides is the result itself, not its truth, and the rest is not looked at.
    if (logical && value.truthy() == (kind == Chain::Kind::kOr)) return value;
    KVLANE_ASSIGN(Value right, evaluate(*operand));
    if (logical) {
      value = std::move(right);
    } else {
      KVLANE_ASSIGN(value, apply(kind, value, right, budget_));
    }
  }
  return value;
}

Result<Value> Interpreter::evaluate(const Comparison& comparison) {
  KVLANE_ASSIGN(Value left, evaluate(*comparison.first));
  for (const auto& [kind, operand] : comparison.rest) {
    KVLANE_ASSIGN(Value right, evaluate(*operand));
    KVLANE_ASSIGN(const bool holds, compare(kind, left, right, budget_));
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Result<Value> Interpreter::evaluate(const Postfix& postfix) {
  KVLANE_ASSIGN(Value value, evaluate_iterable(*postfix.first));
  for (const Postfix::Step& step : postfix.steps) {
    line_ = step.line;
    if (is_stream(value) && !std::holds_alternative<FilterCall>(step.node)) return stream_error();
    KVLANE_TRY(budget_.spend(1));
    KVLANE_ASSIGN(value,
                  std::visit([&](const auto& node) { return take_step(value, node); }, step.node));
  }
  return value;
}

Result<Value> Interpreter::take_step(const Value& value, const Attribute& step) {
  return get_attribute(value, step.name);
}

Result<Value> Interpreter::take_step(const Value& value, const Subscript& step) {
  KVLANE_ASSIGN(const Value index, evaluate(*step.index));
  return get_item(value, index, budget_);
}

Result<Value> Interpreter::take_step(const Value& value, const Slice& step) {
  std::array<Value, 3> bounds = {Value::none(), Value::none(), Value::none()};
  const std::array<const Expression*, 3> expressions = {step.start.get(), step.stop.get(),
                                                        step.step.get()};
  for (std::size_t part = 0; part < bounds.size(); ++part) {
    if (expressions[part] == nullptr) continue;
    KVLANE_ASSIGN(bounds[part], evaluate(*expressions[part]));
  }
  return get_slice(value, bounds, budget_);
}

Result<Value> Interpreter::take_step(const Value& value, const MethodCall& step) {
  KVLANE_ASSIGN(const Values arguments, evaluate_arguments(step.arguments));
  if (value.is_undefined()) return undefined_error(value);
  return call_method(step.name, value, arguments, budget_);
}

Result<Value> Interpreter::take_step(const Value& value, const FilterCall& step) {
  KVLANE_ASSIGN(const Values arguments, evaluate_arguments(step.arguments));
  return call_filter(step.name, value, arguments, budget_);
}

Result<Value> Interpreter::take_step(const Value& value, const TestCall& step) {
  KVLANE_ASSIGN(const Values arguments, evaluate_arguments(step.arguments));
  KVLANE_ASSIGN(const bool holds, call_test(step.name, value, arguments, budget_));
  return Value::boolean(holds != step.negated);
}

Result<Values> Interpreter::evaluate_arguments(const Arguments& arguments) {
  Values values;
  for (const ExpressionPtr& argument : arguments.positional) {
    KVLANE_ASSIGN(Value value, evaluate(*argument));
    values.positional.push_back(std::move(value));
  }
  for (const auto& [name, argument] : arguments.named) {
    KVLANE_ASSIGN(Value value, evaluate(*argument));
    values.named.emplace_back(name, std::move(value));
  }
  return values;
}

// ---- variables ----

const Value* Interpreter::find(std::string_view name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    for (const auto& [known, value] : *scope) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

Value Interpreter::look_up(std::string_view name) const {
  if (const Value* value = find(name)) return *value;
  if (is_function(name)) return Value::of(Function{name});
  return Value::of(Undefined{name});
}

void Interpreter::assign(std::string_view name, Value value) {
  for (auto& [known, held] : scopes_.back()) {
    if (known != name) continue;
    held = std::move(value);
    return;
  }
  scopes_.back().emplace_back(name, std::move(value));
}

Status Interpreter::assign_targets(const std::vector<std::string>& targets, const Value& value) {
  if (targets.size() == 1) {
    assign(targets.front(), value);
    return {};
  }
  KVLANE_ASSIGN(const Value items, to_list(value, budget_));
  const std::vector<Value>& held = items.as_list()->items;
  if (held.size() != targets.size()) {
    return invalid_argument(std::to_string(held.size()) + " values for " +
                            std::to_string(targets.size()) + " variables");
  }
  for (std::size_t index = 0; index < targets.size(); ++index) assign(targets[index], held[index]);
  return {};
}

}  // namespace

Result<std::string> render(const Block& block, Variables variables, const Clock& clock) {
  return Interpreter(std::move(variables), clock).run(block);
}

}  // namespace kvlane::jinja
