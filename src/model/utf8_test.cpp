// UTF-8: every code point, every kind of damage, and Python's way to replace it.
// SPDX-License-Identifier: Apache-2.0
#include "model/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvlane {
namespace {

constexpr const char* kReplaced = "\xEF\xBF\xBD";  // U+FFFD

TEST(Utf8Test, EveryCodePointGoesThereAndBack) {
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Step step = next_utf8(text);
    ASSERT_EQ(step.kind, Utf8Step::Kind::kCharacter) << c;
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(step.bytes, text.size());
    // Each beginning of it may still be completed.
    for (std::size_t bytes = 1; bytes < text.size(); ++bytes) {
      const std::string_view part = std::string_view(text).substr(0, bytes);
      ASSERT_EQ(next_utf8(part).kind, Utf8Step::Kind::kTruncated);
      ASSERT_EQ(truncated_utf8_tail(part), bytes);
    }
    ASSERT_EQ(truncated_utf8_tail(text), 0U);
  }
}

struct Damage {
  std::string bytes;
  std::string replaced;  // by Python's bytes.decode('utf-8', 'replace')
};

std::string times(const std::string& text, int count) {
  std::string all;
  for (int time = 0; time < count; ++time) all += text;
  return all;
}

TEST(Utf8Test, ReplacesLikePython) {
  const std::vector<Damage> damages = {
      {"", ""},
      {"abc", "abc"},
      {"\x80", kReplaced},
      {"a\xBF\xBF z", "a" + times(kReplaced, 2) + " z"},
      {"\xC0\xAF", times(kReplaced, 2)},            // overlong
      {"\xE0\x80\xAF", times(kReplaced, 3)},        // overlong
      {"\xF0\x80\x80\xAF", times(kReplaced, 4)},    // overlong
      {"\xED\xA0\x80", times(kReplaced, 3)},        // a surrogate
      {"\xF4\x90\x80\x80", times(kReplaced, 4)},    // above U+10FFFF
      {"\xF5\x80", times(kReplaced, 2)},            // no lead byte
      {"\xE2\x82", kReplaced},                      // cut off: one sign for all of it
      {"\xE2\x82z", std::string(kReplaced) + "z"},  // broken off
      {"\xF0\x9F\x98", kReplaced},                  // cut off
      {"\xF0\x9F\x98\xE2\x82\xAC", std::string(kReplaced) + "\xE2\x82\xAC"},
      {"\xE2\x28\xA1", std::string(kReplaced) + "(" + kReplaced},
      {"\xC3\xC3\xA9", std::string(kReplaced) + "\xC3\xA9"},
      {"\xFE\xFF", times(kReplaced, 2)},
  };
  for (const Damage& damage : damages) {
    std::string text;
    append_replacing_invalid(text, damage.bytes);
    EXPECT_EQ(text, damage.replaced);
    EXPECT_EQ(find_invalid_utf8(text), std::nullopt);
    EXPECT_EQ(find_invalid_utf8(damage.bytes).has_value(), text != damage.bytes);
  }
}

TEST(Utf8Test, FindsTheFirstInvalidByte) {
  // Around the eight bytes that are looked at together.
  for (std::size_t before = 0; before < 40; ++before) {
    const std::string text = std::string(before, 'a') + "\xFF" + std::string(20, 'b');
    EXPECT_EQ(find_invalid_utf8(text), before);
    EXPECT_EQ(find_invalid_utf8(std::string(before, 'a') + "\xE2\x82"), before);
    EXPECT_EQ(find_invalid_utf8(std::string(before, 'a') + "\xE2\x82\xAC"), std::nullopt);
  }
}

TEST(Utf8Test, WhiteSpaceIsUnicodes) {
  int count = 0;
  for (std::uint32_t c = 0; c < 0x110000; ++c) count += is_white_space(c) ? 1 : 0;
  EXPECT_EQ(count, 25);
  for (const std::uint32_t c : {0x09U, 0x20U, 0x85U, 0xA0U, 0x1680U, 0x200AU, 0x2028U, 0x3000U}) {
    EXPECT_TRUE(is_white_space(c)) << c;
  }
  for (const std::uint32_t c : {0x1CU, 0x180EU, 0x200BU, 0xFEFFU})
    EXPECT_FALSE(is_white_space(c)) << c;
}

}  // namespace
}  // namespace kvlane
