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
#include "base/test_paths.h"
#include "cpu/tiers_fixture.h"
#include "format/frame.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using tiers_fixture::tiers;

const fs::path kGolden = fs::path(kSourceDir) / "tests/golden/codec";

std::vector<fs::path> frames_in(const char* folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(kGolden / folder)) {
    if (entry.path().extension() == ".frame") paths.push_back(entry.path());
  }
  EXPECT_FALSE(paths.empty()) << folder;
  std::sort(paths.begin(), paths.end());
  return paths;
}

PlaneShape shape_of(const FrameHeader& header) {
  return {header.type, header.kv_heads, header.tokens, header.head_dim};
}

PlaneShape shape_of(std::size_t elements, ElementType type) {
  return {type, 1, 1, static_cast<int>(elements)};
}

// Decodes both planes of a frame, each from and to heap blocks of the exact size.
Status decode_planes(const Frame& frame, Isa isa, Bytes& planes) {
  KVLANE_ASSIGN(const Codec* codec, find_codec(frame.header.codec, isa));
  const PlaneShape shape = shape_of(frame.header);
  planes.clear();
  for (const ByteView coded : {frame.k, frame.v}) {
    const auto copy = std::make_unique<std::byte[]>(coded.size());
    std::copy(coded.begin(), coded.end(), copy.get());
    const auto plane = std::make_unique<std::byte[]>(shape.bytes());
    KVLANE_TRY(
        codec->decode(shape, {copy.get(), coded.size()}, std::span(plane.get(), shape.bytes())));
    planes.insert(planes.end(), plane.get(), plane.get() + shape.bytes());
  }
  return {};
}

TEST(Codec, TableKnowsEveryListedNameAndNoOther) {
  std::string listed;
  for (const std::string_view name : {"none", "splitzip", "splitzip:channel"}) {
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
  for (const std::string_view name : {"none", "splitzip", "splitzip:channel"}) {
    for (std::size_t n :
         {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{1000}, kPlaneElementsMax}) {
      for (const ElementType type : {ElementType::kBf16, ElementType::kFp8E5m2}) {
        const PlaneShape shape = shape_of(n, type);
        EXPECT_LE((*find_codec(name))->bound(shape), shape.bytes() + kPlaneGrowthBytesMax)
            << name << " " << n;
      }
    }
  }
}

void expect_encodes_to(const Frame& frame, Isa isa, const Bytes& planes) {
  const Codec& codec = **find_codec(frame.header.codec, isa);
  const PlaneShape shape = shape_of(frame.header);
  for (const bool second : {false, true}) {
    Bytes coded(codec.bound(shape), std::byte{0xAA});
    const ByteView plane = ByteView(planes).subspan(second ? shape.bytes() : 0, shape.bytes());
    coded.resize(codec.encode(shape, plane, nullptr, coded));
    const ByteView golden = second ? frame.v : frame.k;
    EXPECT_TRUE(std::equal(coded.begin(), coded.end(), golden.begin(), golden.end()))
        << (second ? "V" : "K");
  }
}

TEST(CodecGolden, ValidPlanesDecodeAndOurEncoderWritesTheSameBytes) {
  for (const fs::path& path : frames_in("valid")) {
    const Result<std::string> file = read_text_file(path, 1 << 20);
    ASSERT_TRUE(file.ok());
    const Result<Frame> frame = parse_frame(as_byte_view(*file));
    ASSERT_TRUE(frame.ok()) << path << ": " << frame.status().message();
    const Result<std::string> expected =
        read_text_file(fs::path(path).replace_extension(".planes"), 1 << 20);
    ASSERT_TRUE(expected.ok()) << path;
    for (const Isa isa : tiers()) {
      SCOPED_TRACE(path.string() + " on " + std::string(isa_name(isa)));
      Bytes planes;
      const Status decoded = decode_planes(*frame, isa, planes);
      ASSERT_TRUE(decoded.ok()) << decoded.message();
      ASSERT_EQ(planes.size(), expected->size());
      EXPECT_EQ(std::memcmp(planes.data(), expected->data(), expected->size()), 0);
      if (!path.stem().string().starts_with("foreign_")) {
        expect_encodes_to(*frame, isa, planes);
      }
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
      for (const Isa isa : tiers()) {
        Bytes planes;
        const Status status = decode_planes(*frame, isa, planes);
        EXPECT_EQ(status.code(), code)
            << path << " on " << isa_name(isa) << ": " << status.message();
      }
    }
  }
}

TEST(NoneCodec, RoundTripAndExactLength) {
  const Codec& codec = **find_codec("none");
  for (const ElementType type : {ElementType::kFp16, ElementType::kFp8E4m3}) {
    Bytes plane(65536);
    for (std::size_t i = 0; i < plane.size(); ++i) plane[i] = std::byte(i % 251);
    const PlaneShape shape = shape_of(plane.size() / element_bytes(type), type);
    ASSERT_EQ(codec.bound(shape), plane.size());
    Bytes coded(plane.size());
    ASSERT_EQ(codec.encode(shape, plane, nullptr, coded), plane.size());
    EXPECT_EQ(coded, plane);
    Bytes decoded(plane.size());
    ASSERT_TRUE(codec.decode(shape, coded, decoded).ok());
    EXPECT_EQ(decoded, plane);
    const ByteView cut = ByteView(coded).first(coded.size() - 1);
    EXPECT_EQ(codec.decode(shape, cut, decoded).code(), Code::kCorrupt);
    coded.push_back(std::byte{0});
    EXPECT_EQ(codec.decode(shape, coded, decoded).code(), Code::kCorrupt);
    EXPECT_EQ(codec.encode(shape_of(0, type), ByteView(), nullptr, {}), 0U);
    EXPECT_TRUE(codec.decode(shape_of(0, type), {}, std::span<std::byte>()).ok());
  }
}

}  // namespace
}  // namespace kvlane
