// The JSON form of headers, against the golden files' expectations.
// SPDX-License-Identifier: Apache-2.0
#include "format/describe.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "format/frame.h"
#include "format/frame_fixture.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

using frame_fixture::kGoldenFrames;

std::string read_golden(const std::string& name) {
  Result<std::string> text = read_text_file(kGoldenFrames / name, 1 << 20);
  EXPECT_TRUE(text.ok()) << name;
  return text.ok() ? *text : "";
}

json describe(const std::string& file) {
  const Result<std::string> text = describe_frame_json(as_byte_view(file));
  EXPECT_TRUE(text.ok()) << text.status().message();
  return text.ok() ? json::parse(*text) : json();
}

TEST(DescribeFrame, GoldenFilesHaveTheHeadersBesideThem) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(kGoldenFrames / "valid")) {
    if (entry.path().extension() != ".frame") continue;
    ++files;
    const std::string stem = "valid/" + entry.path().stem().string();
    const json description = describe(read_golden(stem + ".frame"));
    const json expected = json::parse(read_golden(stem + ".json"));
    ASSERT_EQ(description["frames"].size(), expected.size()) << stem;
    EXPECT_EQ(description["checksums_verified"], true);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      for (const auto& [field, value] : expected[i].items()) {
        EXPECT_EQ(description["frames"][i][field], value) << stem << " " << field;
      }
    }
  }
  EXPECT_GE(files, 5);
}

TEST(DescribeFrame, SizesCountHeadersAndAllFrames) {
  const std::string two = read_golden("valid/two_frames.frame");
  const json description = describe(two);
  const std::size_t frame_bytes = two.size() / 2;
  EXPECT_EQ(description["frames"][0]["offset"], 0);
  EXPECT_EQ(description["frames"][1]["offset"], frame_bytes);
  EXPECT_EQ(description["frames"][1]["frame_bytes"], frame_bytes);
  EXPECT_EQ(description["frames"][1]["raw_bytes"], frame_bytes - kFrameHeaderBytes);
  EXPECT_EQ(description["raw_bytes"], two.size() - 2 * kFrameHeaderBytes);
  EXPECT_EQ(description["frame_bytes"], two.size());
  const double ratio =
      static_cast<double>(two.size() - 2 * kFrameHeaderBytes) / static_cast<double>(two.size());
  EXPECT_DOUBLE_EQ(description["ratio"].get<double>(), ratio);
}

TEST(DescribeFrame, ErrorsNameTheFrame) {
  std::string two = read_golden("valid/two_frames.frame");
  const std::string second = "frame 1 at byte " + std::to_string(two.size() / 2) + ": ";
  two.back() ^= 1;
  const Result<std::string> changed = describe_frame_json(as_byte_view(two));
  ASSERT_FALSE(changed.ok());
  EXPECT_EQ(changed.status().code(), Code::kCorrupt);
  EXPECT_THAT(changed.status().message(), HasSubstr(second));
  two.pop_back();
  const Result<std::string> cut = describe_frame_json(as_byte_view(two));
  ASSERT_FALSE(cut.ok());
  EXPECT_THAT(cut.status().message(), HasSubstr(second));
  EXPECT_EQ(describe_frame_json({}).status().code(), Code::kCorrupt);
}

TEST(DescribeFrame, TooManyFramesAreRefused) {
  const std::string one = read_golden("valid/fp16_without_rope.frame");
  std::string file;
  for (std::size_t i = 0; i <= kFramesDescribedMax; ++i) file += one;
  EXPECT_EQ(describe_frame_json(as_byte_view(file)).status().code(), Code::kExhausted);
}

}  // namespace
}  // namespace kvlane
