// Where a text is cut.
// SPDX-License-Identifier: Apache-2.0
#include "calib/text_tokens.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_paths.h"
#include "model/tokenizer.h"

namespace kvlane {
namespace {

const std::filesystem::path kModel = std::filesystem::path(kSourceDir) / "models/kvlane-tiny";

class TextTokens : public testing::Test {
 protected:
  std::filesystem::path write(std::string_view text) const {
    EXPECT_TRUE(write_file(file_, as_byte_view(text)).ok());
    return file_;
  }
  void TearDown() override { std::filesystem::remove(file_); }

  const std::filesystem::path file_ =
      std::filesystem::path(testing::TempDir()) /
      ("text_tokens_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
};

TEST_F(TextTokens, AreTheFirstOfTheText) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "once upon a time there were " + std::to_string(i) + " ";
  const auto tokenizer = Tokenizer::load(kModel);
  const auto all = tokenizer->encode(text);
  const auto some = read_text_tokens(kModel, write(text), 100);
  ASSERT_TRUE(some.ok());
  EXPECT_EQ(*some, std::vector<std::int32_t>(all->begin(), all->begin() + 100));
  EXPECT_EQ(read_text_tokens(kModel, file_, 1 << 20)->size(), all->size());
}

TEST_F(TextTokens, CutNoCharacterInTwo) {
  std::string text;
  for (int i = 0; i < 100; ++i)
    text += "\xE2\x82\xAC";  // three bytes each; 16 * n is in the middle
  for (std::size_t tokens = 1; tokens < 8; ++tokens) {
    const auto read = read_text_tokens(kModel, write(text), tokens);
    EXPECT_TRUE(read.ok()) << read.status().message();
  }
}

TEST_F(TextTokens, NeedText) {
  EXPECT_FALSE(read_text_tokens(kModel, "/no/such/file", 5).ok());
  const auto bad = read_text_tokens(kModel, write("caf\xE9 au lait"), 50);
  EXPECT_EQ(bad.status().code(), Code::kInvalidArgument);
  EXPECT_NE(bad.status().message().find(file_.string()), std::string::npos);
}

}  // namespace
}  // namespace kvlane
