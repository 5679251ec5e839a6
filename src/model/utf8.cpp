// UTF-8 decoding after table 3-7 of the Unicode standard.
// SPDX-License-Identifier: Apache-2.0
#include "model/utf8.h"

#include <algorithm>
#include <cstring>

namespace kvlane {
namespace {

// Of a lead byte: the length of its sequence and the range of the second byte. Only the second byte
// has a range of its own: it excludes overlong forms, surrogates and values above U+10FFFF.
struct Lead {
  std::size_t bytes;  // 0: not a lead byte
  std::uint8_t second_min;
  std::uint8_t second_max;
};

Lead classify(std::uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

std::uint8_t byte_at(std::string_view bytes, std::size_t at) {
  return static_cast<std::uint8_t>(bytes[at]);
}

// Bytes of ASCII at the beginning, counted eight at a time: most text is nothing else.
std::size_t ascii_prefix(std::string_view bytes) {
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    if ((word & 0x8080808080808080U) != 0) break;
  }
  while (at < bytes.size() && byte_at(bytes, at) < 0x80) ++at;
  return at;
}

}  // namespace

Utf8Step next_utf8(std::string_view bytes) {
  const std::uint8_t first = byte_at(bytes, 0);
  const Lead lead = classify(first);
  if (lead.bytes == 1) return {Utf8Step::Kind::kCharacter, first, 1};
  if (lead.bytes == 0) return {Utf8Step::Kind::kInvalid, kReplacementCharacter, 1};
  // 5, 4 or 3 bits of the value are in the lead byte.
  std::uint32_t code_point = first & (0x7FU >> lead.bytes);
  for (std::size_t at = 1; at < lead.bytes; ++at) {
    if (at == bytes.size()) return {Utf8Step::Kind::kTruncated, kReplacementCharacter, at};
    const std::uint8_t byte = byte_at(bytes, at);
    const std::uint8_t min = at == 1 ? lead.second_min : std::uint8_t{0x80};
    const std::uint8_t max = at == 1 ? lead.second_max : std::uint8_t{0xBF};
    if (byte < min || byte > max) return {Utf8Step::Kind::kInvalid, kReplacementCharacter, at};
    code_point = code_point << 6 | (byte & 0x3FU);
  }
  return {Utf8Step::Kind::kCharacter, code_point, lead.bytes};
}

std::optional<std::size_t> find_invalid_utf8(std::string_view bytes) {
  for (std::size_t at = 0;;) {
    at += ascii_prefix(bytes.substr(at));
    if (at == bytes.size()) return std::nullopt;
    const Utf8Step step = next_utf8(bytes.substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter) return at;
    at += step.bytes;
  }
}

Status check_utf8(std::string_view text) {
  const std::optional<std::size_t> offset = find_invalid_utf8(text);
  if (!offset) return {};
  return invalid_argument("the text is not valid UTF-8 at byte " + std::to_string(*offset));
}

void append_utf8(std::string& text, std::uint32_t code_point) {
  const auto append = [&](std::uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    append(code_point);
  } else if (code_point < 0x800) {
    append(0xC0 | code_point >> 6);
    append(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    append(0xE0 | code_point >> 12);
    append(0x80 | (code_point >> 6 & 0x3F));
    append(0x80 | (code_point & 0x3F));
  } else {
    append(0xF0 | code_point >> 18);
    append(0x80 | (code_point >> 12 & 0x3F));
    append(0x80 | (code_point >> 6 & 0x3F));
    append(0x80 | (code_point & 0x3F));
  }
}

void append_replacing_invalid(std::string& text, std::string_view bytes, InvalidUnit unit) {
  while (!bytes.empty()) {
    const std::size_t valid = find_invalid_utf8(bytes).value_or(bytes.size());
    text.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
    const std::size_t broken = next_utf8(bytes).bytes;
    const std::size_t marks = unit == InvalidUnit::kByte ? broken : 1;
    for (std::size_t mark = 0; mark < marks; ++mark) append_utf8(text, kReplacementCharacter);
    bytes.remove_prefix(broken);
  }
}

std::size_t truncated_utf8_tail(std::string_view bytes) {
  // A sequence of at most four bytes lacks at least one, so it began among the last three.
  for (std::size_t length = 1; length <= std::min<std::size_t>(3, bytes.size()); ++length) {
    const std::string_view tail = bytes.substr(bytes.size() - length);
    if (classify(byte_at(tail, 0)).bytes == 0) continue;  // a later byte of a sequence, or invalid
    return next_utf8(tail).kind == Utf8Step::Kind::kTruncated ? length : 0;
  }
  return 0;
}

bool is_white_space(std::uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace kvlane
