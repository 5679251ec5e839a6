// Headers of extents: what was written comes back, and nothing else is read.
// SPDX-License-Identifier: Apache-2.0
#include "format/extent.h"

#include <gmock/gmock.h>

#include <functional>

#include "base/file.h"
#include "base/test_paths.h"
#include "format/checksum.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;

ExtentHead kv_head() {
  ExtentHead head{.key = {.shards = 4, .shard = 3},
                  .format = "bf16",
                  .codec = "splitzip",
                  .layer = 7,
                  .heads = 2,
                  .width = 128,
                  .position = 640,
                  .rope_applied = true,
                  .parts = {{.k_bytes = 5000, .v_bytes = 3192, .checksum = 1},
                            {.k_bytes = 1, .v_bytes = 1, .checksum = 2},
                            {.k_bytes = 4096, .v_bytes = 4096, .checksum = 3}}};
  head.key.name.fill(std::byte{0x5A});
  head.model.fill(std::byte{0x11});
  EXPECT_TRUE(place_parts(head).ok());
  return head;
}

ExtentHead hidden_head() {
  ExtentHead head{.key = {.kind = ExtentKind::kHidden},
                  .format = "attention_input",
                  .width = 4096,
                  .key_id = 9,
                  .encrypted = true,
                  .parts = {{.k_bytes = 64 * 4096 * 2}}};
  head.nonce.fill(std::byte{7});
  head.parts[0].tag.fill(std::byte{8});
  EXPECT_TRUE(place_parts(head).ok());
  return head;
}

TEST(Extent, HeadersComeBack) {
  ExtentHead floats = hidden_head();
  floats.type = ElementType::kF32;
  for (const ExtentHead& head : {kv_head(), hidden_head(), floats}) {
    const auto page = build_extent_head(head);
    ASSERT_TRUE(page.ok()) << page.status().message();
    EXPECT_EQ(page->size(), kExtentHeaderBytes);
    const auto read = parse_extent_head(*page);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(*read, head);
  }
}

// Made by spec/decoder/extent.py.
TEST(Extent, GoldenBytesAreReadAndWrittenBack) {
  const auto text =
      read_text_file(std::string(kSourceDir) + "/tests/golden/extent/hidden.extent", 1 << 20);
  ASSERT_TRUE(text.ok()) << text.status().message();
  const ByteView bytes = as_byte_view(*text);
  const auto head = parse_extent_head(bytes);
  ASSERT_TRUE(head.ok()) << head.status().message();
  EXPECT_EQ(head->key.kind, ExtentKind::kHidden);
  EXPECT_EQ(head->key.name[31], std::byte{31});
  EXPECT_EQ(head->model[0], std::byte{32});
  EXPECT_EQ(head->layer, 3);
  EXPECT_EQ(head->layers(), 2);
  EXPECT_EQ(head->position, 128);
  EXPECT_EQ(head->extent_bytes(), bytes.size());
  EXPECT_EQ(as_text(*build_extent_head(*head)), as_text(bytes.first(kExtentHeaderBytes)));
  for (const ExtentPart& part : head->parts) {
    EXPECT_EQ(xxh3_64(bytes.subspan(part.page * kExtentPageBytes, part.bytes())), part.checksum);
  }
}

TEST(Extent, PartsLieOnPagesOfTheirOwn) {
  const ExtentHead head = kv_head();
  EXPECT_EQ(head.parts[0].page, 1U);
  EXPECT_EQ(head.parts[1].page, 3U);  // 8,192 bytes
  EXPECT_EQ(head.parts[2].page, 4U);
  EXPECT_EQ(head.extent_bytes(), 6 * kExtentPageBytes);
  EXPECT_TRUE(head.holds(7) && head.holds(9));
  EXPECT_FALSE(head.holds(6) || head.holds(10));
}

TEST(Extent, EveryDamagedByteAndEveryCutIsRefused) {
  const Bytes page = *build_extent_head(kv_head());
  for (std::size_t at = 0; at < page.size(); ++at) {
    Bytes damaged = page;
    damaged[at] ^= std::byte{0x10};
    EXPECT_FALSE(parse_extent_head(damaged).ok()) << at;
  }
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{12}, page.size() - 1}) {
    const auto cut = parse_extent_head(ByteView(page).first(bytes));
    ASSERT_FALSE(cut.ok());
    EXPECT_EQ(cut.status().code(), Code::kCorrupt);
  }
}

TEST(Extent, ShortHeadersBecomeTheSamePageAgain) {
  const Bytes page = *build_extent_head(kv_head());
  const Bytes head = shorten_extent_head(page);
  EXPECT_EQ(head.size(), kExtentFixedBytes + 3 * kExtentPartBytes + 8);
  EXPECT_EQ(*lengthen_extent_head(head), page);
  EXPECT_FALSE(lengthen_extent_head(ByteView(head).first(100)).ok());
  EXPECT_FALSE(lengthen_extent_head(Bytes(kExtentPageBytes)).ok());
  // A part that is missing is found by the checksum.
  Bytes cut = head;
  cut.erase(cut.end() - 56, cut.end() - 8);
  EXPECT_FALSE(parse_extent_head(*lengthen_extent_head(cut)).ok());
}

