// One pass over the pattern that copies what both engines read alike and rewrites the rest.
// SPDX-License-Identifier: Apache-2.0
#include "model/pattern_dialect.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "model/unicode_additions.h"
#include "model/utf8.h"

namespace kvlane {
namespace {

// Counted repetitions above this are absurd in a split rule; PCRE2 unrolls them.
constexpr int kRepeatMax = 1000;
// PCRE2 and Oniguruma both recurse on groups.
constexpr int kGroupDepthMax = 50;

constexpr std::array<std::string_view, 14> kProperties = {"L",  "M",  "N",  "P",  "S",  "Z",  "Lu",
                                                          "Ll", "Lt", "Lm", "Lo", "Nd", "Nl", "No"};

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

// The inside of a class that matches the general category `name` as the package knows it.
std::string property_items(std::string_view name) {
  std::string items = "\\p{" + std::string(name) + "}";
  std::array<char, 32> buffer{};
  for (const UnicodeAddition& addition : unicode_additions()) {
    if (!addition.category.starts_with(name)) continue;
    const int bytes = std::snprintf(buffer.data(), buffer.size(), "\\x{%x}-\\x{%x}", addition.first,
                                    addition.last);
    items.append(buffer.data(), static_cast<std::size_t>(bytes));
  }
  return items;
}

// A piece of the pattern for an error: at most `bytes_max` bytes, and valid UTF-8.
std::string quoted(std::string_view text, std::size_t bytes_max) {
  std::string quote = "'";
  append_replacing_invalid(quote, text.substr(0, bytes_max));
  return quote + "'";
}

// Unicode's White_Space, in the words of PCRE2, whose own \s has U+180E as well.
constexpr std::string_view kSpaceItems = "\\x{09}-\\x{0d}\\x{85}\\p{Z}";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    while (!at_end()) KVLANE_TRY(translate_item());
    if (!groups_.empty()) return refuse("a group that is not closed", pattern_.size());
    return std::move(output_);
  }

 private:
  // What one escape stands for: a character, or the inside of a class.
  struct Escape {
    std::optional<std::uint32_t> code_point;
    std::string items;
    bool negated = false;
  };

  bool at_end() const { return at_ == pattern_.size(); }
  char peek() const { return at_end() ? '\0' : pattern_[at_]; }
  bool follows(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    if (!follows(text)) return false;
    at_ += text.size();
    return true;
  }

  Status refuse(std::string_view what, std::size_t offset) const {
    return unsupported("the split rule has " + std::string(what) + " at offset " +
                       std::to_string(offset) + ", which kvlane does not do");
  }

  std::uint32_t take_code_point() {
    const Utf8Step step = next_utf8(pattern_.substr(at_));
    at_ += step.bytes;
    return step.code_point;
  }

  void put_code_point(std::uint32_t code_point) {
    std::array<char, 16> digits{};
    const auto end =
        std::to_chars(digits.data(), digits.data() + digits.size(), code_point, 16).ptr;
    output_.append("\\x{").append(digits.data(), end).append("}");
  }

  Status translate_item();
  Status translate_group();
  Status translate_caseless_group();
  Status translate_quantifier();
  Status translate_interval();
  Status translate_class();
  Status translate_class_item();
  Result<Escape> take_escape();
  Result<std::string> take_property();
  Result<std::uint32_t> take_class_bound();

  std::string_view pattern_;
  std::size_t at_ = 0;
  std::string output_;
  std::string groups_;       // of each open group '=' if it looks around, else '('
  bool repeatable_ = false;  // whether a quantifier may follow
};

Status Translator::translate_item() {
  const std::size_t start = at_;
  switch (const char c = peek()) {
    case '(': return translate_group();
    case ')':
      if (groups_.empty()) return refuse("a ')' without a group", start);
      repeatable_ = groups_.back() == '(';
      groups_.pop_back();
      ++at_;
      output_ += ')';
      return {};
    case '|':
      ++at_;
      output_ += '|';
      repeatable_ = false;
      return {};
    case '?':
    case '*':
    case '+': return translate_quantifier();
    case '{': return translate_interval();
    case '[': return translate_class();
    case '.':
      ++at_;
      output_ += '.';
      repeatable_ = true;
      return {};
    case '\\': {
      KVLANE_ASSIGN(const Escape escape, take_escape());
      if (escape.code_point) {
        put_code_point(*escape.code_point);
      } else {
        output_ += (escape.negated ? "[^" : "[") + escape.items + "]";
      }
      repeatable_ = true;
      return {};
    }
    case '^':
    case '$': return refuse("the anchor '" + std::string(1, c) + "'", start);
    case ']':
    case '}': return refuse("a bare '" + std::string(1, c) + "'", start);
    default:
      put_code_point(take_code_point());
      repeatable_ = true;
      return {};
  }
}

