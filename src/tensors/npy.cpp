// Headers of NumPy's array files: magic, version, and a Python dictionary of three members, of
// which only as much is understood as NumPy writes.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <string>

#include "tensors/original.h"

namespace kvlane {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

// A walk over the text of the dictionary. The first surprise sets failed().
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  bool failed() const { return failed_; }
  bool at_end() {
    skip_blanks();
    return text_.empty();
  }

  char next() {
    skip_blanks();
    return text_.empty() ? '\0' : text_.front();
  }

  // Goes past `token` if it is next.
  bool accept(std::string_view token) {
    skip_blanks();
    if (failed_ || !text_.starts_with(token)) return false;
    text_.remove_prefix(token.size());
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) failed_ = true;
  }

  // 'text' or "text", without escapes: NumPy's own types and names of members have none.
  std::string string() {
    skip_blanks();
    const char quote = text_.empty() ? '\0' : text_.front();
    const std::size_t end = quote == '\'' || quote == '"' ? text_.find(quote, 1) : text_.npos;
    if (failed_ || end == text_.npos || text_.find('\\') < end) {
      failed_ = true;
      return {};
    }
    const std::string value(text_.substr(1, end - 1));
    text_.remove_prefix(end + 1);
    return value;
  }

  std::uint64_t number() {
    skip_blanks();
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc() || failed_) {
      failed_ = true;
      return 0;
    }
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    accept("L");  // Python 2 wrote 3L
    return value;
  }

  // A list with everything in it, as it stands: the description of a structured type.
  std::string list() {
    skip_blanks();
    int depth = 0;
    for (std::size_t i = 0; i < text_.size() && !failed_; ++i) {
      if (text_[i] == '\'' || text_[i] == '"') {
        i = std::min(text_.find(text_[i], i + 1), text_.size());
      } else if (text_[i] == '[') {
        ++depth;
      } else if (text_[i] == ']' && --depth == 0) {
        std::string value(text_.substr(0, i + 1));
        text_.remove_prefix(i + 1);
        return value;
      }
    }
    failed_ = true;
    return {};
  }

 private:
  void skip_blanks() {
    const std::size_t count = std::min(text_.find_first_not_of(" \t\r\n"), text_.size());
    text_.remove_prefix(count);
  }

  std::string_view text_;
  bool failed_ = false;
};

std::vector<std::uint64_t> read_shape(Cursor& cursor) {
  std::vector<std::uint64_t> shape;
  cursor.expect("(");
  while (!cursor.failed() && !cursor.accept(")")) {
    shape.push_back(cursor.number());
    if (!cursor.accept(",")) {
      cursor.expect(")");
      break;
    }
  }
  return shape;
}

// "<f4", "|V2", "<U10" (four bytes a character); 0 where the size does not follow.
std::size_t item_bytes(std::string_view descr) {
  const std::size_t first = std::min(descr.find_first_of("0123456789"), descr.size());
  if (first < 1 || first > 2 || descr[first - 1] == 'O') return 0;
  std::size_t count = 0;
  const char* const end = descr.data() + descr.size();
  const auto [rest, error] = std::from_chars(descr.data() + first, end, count);
  // Dates carry a unit behind: "<M8[ns]".
  if (error != std::errc() || (rest != end && *rest != '[')) return 0;
  return descr[first - 1] == 'U' ? (count <= SIZE_MAX / 4 ? 4 * count : 0) : count;
}

Result<NpyHeader> parse_dictionary(std::string_view text) {
  Cursor cursor(text);
  NpyHeader header;
  bool fortran = false;
  int members = 0;
  cursor.expect("{");
  while (!cursor.failed() && !cursor.accept("}")) {
    const std::string name = cursor.string();
    cursor.expect(":");
    ++members;
    if (name == "descr") {
      header.descr = cursor.next() == '[' ? cursor.list() : cursor.string();
    } else if (name == "fortran_order") {
      fortran = cursor.accept("True");
      if (!fortran) cursor.expect("False");
    } else if (name == "shape") {
      header.shape = read_shape(cursor);
    } else {
      return corrupt("its header has an unknown member");
    }
    if (!cursor.accept(",")) {
      cursor.expect("}");
      break;
    }
  }
  if (cursor.failed() || !cursor.at_end() || members != 3) {
    return corrupt("its header is not the dictionary that NumPy writes");
  }
  if (fortran) std::reverse(header.shape.begin(), header.shape.end());
  header.item_bytes = item_bytes(header.descr);
  return header;
}

}  // namespace

bool begins_npy(ByteView file) { return as_text(file).starts_with(kMagic); }

Result<NpyHeader> parse_npy_header(ByteView file) {
  ByteReader reader(file);
  reader.read_bytes(kMagic.size());
  const auto major = reader.read<std::uint8_t>();
  reader.read<std::uint8_t>();
  const std::size_t text_bytes =
      major == 1 ? reader.read<std::uint16_t>() : reader.read<std::uint32_t>();
  if (reader.failed()) return corrupt("it ends within its header");
  if (major < 1 || major > 3) {
    return unsupported("it has version " + std::to_string(major) + ", known are 1 to 3");
  }
  if (text_bytes > kNpyHeaderBytesMax - 16) {
    return corrupt("its header is said to have " + std::to_string(text_bytes) + " bytes");
  }
  const ByteView text = reader.read_bytes(text_bytes);
  if (reader.failed()) return corrupt("it ends within its header");
  KVLANE_ASSIGN(NpyHeader header, parse_dictionary(as_text(text)));
  header.bytes = file.size() - reader.remaining();
  return header;
}

}  // namespace kvlane
