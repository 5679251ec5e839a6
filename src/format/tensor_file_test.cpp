// Tensor files: the table's limits, the shapes of planes, and the golden files' headers and ends.
// SPDX-License-Identifier: Apache-2.0
#include "format/tensor_file.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/test_paths.h"
#include "format/describe.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

const fs::path kGoldenTensorFiles = fs::path(kSourceDir) / "tests/golden/tensor_file";

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<fs::path> files_in(const char* folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(kGoldenTensorFiles / folder)) {
    if (entry.path().extension() == ".kvl") paths.push_back(entry.path());
  }
  EXPECT_FALSE(paths.empty()) << folder;
  std::sort(paths.begin(), paths.end());
  return paths;
}

Segment sample_segment() {
  return {.role = SegmentRole::kTensor,
          .type = ElementType::kBf16,
          .bytes = 2 * 100 * 96,
          .row_elements = 96,
          .plane_rows = 64,
          .shape = {100, 96},
          .type_name = "BF16",
          .name = "layers.0.k"};
}

TensorFileHead head_of(std::vector<Segment> segments) {
  TensorFileHead head;
  head.kind = TensorFileKind::kSafetensors;
  head.segments = std::move(segments);
  return head;
}

// From blocks of exactly these sizes: AddressSanitizer then sees a byte read too many.
Result<TensorFileHead> parse_head(ByteView bytes) {
  const std::size_t header_bytes = std::min(bytes.size(), kTensorFileHeaderBytes);
  const auto first = std::make_unique<std::byte[]>(header_bytes);
  std::copy_n(bytes.data(), header_bytes, first.get());
  KVLANE_ASSIGN(const TensorFileHeader header,
                parse_tensor_file_header({first.get(), header_bytes}));
  const std::size_t rest = std::min<std::size_t>(bytes.size() - header_bytes, header.table_bytes);
  const auto table = std::make_unique<std::byte[]>(rest);
  std::copy_n(bytes.data() + header_bytes, rest, table.get());
  return parse_segment_table(header, {table.get(), rest});
}

TEST(TensorFileHead, ComesBackAsItWasBuilt) {
  TensorFileHead head =
      head_of({{.role = SegmentRole::kOther, .bytes = 11},
               sample_segment(),
               {.role = SegmentRole::kTensor, .bytes = 3, .shape = {1, 2}, .name = "odd"}});
  const auto bytes = build_tensor_file_head(head);
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  EXPECT_EQ(head.file_bytes, 11U + 19200 + 3);
  EXPECT_EQ(head.planes, 11U + 2 + 3);
  EXPECT_EQ(bytes->size() % kTensorFileAlignment, 0U);
  const auto parsed = parse_head(*bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->kind, head.kind);
  EXPECT_EQ(parsed->segments, head.segments);
  EXPECT_EQ(parsed->header_checksum, head.header_checksum);
}

TEST(TensorFileHead, EveryTruncationAndEveryChangedByteIsRefused) {
  TensorFileHead head = head_of({sample_segment()});
  const Bytes good = *build_tensor_file_head(head);
  for (std::size_t at = 0; at < good.size(); ++at) {
    EXPECT_FALSE(parse_head(ByteView(good).first(at)).ok()) << "cut at " << at;
    Bytes changed = good;
    changed[at] ^= std::byte(1U << at % 8);
    EXPECT_FALSE(parse_head(changed).ok()) << "byte " << at;
  }
}

TEST(TensorFileHead, FieldsOutOfRangeAreNotWritten) {
  const auto refused = [](auto change, const char* why) {
    Segment segment = sample_segment();
    change(segment);
    TensorFileHead head = head_of({segment});
    const auto built = build_tensor_file_head(head);
    ASSERT_FALSE(built.ok()) << why;
    EXPECT_EQ(built.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(built.status().message(), HasSubstr(why));
  };
  refused([](Segment& s) { s.role = SegmentRole::kOther; }, "between tensors");
  refused([](Segment& s) { s.type = ElementType::kF32; }, "f32");
  refused([](Segment& s) { s.shape.resize(65, 1); }, "65 dimensions");
  refused([](Segment& s) { s.name.assign(65536, 'n'); }, "65536 bytes");
  refused([](Segment& s) { s.type_name.assign(33, 't'); }, "too long");
  refused([](Segment& s) { s.type_name = "\n"; }, "not printable");
  refused([](Segment& s) { s.row_elements = 0; }, "empty or too large");
  refused([](Segment& s) { s.plane_rows = 0; }, "empty or too large");
  refused([](Segment& s) { s.plane_rows = (1U << 24) / 192 + 1; }, "empty or too large");
  refused([](Segment& s) { s.row_elements = s.plane_rows = UINT32_MAX; }, "empty or too large");
  refused([](Segment& s) { s.shape = {100, 95}; }, "shape of another size");
  refused([](Segment& s) { s.shape = {std::uint64_t{1} << 63, 2, 2}; }, "shape of another size");
  const Segment huge{
      .role = SegmentRole::kOther, .bytes = kTensorFileBytesMax, .row_elements = 1U << 24};
  TensorFileHead head = head_of({huge, {.role = SegmentRole::kOther, .bytes = 1}});
  EXPECT_THAT(build_tensor_file_head(head).status().message(), HasSubstr("too large"));
  head = head_of({huge});
  EXPECT_TRUE(build_tensor_file_head(head).ok());
  head = head_of(std::vector<Segment>(kSegmentsMax + 1));
  EXPECT_THAT(build_tensor_file_head(head).status().message(), HasSubstr("too many"));
}

TEST(TensorFileHead, LongestFieldsFit) {
  Segment segment = sample_segment();
  segment.name.assign(kSegmentNameBytesMax, 'n');
  segment.type_name.assign(kSegmentTypeNameBytesMax, 't');
  segment.shape.resize(kSegmentDimensionsMax, 1);
  TensorFileHead head = head_of({segment});
  const auto parsed = parse_head(*build_tensor_file_head(head));
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->segments.front(), segment);
}