// The bytes of a header with one of them changed and the checksum put right.
Result<ExtentHead> with_byte(std::size_t at, std::uint8_t value) {
  Bytes page = *build_extent_head(kv_head());
  page[at] = std::byte{value};
  const std::uint64_t checksum = xxh3_64(ByteView(page).first(page.size() - 8));
  std::memcpy(page.data() + page.size() - 8, &checksum, 8);
  return parse_extent_head(page);
}

TEST(Extent, FieldsOutOfRangeAreCorruptAndReservedOnesUnsupported) {
  EXPECT_TRUE(with_byte(16, 0x22).ok());  // any model
  for (const std::size_t reserved : {14, 182, 220, 236, 264, 224 + 3 * 48, 4080}) {
    EXPECT_EQ(with_byte(reserved, 1).status().code(), Code::kUnsupported) << reserved;
  }
  EXPECT_EQ(with_byte(8, 2).status().code(), Code::kUnsupported);  // version
  // Element type, kind, tokens, heads, position, layers, shard, size, page and length of a part, a
  // nonce without a key, codec and format that are no names.
  const std::pair<std::size_t, std::uint8_t> wrong[] = {
      {120, 1}, {121, 0}, {121, 3}, {122, 65}, {128, 0}, {136, 1}, {176, 81},
      {178, 4}, {193, 1}, {224, 2}, {231, 1},  {208, 1}, {96, 0},  {48, 'B'}};
  for (const auto& [at, value] : wrong) {
    EXPECT_EQ(with_byte(at, value).status().code(), Code::kCorrupt) << at;
  }
}

void expect_refused(const char* words, const std::function<void(ExtentHead&)>& change,
                    ExtentHead head = kv_head()) {
  change(head);
  const auto page = build_extent_head(head);
  ASSERT_FALSE(page.ok()) << words;
  EXPECT_EQ(page.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(page.status().message(), HasSubstr(words));
}

TEST(Extent, WritersAreHeldToTheSameRanges) {
  expect_refused("tokens is 0", [](auto& h) { h.tokens = 0; });
  expect_refused("tokens is 63", [](auto& h) {
    h.sealed = true;
    h.format = "hack:k=2,v=2";
    h.tokens = 63;
  });
  expect_refused("layers is 0", [](auto& h) { h.parts.clear(); });
  expect_refused("layers is 81", [](auto& h) { h.parts.resize(81); });
  expect_refused("first layer is 65534", [](auto& h) { h.layer = 65534; });
  expect_refused("position 65", [](auto& h) { h.position = 65; });
  expect_refused("shard is 4", [](auto& h) { h.key.shard = 4; });
  expect_refused("has tables", [](auto& h) { h.tables = 1; });
  expect_refused("not a name", [](auto& h) { h.codec = "Gzip"; });
  expect_refused("are rows", [](auto& h) { h.sealed = true; });
  expect_refused(
      "neither sealed", [](auto& h) { h.rope_applied = true; }, hidden_head());
  expect_refused(
      "have no codec, and the extent has 'splitzip'",
      [](auto& h) {
        h.type = ElementType::kF32;
        h.codec = "splitzip";
      },
      hidden_head());
  expect_refused("element type is 1", [](auto& h) { h.type = ElementType::kF32; });
  expect_refused(
      "heads is 2", [](auto& h) { h.heads = 2; }, hidden_head());
  expect_refused(
      "v_bytes is 1", [](auto& h) { h.parts[0].v_bytes = 1; }, hidden_head());
  expect_refused(
      "a key and a nonce", [](auto& h) { h.encrypted = false; }, hidden_head());
  expect_refused("lies on page 2", [](auto& h) { h.parts[0].page = 2; });
}

TEST(Extent, LimitsOfSize) {
  ExtentHead head = hidden_head();
  head.parts[0].k_bytes = static_cast<std::uint32_t>(kExtentBytesMax - kExtentHeaderBytes);
  EXPECT_TRUE(place_parts(head).ok() && build_extent_head(head).ok());
  head.parts[0].k_bytes += 1;
  EXPECT_FALSE(place_parts(head).ok());
  EXPECT_FALSE(build_extent_head(head).ok());
  head.parts[0].k_bytes = 0;
  EXPECT_FALSE(place_parts(head).ok());
}

TEST(Extent, ASequenceIsSpreadEvenlyFromAStartOfItsOwn) {
  int first_on_0 = 0;
  for (int sequence = 0; sequence < 300; ++sequence) {
    BlockName name{};
    std::memcpy(name.data(), &sequence, sizeof sequence);
    const int start = extent_directory(name, 5, 0, 3);
    first_on_0 += start == 0;
    for (int block = 1; block < 6; ++block) {
      EXPECT_EQ(extent_directory(name, 5, 64 * block, 3), (start + block) % 3);
    }
  }
  EXPECT_NEAR(first_on_0, 100, 40);  // five standard deviations
}

}  // namespace
}  // namespace kvlane
