// Values of chat templates: what Python objects are to Jinja, as far as templates use them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kvlane::jinja {

class Value;

// How deep lists and dicts may nest. They are compared, written and freed recursively.
inline constexpr int kValueDepthMax = 64;
// How heavy a list or dict may be: 1 for each value inside, plus 1 for each 64 bytes of text,
// counted as often as it is held. x = [x, x] forty times over takes no memory and years to compare.
inline constexpr std::int64_t kValueWeightMax = std::int64_t{4} << 20;

// A list or its like. Immutable, as all values but namespaces: templates cannot change what they
// share.
struct List {
  enum class Kind {
    kList,
    kTuple,  // never equal to a list
    kView,   // what keys(), values() and items() give: to be run over, not indexed
    // What select, map and their like give, which a filter or a for takes at once. In Jinja that
    // goes item by item; here an item that nobody takes can be an error, too.
    kStream,
  };
  std::vector<Value> items;
  Kind kind = Kind::kList;
  int depth = 1;
  std::int64_t weight = 1;
};

// A dict with string keys in the order of insertion. They are small: looking up is a linear search.
struct Dict {
  std::vector<std::pair<std::string, Value>> items;
  int depth = 1;
  std::int64_t weight = 1;

  const Value* find(std::string_view key) const;
};

// namespace(...): the one thing that a template can change from inside a loop. May hold itself; the
// interpreter, which knows them all, breaks such circles.
struct Namespace {
  std::map<std::string, Value, std::less<>> attributes;
};

// The variable `loop` of a running for.
struct Loop {
  std::shared_ptr<const List> items;
  std::size_t index = 0;  // from 0
};

struct Undefined {
  std::string_view name;  // what was looked up, for errors; owned by the template
};
struct None {};
struct Function {
  std::string_view name;  // of a global function; owned by the template
};

// Cheap to copy: text, lists and dicts are shared.
class Value {
 public:
  using Text = std::shared_ptr<const std::string>;
  using Data = std::variant<Undefined, None, bool, std::int64_t, Text, std::shared_ptr<const List>,
                            std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                            std::shared_ptr<const Loop>, Function>;

  Value() = default;  // undefined
  // Of one of the kinds in Data.
  template <class Kind>
  static Value of(Kind held) {
    return Value(std::in_place_type<Kind>, std::move(held));
  }

  static Value none() { return of(None{}); }
  static Value boolean(bool value) { return of(value); }
  static Value integer(std::int64_t value) { return of(value); }
  static Value text(std::string value) {
    return of(Text(std::make_shared<const std::string>(std::move(value))));
  }
  // The caller holds depth() and weight() of the result against their limits before anything else.
  static Value list(std::vector<Value> items, List::Kind kind = List::Kind::kList);
  static Value dict(std::vector<std::pair<std::string, Value>> items);

  const Data& data() const { return data_; }
  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  // Null unless this is of that kind.
  const bool* as_bool() const { return std::get_if<bool>(&data_); }
  const std::string* as_text() const { return pointee<std::string>(); }
  const List* as_list() const { return pointee<List>(); }
  const Dict* as_dict() const { return pointee<Dict>(); }
  const Loop* as_loop() const { return pointee<Loop>(); }
  Namespace* as_namespace() const {
    const auto* held = std::get_if<std::shared_ptr<Namespace>>(&data_);
    return held == nullptr ? nullptr : held->get();
  }
  std::shared_ptr<const List> shared_list() const {
    const auto* held = std::get_if<std::shared_ptr<const List>>(&data_);
    return held == nullptr ? nullptr : *held;
  }
  // Of an integer or, as in Python, a truth value; null for all else.
  const std::int64_t* as_integer(std::int64_t& buffer) const;

  // Python's bool().
  bool truthy() const;
  // How deep containers nest here: 0 for what is none.
  int depth() const;
  std::int64_t weight() const;
  // For errors: "a string", "a list".
  std::string_view kind() const;

 private:
  // In place: GCC 12 takes a moved variant for uninitialised under sanitizers.
  template <class Kind>
  Value(std::in_place_type_t<Kind> kind, Kind held) : data_(kind, std::move(held)) {}

  template <class T>
  const T* pointee() const {
    const auto* held = std::get_if<std::shared_ptr<const T>>(&data_);
    return held == nullptr ? nullptr : held->get();
  }

  Data data_;
};

// Python's ==. Values of different kinds differ, but True is 1 and False is 0. Time by the weight
// of the lighter.
bool equal(const Value& a, const Value& b);

}  // namespace kvlane::jinja
