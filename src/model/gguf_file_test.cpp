// Models in one file and in parts, by directory and by name, and what is not one model.
// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/chat_template.h"
#include "model/checkpoint.h"
#include "model/gguf_fixture.h"
#include "model/tokenizer.h"

namespace kvlane {
namespace {

using gguf_fixture::GgufDirectory;
using gguf_fixture::kFiles;
using gguf_fixture::kFixtures;
using gguf_fixture::read_gguf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

const std::vector<std::string> kParts = {"model-00001-of-00003", "model-00002-of-00003",
                                         "model-00003-of-00003"};

// The parts of the fixture, but for the one named.
void add_parts(const GgufDirectory& directory, const std::string& without = "") {
  for (const std::string& part : kParts) {
    if (part != without) directory.add(part + ".gguf", read_gguf("split/" + part));
  }
}

std::string open_error(const fs::path& path, Code code) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(path);
  if (checkpoint.ok()) return "it was opened";
  EXPECT_EQ(checkpoint.status().code(), code) << checkpoint.status().message();
  return checkpoint.status().message();
}

TEST(GgufFileTest, PartsAreOneModel) {
  const Result<Checkpoint> model = Checkpoint::open(kFixtures / "models" / "llama-mha-bf16-tied");
  ASSERT_TRUE(model.ok());
  // The directory, and any part.
  for (const fs::path& path : {kFiles / "split", kFiles / "split" / (kParts[1] + ".gguf")}) {
    const Result<Checkpoint> split = Checkpoint::open(path);
    ASSERT_TRUE(split.ok()) << split.status().message();
    EXPECT_EQ(split->shards().size(), 3U);
    EXPECT_EQ(split->directory(), kFiles / "split");
    ASSERT_EQ(split->tensors().size(), model->tensors().size());
    for (const auto& [name, tensor] : model->tensors()) {
      EXPECT_EQ(split->tensors().at(name).shape, tensor.shape) << name;
    }
    EXPECT_TRUE(split->identity({}).ok());
    const Result<Tokenizer> tokenizer = Tokenizer::load(path);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    EXPECT_EQ(ChatTemplate::load(path).status().code(), Code::kNotFound);
  }
}

TEST(GgufFileTest, AFileStandsForItsDirectory) {
  const GgufDirectory directory(read_gguf("llama"));
  directory.add("other.gguf", read_gguf("phi3-tokens"));
  directory.add("config.json", "{}");
  EXPECT_TRUE(Checkpoint::open(directory.path() / "model.gguf").ok());
  const fs::path other = directory.path() / "other.gguf";
  EXPECT_THAT(open_error(other, Code::kCorrupt), HasSubstr("'token_embd.weight'"));
  EXPECT_TRUE(Tokenizer::load(other).ok());
  EXPECT_TRUE(ChatTemplate::load(other).ok());
  // Other files and no file are still no directory.
  EXPECT_THAT(open_error(directory.path() / "config.json", Code::kNotFound),
              HasSubstr("there is no directory"));
  EXPECT_THAT(open_error(directory.path() / "none.gguf", Code::kNotFound),
              HasSubstr("there is no file"));
}

TEST(GgufFileTest, APartThatIsMissingIsNamed) {
  for (const std::string& part : kParts) {
    const GgufDirectory directory;
    add_parts(directory, part);
    EXPECT_THAT(open_error(directory.path(), Code::kCorrupt),
                HasSubstr("there is no file " + (directory.path() / part).string()));
  }
}

TEST(GgufFileTest, FilesOfSeveralModelsAreNoModel) {
  const GgufDirectory directory;
  add_parts(directory);
  directory.add("other.gguf", read_gguf("llama"));
  EXPECT_THAT(open_error(directory.path(), Code::kUnsupported),
              HasSubstr("several .gguf files, and other.gguf is no part"));
  // By name it is clear which is meant.
  EXPECT_TRUE(Checkpoint::open(directory.path() / "other.gguf").ok());
  EXPECT_TRUE(Checkpoint::open(directory.path() / (kParts[0] + ".gguf")).ok());
}

TEST(GgufFileTest, NamesMustMakeSense) {
  const std::string file = read_gguf("llama");
  const struct {
    const char* name;
    Code code;
    const char* words;
  } cases[] = {
      {"a-00000-of-00003.gguf", Code::kCorrupt, "part 0 of 3"},
      {"a-00004-of-00003.gguf", Code::kCorrupt, "part 4 of 3"},
      {"a-00001-of-02000.gguf", Code::kUnsupported, "one of 2000 parts; kvlane takes up to 1024"},
  };
  for (const auto& bad : cases) {
    const GgufDirectory directory;
    directory.add(bad.name, file);
    EXPECT_THAT(open_error(directory.path(), bad.code), HasSubstr(bad.words));
  }
  // Names that are like those of parts and are none.
  for (const char* const name : {"-00001-of-0001.gguf", "a-0x001-of-00003.gguf",
                                 "a-00001_of-00003.gguf", "a-00001-of-00001.gguf"}) {
    const GgufDirectory directory;
    directory.add(name, file);
    EXPECT_TRUE(Checkpoint::open(directory.path()).ok()) << name;
  }
}

TEST(GgufFileTest, PartsSayThatTheyBelongTogether) {
  const GgufDirectory directory;
  add_parts(directory, kParts[1]);
  directory.add(kParts[1] + ".gguf", read_gguf("split/" + kParts[2]));
  EXPECT_THAT(open_error(directory.path(), Code::kCorrupt),
              HasSubstr("part 2 of 3: 'split.no' is not 1"));
  directory.add(kParts[1] + ".gguf", read_gguf("llama"));
  EXPECT_THAT(open_error(directory.path(), Code::kCorrupt),
              HasSubstr("part 2 of 3: it has no number 'split.count'"));
  // A part alone, under another name.
  const GgufDirectory alone(read_gguf("split/" + kParts[0]));
  EXPECT_THAT(open_error(alone.path(), Code::kCorrupt),
              HasSubstr("part 1 of 1: 'split.count' is not 1"));
  directory.add(kParts[1] + ".gguf", "GGUF");
  EXPECT_THAT(open_error(directory.path(), Code::kCorrupt),
              HasSubstr(kParts[1] + ".gguf: it is not a GGUF file"));
}

// Parts with one tensor each.
std::vector<GgufFile> made_parts() {
  std::vector<GgufFile> parts(2);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    parts[part].metadata = {{"split.no", static_cast<double>(part)},
                            {"split.count", 2.0},
                            {"split.tensors.count", 2.0}};
    parts[part].tensors["t" + std::to_string(part)] = {};
  }
  return parts;
}

