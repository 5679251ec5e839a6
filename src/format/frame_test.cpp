// Frames: round trip, limits, every truncation and corruption, and the golden files.
// SPDX-License-Identifier: Apache-2.0
#include "format/frame.h"

#include <gmock/gmock.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "format/frame_fixture.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr std::size_t kHeaderChecksumAt = 184;
using frame_fixture::kGoldenFrames;

Bytes read_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const ByteView bytes = as_byte_view(text);
  return {bytes.begin(), bytes.end()};
}

std::vector<fs::path> frames_in(const char* folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(kGoldenFrames / folder)) {
    if (entry.path().extension() == ".frame") paths.push_back(entry.path());
  }
  EXPECT_FALSE(paths.empty()) << folder;
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Parses from a heap block of exactly this size: AddressSanitizer then sees a byte read too many.
Result<Frame> parse_copy(ByteView bytes, std::unique_ptr<std::byte[]>& copy) {
  copy = std::make_unique<std::byte[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.get());
  return parse_frame({copy.get(), bytes.size()});
}

Code parse_code(ByteView bytes) {
  std::unique_ptr<std::byte[]> copy;
  return parse_copy(bytes, copy).status().code();
}

FrameHeader sample_header() {
  FrameHeader header;
  for (std::size_t i = 0; i < header.model.size(); ++i) header.model[i] = std::byte(i);
  header.codec = "splitzip";
  header.layer = 31;
  header.kv_heads = 2;
  header.head_dim = 3;
  header.position = 640;
  header.tokens = 5;
  return header;
}

const Bytes kK(7, std::byte{1});
const Bytes kV(9, std::byte{2});

Bytes sample_frame() {
  Result<Bytes> frame = build_frame(sample_header(), kK, kV);
  EXPECT_TRUE(frame.ok()) << frame.status().message();
  return *frame;
}

TEST(Frame, RoundTrip) {
  const Bytes bytes = sample_frame();
  ASSERT_EQ(bytes.size(), kFrameHeaderBytes + 7 + 9);
  const Result<Frame> frame = parse_frame(bytes);
  ASSERT_TRUE(frame.ok()) << frame.status().message();
  const FrameHeader sent = sample_header();
  const FrameHeader& got = frame->header;
  EXPECT_EQ(got.model, sent.model);
  EXPECT_EQ(got.format, "bf16");
  EXPECT_EQ(got.codec, "splitzip");
  EXPECT_EQ(got.type, ElementType::kBf16);
  EXPECT_EQ(got.layer, 31);
  EXPECT_EQ(got.kv_heads, 2);
  EXPECT_EQ(got.head_dim, 3);
  EXPECT_EQ(got.position, 640);
  EXPECT_EQ(got.tokens, 5);
  EXPECT_TRUE(got.rope_applied);
  EXPECT_EQ(got.k_bytes, 7U);
  EXPECT_EQ(got.v_bytes, 9U);
  EXPECT_EQ(got.plane_elements(), 30U);
  EXPECT_EQ(got.raw_bytes(), 120U);
  EXPECT_TRUE(std::equal(frame->k.begin(), frame->k.end(), kK.begin(), kK.end()));
  EXPECT_TRUE(std::equal(frame->v.begin(), frame->v.end(), kV.begin(), kV.end()));
  // The planes are part of the caller's buffer, not copies.
  EXPECT_EQ(frame->k.data(), bytes.data() + kFrameHeaderBytes);
}

TEST(Frame, SameFieldsGiveSameBytes) { EXPECT_EQ(sample_frame(), sample_frame()); }

TEST(Frame, OfASealedSlabHasOneBodyAndSaysItsTables) {
  FrameHeader header = sample_header();
  header.format = "fp8_e4m3";  // with scales, not rows of such values
  header.codec = "none";
  header.tokens = kBlockTokens;
  header.sealed = true;
  header.tables = 0x0123456789abcdef;
  const Result<Bytes> bytes = build_frame(header, kK, {});
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  const Result<Frame> frame = parse_frame(*bytes);
  ASSERT_TRUE(frame.ok()) << frame.status().message();
  EXPECT_TRUE(frame->header.sealed);
  EXPECT_EQ(frame->header.tables, header.tables);
  EXPECT_TRUE(std::equal(frame->k.begin(), frame->k.end(), kK.begin(), kK.end()));
  EXPECT_TRUE(frame->v.empty());

  EXPECT_EQ(build_frame(header, kK, kV).status().code(), Code::kInvalidArgument);
  const auto refused = [&](auto&& change) {
    FrameHeader bad = header;
    change(bad);
    return build_frame(bad, kK, {}).status().code() == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](FrameHeader& h) { h.tokens = 63; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.codec = "splitzip"; }));
  EXPECT_TRUE(refused([](FrameHeader& h) { h.format = "bf16"; }));
  FrameHeader rows = sample_header();
  rows.tables = 1;
  EXPECT_EQ(build_frame(rows, kK, kV).status().code(), Code::kInvalidArgument);
}