Status Translator::translate_group() {
  const std::size_t start = at_;
  if (static_cast<int>(groups_.size()) == kGroupDepthMax)
    return refuse("groups nested too deep", start);
  if (follows("(?i:")) return translate_caseless_group();
  repeatable_ = false;
  for (const std::string_view open : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
    if (!take(open)) continue;
    const bool looks_around = open.find_first_of("=!") != std::string_view::npos;
    groups_ += looks_around ? '=' : '(';
    output_ += open;
    return {};
  }
  if (follows("(?") || follows("(*")) {
    return refuse("the group " + quoted(pattern_.substr(start), 3), start);
  }
  ++at_;
  groups_ += '(';
  // Nothing refers back to a group, so it need not capture.
  output_ += "(?:";
  return {};
}

// Inside (?i:...) only ASCII literals and alternatives are taken, and no two letters that Oniguruma
// folds together: it lets "ss" match U+00DF, and "ff", "fi", "fl", "st" the ligatures; PCRE2 does
// not.
Status Translator::translate_caseless_group() {
  const std::size_t start = at_;
  take("(?i:");
  output_ += "(?i:";
  char last = '\0';
  for (; !at_end() && peek() != ')'; ++at_) {
    const char c = peek();
    if (static_cast<unsigned char>(c) >= 0x80 ||
        std::string_view("\\[](){}?*+^$.").find(c) != std::string_view::npos) {
      return refuse("something else than plain letters in '(?i:'", at_);
    }
    const auto lower = static_cast<char>(is_ascii_letter(c) ? c | 0x20 : c);
    const std::string pair = {last, lower};
    if (pair == "ss" || pair == "st" || pair == "ff" || pair == "fi" || pair == "fl") {
      return refuse("'" + pair + "' in '(?i:'", at_ - 1);
    }
    last = lower;
    if (c == '|') {
      output_ += '|';
    } else {
      put_code_point(static_cast<unsigned char>(c));
    }
  }
  if (!take(")")) return refuse("a group that is not closed", start);
  output_ += ')';
  repeatable_ = true;
  return {};
}

Status Translator::translate_quantifier() {
  const std::size_t start = at_;
  if (!repeatable_) return refuse("a quantifier with nothing to repeat", start);
  output_ += pattern_[at_++];
  // '?' makes it lazy, '+' possessive, in both engines.
  if (peek() == '?' || peek() == '+') output_ += pattern_[at_++];
  repeatable_ = false;
  return {};
}

Status Translator::translate_interval() {
  const std::size_t start = at_;
  const std::size_t close = pattern_.find('}', start);
  if (!repeatable_ || close == std::string_view::npos) return refuse("a bare '{'", start);
  const std::string_view inside = pattern_.substr(start + 1, close - start - 1);
  const std::size_t comma = inside.find(',');
  const auto number = [](std::string_view digits) -> std::optional<int> {
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() ||
        !is_ascii_digit(digits[0]) || value > kRepeatMax) {
      return std::nullopt;
    }
    return value;
  };
  const std::optional<int> low = number(inside.substr(0, comma));
  std::optional<int> high = low;
  const bool open = comma != std::string_view::npos && comma + 1 == inside.size();
  if (comma != std::string_view::npos && !open) high = number(inside.substr(comma + 1));
  if (!low || !high || *low > *high) {
    return refuse("the repetition " + quoted(pattern_.substr(start, inside.size() + 2), 32), start);
  }
  at_ = close + 1;
  output_ += '{' + std::to_string(*low);
  if (comma != std::string_view::npos) output_ += ',';
  if (comma != std::string_view::npos && !open) output_ += std::to_string(*high);
  output_ += '}';
  // Here the engines differ: {2}? and {2}+ are two quantifiers in Oniguruma.
  repeatable_ = false;
  return {};
}