TEST(GgufFileTest, EntriesOfPartsAreChecked) {
  ASSERT_TRUE(join_gguf(made_parts()).ok());
  EXPECT_EQ(join_gguf(made_parts())->tensors.size(), 2U);
  // The first part may have the metadata alone.
  std::vector<GgufFile> later = made_parts();
  later[1].tensors.merge(later[0].tensors);
  EXPECT_EQ(join_gguf(std::move(later))->tensors.size(), 2U);
  const struct {
    std::size_t part;
    const char* name;
    GgufValue value;
    const char* words;
  } cases[] = {
      {0, "split.tensors.count", 3.0, "part 2 of 2: 'split.tensors.count' is not 3"},
      {0, "split.tensors.count", -1.0, "'split.tensors.count' is missing, or no number"},
      {0, "split.tensors.count", 1e300, "'split.tensors.count' is missing, or no number"},
      {0, "split.tensors.count", std::string_view("2"), "missing, or no number of tensors"},
      {1, "split.count", 3.0, "part 2 of 2: 'split.count' is not 2"},
      {1, "split.no", 0.0, "part 2 of 2: 'split.no' is not 1"},
      {1, "split.no", true, "part 2 of 2: it has no number 'split.no'"},
  };
  for (const auto& bad : cases) {
    std::vector<GgufFile> parts = made_parts();
    parts[bad.part].metadata[bad.name] = bad.value;
    const Result<GgufFile> joined = join_gguf(std::move(parts));
    ASSERT_FALSE(joined.ok()) << bad.words;
    EXPECT_EQ(joined.status().code(), Code::kCorrupt);
    EXPECT_THAT(joined.status().message(), HasSubstr(bad.words));
  }
  std::vector<GgufFile> twice = made_parts();
  twice[1].tensors["t0"] = {};
  EXPECT_THAT(join_gguf(std::move(twice)).status().message(),
              HasSubstr("part 2 of 2: tensor 't0' is in a part before it"));
  std::vector<GgufFile> fewer = made_parts();
  fewer[1].tensors.clear();
  EXPECT_THAT(join_gguf(std::move(fewer)).status().message(),
              HasSubstr("its parts have 1 tensors, and 'split.tensors.count' says 2"));
}

}  // namespace
}  // namespace kvlane
