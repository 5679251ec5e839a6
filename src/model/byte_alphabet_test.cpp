// The byte alphabet against its description by GPT-2's encoder.
// SPDX-License-Identifier: Apache-2.0
#include "model/byte_alphabet.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "model/utf8.h"

namespace kvlane {
namespace {

TEST(ByteAlphabetTest, Has256CharactersForAllBytes) {
  std::set<std::string> bytes;
  for (std::uint32_t c = 0; c < 0x3000; ++c) {
    std::string text;
    append_utf8(text, c);
    if (const auto byte = bytes_of_byte_level(text)) bytes.insert(*byte);
  }
  EXPECT_EQ(bytes.size(), 256U);
  for (const std::string& byte : bytes) EXPECT_EQ(byte.size(), 1U);
}

TEST(ByteAlphabetTest, KnownCharacters) {
  EXPECT_EQ(bytes_of_byte_level("\u0120the"), " the");
  EXPECT_EQ(bytes_of_byte_level("\u010A"), "\n");
  EXPECT_EQ(bytes_of_byte_level("\u0100"), std::string(1, '\0'));
  EXPECT_EQ(bytes_of_byte_level("\u0143"), "\xAD");
  EXPECT_EQ(bytes_of_byte_level("\u00C3\u00A9"), "\xC3\xA9");
  EXPECT_EQ(bytes_of_byte_level(""), "");
}

TEST(ByteAlphabetTest, OtherCharactersAreNone) {
  for (const char* text : {" ", "a b", "\n", "\u00AD", "\u0144", "\u2581", "\U0001F600"}) {
    EXPECT_EQ(bytes_of_byte_level(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace kvlane