TEST(Segment, ItsPlanesTileIt) {
  for (const std::uint64_t elements : {0, 1, 6, 7, 8, 27, 28, 29, 34, 35, 36, 56, 1000}) {
    const Segment segment{
        .type = ElementType::kBf16, .bytes = 2 * elements, .row_elements = 7, .plane_rows = 4};
    std::uint64_t at = 0;
    for (std::uint64_t i = 0; i < segment.planes(); ++i) {
      const SegmentPlane plane = segment_plane(segment, i);
      EXPECT_EQ(plane.first, at);
      EXPECT_GT(plane.elements(), 0U);
      EXPECT_LE(plane.rows, 4U);
      // Whole rows, but for the last plane, which may be a part of one.
      EXPECT_TRUE(plane.row_elements == 7 ||
                  (i + 1 == segment.planes() && plane.rows == 1 && plane.row_elements < 7));
      at += plane.elements();
    }
    EXPECT_EQ(at, elements);
  }
}

TEST(PlaneRecord, ChecksWhatItIsSupposedToBe) {
  const Segment segment = sample_segment();
  const SegmentPlane plane = segment_plane(segment, 1);
  PlaneRecord record{.number = 5, .coded_bytes = 100, .codec = PlaneCodec::kSplitZip};
  const auto code = [&](PlaneRecord wrong, const Segment& of) {
    return parse_plane_record(build_plane_record(wrong), 5, of, plane).status().code();
  };
  EXPECT_EQ(code(record, segment), Code::kOk);
  PlaneRecord wrong = record;
  wrong.number = 6;
  EXPECT_EQ(code(wrong, segment), Code::kCorrupt);
  for (const std::uint32_t bytes : {0U, 2 * 36 * 96 + 1U, UINT32_MAX}) {
    wrong = record;
    wrong.coded_bytes = bytes;
    EXPECT_EQ(code(wrong, segment), Code::kCorrupt) << bytes;
  }
  wrong = record;
  wrong.codec = PlaneCodec::kNone;
  EXPECT_EQ(code(wrong, segment), Code::kCorrupt);
  wrong.coded_bytes = 2 * 36 * 96;
  EXPECT_EQ(code(wrong, segment), Code::kOk);
  Segment bytes = segment;
  bytes.type.reset();
  EXPECT_EQ(code(record, bytes), Code::kCorrupt);
}

// Coded planes that break their codec's rules are the codecs' business: this folder has none.
bool needs_decoding(const fs::path& path) {
  const std::string stem = path.stem().string();
  return stem.starts_with("plane_checksum") || stem == "codec_of_another" ||
         stem == "body_of_another_shape";
}

TEST(DescribeTensorFile, GoldenFilesAreAsTheySay) {
  for (const fs::path& path : files_in("valid")) {
    const auto description = describe_tensor_file_json(as_byte_view(read_text(path)));
    ASSERT_TRUE(description.ok()) << path << ": " << description.status().message();
    json described = json::parse(*description);
    const json expected = json::parse(read_text(fs::path(path).replace_extension(".json")));
    EXPECT_EQ(described["container_bytes"], fs::file_size(path));
    for (const char* more : {"container_bytes", "ratio", "checksums_verified"}) {
      EXPECT_EQ(described.erase(more), 1U);
    }
    std::uint64_t planes = 0;
    for (json& segment : described["segments"]) {
      for (const auto& [codec, count] : segment["codecs"].items()) planes += count.get<int>();
      for (const char* more : {"coded_bytes", "codecs", "ratio"}) segment.erase(more);
    }
    EXPECT_EQ(planes, expected["planes"]);
    EXPECT_EQ(described, expected) << path;
  }
}

TEST(DescribeTensorFile, BadFilesAreRefusedForTheirReason) {
  for (const auto& [folder, code] :
       {std::pair("corrupt", Code::kCorrupt), std::pair("unsupported", Code::kUnsupported)}) {
    for (const fs::path& path : files_in(folder)) {
      if (needs_decoding(path)) continue;
      const Status status = describe_tensor_file_json(as_byte_view(read_text(path))).status();
      EXPECT_EQ(status.code(), code) << path << ": " << status.message();
    }
  }
}

TEST(DescribeTensorFile, NamesThatAreNotUtf8AreShown) {
  TensorFileHead head = head_of({{.role = SegmentRole::kTensor, .name = "\xFF\xFE"}});
  Bytes file = *build_tensor_file_head(head);
  const auto end = build_tensor_file_end(
      {.container_bytes = file.size() + kTensorFileEndBytes, .chain = head.header_checksum});
  file.insert(file.end(), end.begin(), end.end());
  const auto description = describe_tensor_file_json(file);
  ASSERT_TRUE(description.ok()) << description.status().message();
  EXPECT_EQ(json::parse(*description)["segments"][0]["name"], "\uFFFD\uFFFD");
}

}  // namespace
}  // namespace kvlane