Status Translator::translate_class() {
  const std::size_t start = at_;
  ++at_;
  output_ += '[';
  if (take("^")) output_ += '^';
  if (peek() == ']') return refuse("a class that begins with ']'", start);
  while (!at_end() && peek() != ']') KVLANE_TRY(translate_class_item());
  if (!take("]")) return refuse("a class that is not closed", start);
  output_ += ']';
  repeatable_ = true;
  return {};
}

Status Translator::translate_class_item() {
  const std::size_t start = at_;
  if (peek() == '[') return refuse("a class inside a class", start);
  if (follows("&&")) return refuse("an intersection of classes", start);
  if (peek() == '\\') {
    KVLANE_ASSIGN(const Escape escape, take_escape());
    if (escape.negated) return refuse("a negated escape inside a class", start);
    if (!escape.code_point) {
      output_ += escape.items;
      // "\s-x" is a range to some engines.
      if (peek() == '-' && !follows("-]")) return refuse("a range that begins with a class", start);
      return {};
    }
    put_code_point(*escape.code_point);
  } else {
    put_code_point(take_code_point());
  }
  if (peek() != '-' || follows("-]")) return {};
  if (pattern_[start] == '-') return refuse("a range that begins with '-'", start);
  ++at_;
  output_ += '-';
  KVLANE_ASSIGN(const std::uint32_t last, take_class_bound());
  put_code_point(last);
  return {};
}

Result<std::uint32_t> Translator::take_class_bound() {
  const std::size_t start = at_;
  if (at_end()) return refuse("a class that is not closed", start);
  if (peek() == '[') return refuse("a class inside a class", start);
  if (peek() != '\\') return take_code_point();
  KVLANE_ASSIGN(const Escape escape, take_escape());
  if (!escape.code_point) return refuse("a range that ends with a class", start);
  return *escape.code_point;
}

Result<Translator::Escape> Translator::take_escape() {
  const std::size_t start = at_;
  ++at_;
  if (at_end()) return refuse("a '\\' at its end", start);
  Escape escape;
  const char c = peek();
  if (c == 'p' || c == 'P') {
    ++at_;
    KVLANE_ASSIGN(const std::string name, take_property());
    escape.items = property_items(name);
    escape.negated = c == 'P';
    return escape;
  }
  if (!is_ascii_letter(c) && !is_ascii_digit(c)) {
    escape.code_point = take_code_point();
    return escape;
  }
  ++at_;
  switch (c) {
    case 't': escape.code_point = '\t'; break;
    case 'n': escape.code_point = '\n'; break;
    case 'v': escape.code_point = '\v'; break;
    case 'f': escape.code_point = '\f'; break;
    case 'r': escape.code_point = '\r'; break;
    case 's':
    case 'S':
      escape.items = kSpaceItems;
      escape.negated = c == 'S';
      break;
    case 'd':
    case 'D':
      escape.items = property_items("Nd");
      escape.negated = c == 'D';
      break;
    default: return refuse("the escape '\\" + std::string(1, c) + "'", start);
  }
  return escape;
}

Result<std::string> Translator::take_property() {
  const std::size_t start = at_ - 2;
  const std::size_t close = pattern_.find('}', at_);
  if (peek() != '{' || close == std::string_view::npos) {
    return refuse("a property without a name in braces", start);
  }
  std::string name(pattern_.substr(at_ + 1, close - at_ - 1));
  if (std::find(kProperties.begin(), kProperties.end(), name) == kProperties.end()) {
    return refuse("the property " + quoted(name, 32), start);
  }
  at_ = close + 1;
  return name;
}

}  // namespace

Result<std::string> to_pcre2_pattern(std::string_view pattern) {
  if (pattern.size() > kPatternBytesMax) {
    return unsupported("the split rule has " + std::to_string(pattern.size()) +
                       " bytes; kvlane takes up to " + std::to_string(kPatternBytesMax));
  }
  return Translator(pattern).run();
}

}  // namespace kvlane
