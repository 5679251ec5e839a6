// The tokenizers of tests/fixtures/tokenizer, for tests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/file.h"
#include "base/test_paths.h"
#include "model/tokenizer.h"

namespace kvlane {

inline std::string read_tokenizer_fixture(const std::string& name) {
  const Result<std::string> text = read_text_file(
      std::filesystem::path(kSourceDir) / "tests/fixtures/tokenizer" / name, 1U << 20);
  EXPECT_TRUE(text.ok()) << text.status().message();
  return text.ok() ? *text : std::string();
}

// "spm" is a tokenizer.model, all others are a tokenizer.json.
inline Result<Tokenizer> parse_tokenizer_fixture(const std::string& name) {
  if (name == "spm") return Tokenizer::parse_sentencepiece(read_tokenizer_fixture("spm.model"));
  return Tokenizer::parse(read_tokenizer_fixture(name + ".json"));
}

}  // namespace kvlane
