// json.dumps: separators, indents, and nothing sorted.
// SPDX-License-Identifier: Apache-2.0
#include "model/jinja_json.h"

#include "model/jinja_builtins.h"
#include "model/python_text.h"

namespace kvlane::jinja {
namespace {

// Wider indents are absurd, and cost memory for each line.
constexpr std::int64_t kIndentMax = 16;

class Writer {
 public:
  explicit Writer(std::int64_t indent) : indent_(indent) {}

  Status write(const Value& value, int depth) {
    if (out_.size() > kRenderedBytesMax) {
      return exhausted("JSON of more than " + std::to_string(kRenderedBytesMax) + " bytes");
    }
    std::int64_t buffer = 0;
    if (value.is_none()) {
      out_ += "null";
    } else if (const bool* truth = value.as_bool()) {
      out_ += *truth ? "true" : "false";
    } else if (const std::int64_t* number = value.as_integer(buffer)) {
      out_ += std::to_string(*number);
    } else if (const std::string* text = value.as_text()) {
      append_json_string(out_, *text);
    } else if (value.as_list() != nullptr) {
      return write_list(*value.as_list(), depth);
    } else if (value.as_dict() != nullptr) {
      return write_dict(*value.as_dict(), depth);
    } else {
      return invalid_argument("'tojson' does not work on " + std::string(value.kind()));
    }
    return {};
  }

  std::string take() { return std::move(out_); }

 private:
  // Before an item or the closing bracket.
  void separate(bool first, int depth) {
    if (!first) out_ += indent_ < 0 ? ", " : ",";
    new_line(depth);
  }
  void new_line(int depth) {
    if (indent_ < 0) return;
    out_ += '\n';
    out_.append(static_cast<std::size_t>(indent_ * depth), ' ');
  }

  Status write_list(const List& list, int depth) {
    out_ += '[';
    for (std::size_t index = 0; index < list.items.size(); ++index) {
      separate(index == 0, depth + 1);
      KVLANE_TRY(write(list.items[index], depth + 1));
    }
    if (!list.items.empty()) new_line(depth);
    out_ += ']';
    return {};
  }

  Status write_dict(const Dict& dict, int depth) {
    out_ += '{';
    for (std::size_t index = 0; index < dict.items.size(); ++index) {
      separate(index == 0, depth + 1);
      append_json_string(out_, dict.items[index].first);
      out_ += ": ";
      KVLANE_TRY(write(dict.items[index].second, depth + 1));
    }
    if (!dict.items.empty()) new_line(depth);
    out_ += '}';
    return {};
  }

  std::int64_t indent_;
  std::string out_;
};

}  // namespace

Result<std::string> to_json(const Value& value, std::int64_t indent) {
  if (indent > kIndentMax) {
    return unsupported("an indent of " + std::to_string(indent) + "; kvlane takes up to " +
                       std::to_string(kIndentMax));
  }
  Writer writer(indent);
  KVLANE_TRY(writer.write(value, 0));
  return writer.take();
}

}  // namespace kvlane::jinja