// Its planes have at most as many values as its rows had; how many, only its format knows.
TEST(Frame, OfASealedSlabInACodecHasTwoPlanes) {
  FrameHeader header = sample_header();
  header.format = "zack:keep=0.5";
  header.tokens = kBlockTokens;
  header.sealed = true;
  header.tables = 1;
  const Result<Bytes> bytes = build_frame(header, kK, kV);
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  const Result<Frame> frame = parse_frame(*bytes);
  ASSERT_TRUE(frame.ok()) << frame.status().message();
  EXPECT_TRUE(frame->header.sealed);
  EXPECT_FALSE(frame->header.packed());
  EXPECT_EQ(frame->header.codec, "splitzip");
  EXPECT_EQ(frame->k.size(), kK.size());
  EXPECT_EQ(frame->v.size(), kV.size());

  const auto builds = [&](const Bytes& k, const Bytes& v) {
    return build_frame(header, k, v).ok();
  };
  const Bytes longest(2 * header.plane_elements() + kPlaneGrowthBytesMax);
  const Bytes longer(longest.size() + 1);
  EXPECT_TRUE(builds(longest, longest));
  EXPECT_FALSE(builds(longer, kV));
  EXPECT_FALSE(builds(kK, longer));
  EXPECT_FALSE(builds({}, kV));
  EXPECT_FALSE(builds(kK, {}));
  header.format = "bf16";
  EXPECT_FALSE(builds(kK, kV));
}

TEST(Frame, IsWrittenWhereItLies) {
  FrameHeader header = sample_header();
  ASSERT_TRUE(set_body_lengths(header, kK, kV).ok());
  Bytes frame(sample_frame().size(), std::byte{9});
  ASSERT_TRUE(write_frame(header, body_of(kK, kV), frame).ok());
  EXPECT_EQ(frame, sample_frame());
  // Nobody is asked for the body of a frame that is refused.
  header.layer = -1;
  bool asked = false;
  const auto ask = [&](auto, auto) { asked = true; };
  EXPECT_EQ(write_frame(header, ask, frame).code(), Code::kInvalidArgument);
  EXPECT_FALSE(asked);
  EXPECT_EQ(frame, sample_frame());
}

TEST(Frame, StatedLengthsAndChecksumsOfTheCallerAreIgnored) {
  FrameHeader header = sample_header();
  header.k_bytes = 1;
  header.v_bytes = 0xFFFFFFFF;
  header.body_checksum = 3;
  header.header_checksum = 4;
  EXPECT_EQ(*build_frame(header, kK, kV), sample_frame());
}

TEST(Frame, HeaderAloneIsEnoughToKnowTheLength) {
  const Bytes bytes = sample_frame();
  const auto header = parse_frame_header(ByteView(bytes).first(kFrameHeaderBytes));
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->body_bytes(), 16U);
}

TEST(Frame, EveryTruncationIsCorrupt) {
  const Bytes bytes = sample_frame();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_EQ(parse_code(ByteView(bytes).first(length)), Code::kCorrupt) << length;
  }
}

TEST(Frame, TrailingByteIsCorrupt) {
  Bytes bytes = sample_frame();
  bytes.push_back(std::byte{0});
  EXPECT_EQ(parse_code(bytes), Code::kCorrupt);
}

TEST(Frame, EveryChangedBitIsRefused) {
  Bytes bytes = sample_frame();
  for (std::size_t i = 0; i < bytes.size() * 8; ++i) {
    const std::byte bit = std::byte{1} << static_cast<int>(i % 8);
    bytes[i / 8] ^= bit;
    const Code code = parse_code(bytes);
    // The version is looked at before the checksum, which a later version may put elsewhere.
    const bool in_version = i / 8 == 8 || i / 8 == 9;
    EXPECT_EQ(code, in_version ? Code::kUnsupported : Code::kCorrupt) << "bit " << i;
    bytes[i / 8] ^= bit;
  }
}

// With the header's checksum put right, only the checks of the fields are left to refuse a header.
TEST(Frame, EveryHeaderByteIsCheckedOrCarriedThrough) {
  const Bytes good = sample_frame();
  for (std::size_t at = 0; at < kHeaderChecksumAt; ++at) {
    for (const unsigned change : {0x01U, 0x80U, 0xFFU}) {
      Bytes bytes = good;
      bytes[at] ^= std::byte(change);
      const std::uint64_t checksum = XXH3_64bits(bytes.data(), kHeaderChecksumAt);
      std::memcpy(bytes.data() + kHeaderChecksumAt, &checksum, sizeof(checksum));
      const Result<FrameHeader> header = parse_frame_header(bytes);
      if (!header.ok()) continue;
      // Accepted: then it is another right header, and building it gives these very bytes.
      if (header->k_bytes != kK.size() || header->v_bytes != kV.size()) continue;
      Bytes rebuilt = *build_frame(*header, kK, kV);
      // build_frame computes the body checksum, so a wrong one is not carried through.
      std::memcpy(rebuilt.data() + 160, bytes.data() + 160, 8);
      std::memcpy(rebuilt.data() + kHeaderChecksumAt, &checksum, sizeof(checksum));
      EXPECT_EQ(rebuilt, bytes) << "byte " << at;
    }
  }
}

