// Normalisation form C on the cases that the Unicode standard singles out. Every character is
// checked against the `tokenizers` package by the fixtures of tokenizer_test.cpp.
// SPDX-License-Identifier: Apache-2.0
#include "model/nfc.h"

#include <gtest/gtest.h>

#include <string>

namespace kvlane {
namespace {

std::string nfc(const std::string& text) {
  Result<std::string> normal = to_nfc(text);
  EXPECT_TRUE(normal.ok()) << normal.status().message();
  return normal.ok() ? *normal : std::string();
}

TEST(NfcTest, Composes) {
  EXPECT_EQ(nfc(""), "");
  EXPECT_EQ(nfc("plain, na\u00efve"), "plain, na\u00efve");
  EXPECT_EQ(nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(nfc("e\u0323\u0302"), "\u1ec7");
  EXPECT_EQ(nfc("e\u0302\u0323"), "\u1ec7");       // marks in the other order
  EXPECT_EQ(nfc("\u1e9b\u0323"), "\u1e9b\u0323");  // example 2 of UAX 15
  EXPECT_EQ(nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(nfc("\u0301a"), "\u0301a");
}

TEST(NfcTest, ReplacesWhatHasOneForm) {
  EXPECT_EQ(nfc("\u212b"), "\u00c5");
  EXPECT_EQ(nfc("\u2126"), "\u03a9");
  EXPECT_EQ(nfc("\uf900"), "\u8c48");
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093c");  // excluded from composition
  EXPECT_EQ(nfc("\u0344"), "\u0308\u0301");
}

TEST(NfcTest, Hangul) {
  EXPECT_EQ(nfc("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(nfc("\u1100\u1161"), "\uac00");
  EXPECT_EQ(nfc("\uac00\u11a8"), "\uac01");
}

TEST(NfcTest, KeepsNulAndUnassigned) {
  const std::string text("a\0b\u0378\U0010ffff", 10);
  EXPECT_EQ(nfc(text), text);
}

// Marks of falling classes: an insertion sort would take hours.
TEST(NfcTest, LongRunsOfMarksAreNotQuadratic) {
  std::string high_first = "a";
  std::string low_first = "a";
  for (int mark = 0; mark < 300'000; ++mark) high_first += "\u0301";
  for (int mark = 0; mark < 300'000; ++mark) high_first += "\u0323";
  for (int mark = 0; mark < 300'000; ++mark) low_first += "\u0323";
  for (int mark = 0; mark < 300'000; ++mark) low_first += "\u0301";
  EXPECT_EQ(nfc(high_first), nfc(low_first));
}

}  // namespace
}  // namespace kvlane
