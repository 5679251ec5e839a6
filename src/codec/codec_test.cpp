// What holds for all codecs: the table, the golden files, and buffers of exactly the stated size.
// SPDX-License-Identifier: Apache-2.0
#include "codec/codec.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/file.h"
#include "format/frame.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const fs::path kGolden = fs::path(KVLANE_SOURCE_DIR) / "tests/golden/codec";

std::vector<fs::path> frames_in(const char* folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(kGolden / folder)) {
    if (entry.path().extension() == ".frame") paths.push_back(entry.path());
  }
  EXPECT_FALSE(paths.empty()) << folder;
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Decodes both planes of a frame, each from and to heap blocks of the exact size.
Status decode_planes(const Frame& frame, std::vector<std::uint16_t>& planes) {
  KVLANE_ASSIGN(const Codec* codec, find_codec(frame.header.codec));
  const std::size_t elements = frame.header.plane_elements();
  planes.clear();
  for (const ByteView coded : {frame.k, frame.v}) {
    const auto copy = std::make_unique<std::byte[]>(coded.size());
    std::copy(coded.begin(), coded.end(), copy.get());
    const auto values = std::make_unique<std::uint16_t[]>(elements);
    KVLANE_TRY(
        codec->decode(frame.header.type, {copy.get(), coded.size()}, {values.get(), elements}));
    planes.insert(planes.end(), values.get(), values.get() + elements);
  }
  return {};
}

TEST(Codec, TableKnowsEveryListedNameAndNoOther) {
  std::string listed;
  for (const std::string_view name : {"none", "splitzip"}) {
    const Result<const Codec*> codec = find_codec(name);
    ASSERT_TRUE(codec.ok()) << name;
    EXPECT_EQ((*codec)->name(), name);
    listed += (listed.empty() ? "" : ", ") + std::string(name);
  }
  EXPECT_EQ(codec_names(), listed);
  const Result<const Codec*> unknown = find_codec("zstd");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), Code::kUnsupported);
  EXPECT_THAT(unknown.status().message(), HasSubstr("'zstd'"));
  EXPECT_THAT(unknown.status().message(), HasSubstr(listed));
}

TEST(Codec, NoCodecGrowsAPlaneBeyondTheFrameLimit) {
  for (const std::string_view name : {"none", "splitzip"}) {
    for (std::size_t n :
         {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{1000}, kPlaneElementsMax}) {
      EXPECT_LE((*find_codec(name))->bound(n), 2 * n + kPlaneGrowthBytesMax) << name << " " << n;
    }
  }
}

TEST(CodecGolden, ValidPlanesDecodeAndOurEncoderWritesTheSameBytes) {
  for (const fs::path& path : frames_in("valid")) {
    const Result<std::string> file = read_text_file(path, 1 << 20);
    ASSERT_TRUE(file.ok());
    const Result<Frame> frame = parse_frame(as_byte_view(*file));
    ASSERT_TRUE(frame.ok()) << path << ": " << frame.status().message();
    std::vector<std::uint16_t> planes;
    const Status decoded = decode_planes(*frame, planes);
    ASSERT_TRUE(decoded.ok()) << path << ": " << decoded.message();
    const Result<std::string> expected =
        read_text_file(fs::path(path).replace_extension(".planes"), 1 << 20);
    ASSERT_TRUE(expected.ok()) << path;
    ASSERT_EQ(planes.size() * 2, expected->size()) << path;
    EXPECT_EQ(std::memcmp(planes.data(), expected->data(), expected->size()), 0) << path;

    if (path.stem().string().starts_with("foreign_")) continue;
    const Codec& codec = **find_codec(frame->header.codec);
    const std::size_t elements = planes.size() / 2;
    for (const bool second : {false, true}) {
      Bytes coded(codec.bound(elements), std::byte{0xAA});
      const std::span values = std::span(planes).subspan(second ? elements : 0, elements);
      coded.resize(codec.encode(frame->header.type, values, coded));
      const ByteView golden = second ? frame->v : frame->k;
      EXPECT_TRUE(std::equal(coded.begin(), coded.end(), golden.begin(), golden.end()))
          << path << (second ? " V" : " K");
    }
  }
}

TEST(CodecGolden, BadPlanesAreRefusedForTheirReason) {
  for (const Code code : {Code::kCorrupt, Code::kUnsupported}) {
    for (const fs::path& path : frames_in(std::string(code_name(code)).c_str())) {
      const Result<std::string> file = read_text_file(path, 1 << 20);
      ASSERT_TRUE(file.ok());
      const Result<Frame> frame = parse_frame(as_byte_view(*file));
      ASSERT_TRUE(frame.ok()) << path << ": the frame around the plane is right";
      if (path.stem() == "unknown_format") continue;  // formats are refused before codecs are asked
      std::vector<std::uint16_t> planes;
      const Status status = decode_planes(*frame, planes);
      EXPECT_EQ(status.code(), code) << path << ": " << status.message();
    }
  }
}

TEST(NoneCodec, RoundTripAndExactLength) {
  const Codec& codec = **find_codec("none");
  std::vector<std::uint16_t> values(65536);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i);
  Bytes coded(codec.bound(values.size()));
  ASSERT_EQ(codec.encode(ElementType::kFp16, values, coded), 2 * values.size());
  EXPECT_EQ(coded[2 * 0x1234], std::byte{0x34});  // little-endian
  EXPECT_EQ(coded[2 * 0x1234 + 1], std::byte{0x12});
  std::vector<std::uint16_t> decoded(values.size());
  ASSERT_TRUE(codec.decode(ElementType::kFp16, coded, decoded).ok());
  EXPECT_EQ(decoded, values);
  const ByteView cut = ByteView(coded).first(coded.size() - 1);
  EXPECT_EQ(codec.decode(ElementType::kFp16, cut, decoded).code(), Code::kCorrupt);
  coded.push_back(std::byte{0});
  EXPECT_EQ(codec.decode(ElementType::kFp16, coded, decoded).code(), Code::kCorrupt);
  EXPECT_EQ(codec.encode(ElementType::kBf16, {}, {}), 0U);
  EXPECT_TRUE(codec.decode(ElementType::kBf16, {}, {}).ok());
}

}  // namespace
}  // namespace kvlane