struct BadField {
  const char* message;
  void (*spoil)(FrameHeader&);
};

TEST(Frame, BuildRefusesFieldsOutOfRange) {
  const BadField cases[] = {
      {"layer is -1, outside 0 ... 65535", [](FrameHeader& h) { h.layer = -1; }},
      {"layer is 65536", [](FrameHeader& h) { h.layer = 65536; }},
      {"kv_heads is 0", [](FrameHeader& h) { h.kv_heads = 0; }},
      {"kv_heads is 1025", [](FrameHeader& h) { h.kv_heads = 1025; }},
      {"kv_heads is 2147483647", [](FrameHeader& h) { h.kv_heads = h.head_dim = 0x7FFFFFFF; }},
      {"head_dim is 4097", [](FrameHeader& h) { h.head_dim = 4097; }},
      {"tokens is 65", [](FrameHeader& h) { h.tokens = 65; }},
      {"tokens is 0", [](FrameHeader& h) { h.tokens = 0; }},
      {"position is -64", [](FrameHeader& h) { h.position = -64; }},
      {"position is 2147483648", [](FrameHeader& h) { h.position = std::int64_t{1} << 31; }},
      {"position 65 is not a multiple of 64", [](FrameHeader& h) { h.position = 65; }},
      {"plane elements is 268435456",
       [](FrameHeader& h) { h.kv_heads = 1024, h.head_dim = 4096, h.tokens = 64; }},
      {"element type is 1", [](FrameHeader& h) { h.type = ElementType::kF32; }},
      {"format '' is not a name", [](FrameHeader& h) { h.format.clear(); }},
      {"format 'BF16' is not a name", [](FrameHeader& h) { h.format = "BF16"; }},
      {"is not a name", [](FrameHeader& h) { h.format = std::string(49, 'a'); }},
      {"codec 'no??ne' is not a name", [](FrameHeader& h) { h.codec = "no\xC3\xA9ne"; }},
      {"is not a name", [](FrameHeader& h) { h.codec = std::string(25, 'a'); }},
      {"format fp16 cannot have bf16 planes", [](FrameHeader& h) { h.format = "fp16"; }},
  };
  for (const BadField& bad : cases) {
    FrameHeader header = sample_header();
    bad.spoil(header);
    const Result<Bytes> frame = build_frame(header, kK, kV);
    ASSERT_FALSE(frame.ok()) << bad.message;
    EXPECT_EQ(frame.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(frame.status().message(), HasSubstr(bad.message));
  }
}

TEST(Frame, BuildRefusesPlanesThatAreEmptyOrGrewTooMuch) {
  const FrameHeader header = sample_header();
  const Bytes longest(2 * 30 + kPlaneGrowthBytesMax);
  EXPECT_TRUE(build_frame(header, longest, longest).ok());
  const Bytes longer(longest.size() + 1);
  EXPECT_EQ(build_frame(header, longer, kV).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(build_frame(header, kK, longer).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(build_frame(header, {}, kV).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(build_frame(header, kK, {}).status().code(), Code::kInvalidArgument);
}

TEST(Frame, NamesMayFillTheirFields) {
  FrameHeader header = sample_header();
  header.format = "zack:keep=0.5+hack:k=2,v=2,p=64,round=rn,diag=16";
  header.codec = "rans:order=1,table=0-15a";
  ASSERT_EQ(header.format.size(), kFormatNameBytesMax);
  ASSERT_EQ(header.codec.size(), kCodecNameBytesMax);
  const Bytes bytes = *build_frame(header, kK, kV);
  const Result<FrameHeader> parsed = parse_frame_header(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->format, header.format);
  EXPECT_EQ(parsed->codec, header.codec);
}

TEST(FrameGolden, ValidFramesAreReadAndWrittenBackBitForBit) {
  for (const fs::path& path : frames_in("valid")) {
    const Bytes file = read_bytes(path);
    ByteView rest = file;
    while (!rest.empty()) {
      const Result<FrameHeader> header = parse_frame_header(rest);
      ASSERT_TRUE(header.ok()) << path << ": " << header.status().message();
      const ByteView bytes = rest.first(kFrameHeaderBytes + header->body_bytes());
      const Result<Frame> frame = parse_frame(bytes);
      ASSERT_TRUE(frame.ok()) << path << ": " << frame.status().message();
      const Result<Bytes> rebuilt = build_frame(frame->header, frame->k, frame->v);
      ASSERT_TRUE(rebuilt.ok()) << path << ": " << rebuilt.status().message();
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), rebuilt->begin(), rebuilt->end())) << path;
      rest = rest.subspan(bytes.size());
    }
  }
}

TEST(FrameGolden, BadFramesAreRefusedForTheirReason) {
  for (const fs::path& path : frames_in("corrupt")) {
    EXPECT_EQ(parse_code(read_bytes(path)), Code::kCorrupt) << path;
  }
  for (const fs::path& path : frames_in("unsupported")) {
    EXPECT_EQ(parse_code(read_bytes(path)), Code::kUnsupported) << path;
  }
}

}  // namespace
}  // namespace kvlane
