// A chat template cut into text and the tokens of its tags, with white space control done.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvlane/status.h"

namespace kvlane::jinja {

// Longest template taken, in bytes. Those of known models are below 20,000.
inline constexpr std::size_t kTemplateBytesMax = 256U << 10;

struct Token {
  enum class Kind {
    kText,        // outside tags; `text` as it is printed
    kTagBegin,    // {%
    kTagEnd,      // %}
    kPrintBegin,  // {{
    kPrintEnd,    // }}
    kName,
    kInteger,   // `integer`
    kString,    // `text` without quotes, escapes resolved
    kOperator,  // `text` is the operator
    kEnd,       // of the template; always the last token
  };
  Kind kind = Kind::kEnd;
  int line = 1;
  std::string text;
  std::int64_t integer = 0;
};

// What Python calls white space: Unicode's and the four separators below U+0020.
bool is_python_space(std::uint32_t code_point);
// `text` without white space at its end.
std::string_view strip_end(std::string_view text);

// `source` must be valid UTF-8. White space goes as Jinja does it with trim_blocks and
// lstrip_blocks, which is how transformers renders: a tag alone in a line leaves no line. kCorrupt
// for what is no template, kUnsupported for literals that kvlane does not do (floats, \N{...}),
// both with the line.
Result<std::vector<Token>> tokenize(std::string_view source);

// "line 3: " and the rest, as all errors of templates begin.
inline std::string at_line(int line, std::string_view text) {
  return "line " + std::to_string(line) + ": " + std::string(text);
}

}  // namespace kvlane::jinja
