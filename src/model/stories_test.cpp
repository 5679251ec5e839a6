// A trained model, end to end: llama2.c's stories260K, converted, tells the story that llama2.c's
// own test expects. Needs the checkpoint beside the checkout (shared/data/models/stories260K).
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "base/file.h"
#include "base/temporary_directory.h"
#include "base/test_paths.h"
#include "model/forward.h"
#include "ops/sampling.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = kSourceDir;
const fs::path kStories = kSource / "../shared/data/models/stories260K";
constexpr int kSteps = 200;
constexpr std::int32_t kBos = 1;

// llama2.c's tokenizer file: the longest token's length, then score, length and text of each token.
std::vector<std::string> read_tokens(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> tokens;
  std::int32_t longest = 0;
  file.read(reinterpret_cast<char*>(&longest), sizeof(longest));
  float score = 0;
  std::int32_t length = 0;
  while (file.read(reinterpret_cast<char*>(&score), sizeof(score)) &&
         file.read(reinterpret_cast<char*>(&length), sizeof(length)) && length <= longest) {
    std::string token(length, '\0');
    file.read(token.data(), length);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// As llama2.c prints: a token's leading space is dropped after BOS, <0x0A> stands for its byte.
std::string decode(const std::vector<std::string>& tokens, const std::vector<std::int32_t>& ids) {
  std::string text;
  std::int32_t before = kBos;
  for (const std::int32_t id : ids) {
    std::string piece = tokens.at(id);
    if (before == kBos && !piece.empty() && piece[0] == ' ') piece.erase(0, 1);
    if (piece.size() == 6 && piece.rfind("<0x", 0) == 0) {
      piece = std::string(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
    }
    text += piece;
    before = id;
  }
  return text;
}

TEST(Stories, GreedyTextEqualsLlama2cOnEveryTier) {
  if (!fs::exists(kStories)) GTEST_SKIP() << "no " << kStories << ": the trained model is not here";
  const TemporaryDirectory directory;
  const fs::path converted = directory.path() / "stories";
  const std::string convert = "python3 " + (kSource / "tools/convert/llama2c.py").string() + " " +
                              (kStories / "stories260K.bin").string() + " " + converted.string();
  ASSERT_EQ(std::system(convert.c_str()), 0) << convert;
  const std::vector<std::string> tokens = read_tokens(kStories / "tok512.bin");
  ASSERT_EQ(tokens.size(), 512U);
  const auto expected =
      read_text_file(kSource / "tests/fixtures/stories260K_expected.txt", 1 << 16);
  ASSERT_TRUE(expected.ok()) << expected.status().message();

  for (const Isa isa : kAllIsas) {
    if (!isa_supported(isa)) continue;
    const auto model = Model::load(converted, {.isa = isa});
    ASSERT_TRUE(model.ok()) << model.status().message();
    auto pool = BlockPool::create((*model)->config().kv_shape(), std::size_t{1} << 24);
    ASSERT_TRUE(pool.ok());
    const auto forward = Forward::create(**model, 1, 1);
    ASSERT_TRUE(forward.ok());
    BlockTable table(*pool);
    ASSERT_TRUE(table.grow(kSteps).ok());
    std::vector<std::int32_t> ids;
    std::int32_t next = kBos;
    for (int step = 0; step < kSteps; ++step) {
      const ForwardSpan span{&table, {&next, 1}, 1};
      ASSERT_TRUE((*forward)->run({&span, 1}, {}).ok());
      next = sample_token((*forward)->logits(0), {.temperature = 0}, {}, step);
      if (next == kBos) break;
      ids.push_back(next);
    }
    EXPECT_EQ(decode(tokens, ids), *expected) << isa_name(isa);
  }
}

}  // namespace
}  // namespace kvlane
