// Golden slabs of formats with tables: what another encoder wrote from spec/ is what seal() writes,
// and what it opens to. Here and not in quant, which cannot read files of tables.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/test_paths.h"
#include "calib/kv_tables_file.h"
#include "format/frame.h"
#include "quant/kv_format.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(kSourceDir) / "tests/golden/slab";

struct alignas(64) Line {
  std::byte bytes[64];
};

// A golden file as memory aligned to 64.
struct Golden {
  explicit Golden(const fs::path& path) {
    const auto text = read_text_file(path, 1 << 20);
    EXPECT_TRUE(text.ok()) << path;
    bytes = text->size();
    lines.resize((bytes + 63) / 64);
    std::memcpy(lines.data(), text->data(), bytes);
  }
  std::byte* data() { return &lines.front().bytes[0]; }
  bool same(const void* other) { return std::memcmp(data(), other, bytes) == 0; }

  std::size_t bytes;
  std::vector<Line> lines;
};

void check(const fs::path& about_path, const KvTables& tables, Isa isa) {
  const auto about = nlohmann::json::parse(*read_text_file(about_path, 1 << 20));
  const auto file = [&](const char* extension) {
    return Golden(fs::path(about_path).replace_extension(extension));
  };
  Golden rows = file(".rows");
  Golden sealed = file(".slab");
  Golden pages = file(".page");
  const RopeTable rope(about["inverse_frequencies"].get<std::vector<float>>(), 256);
  const KvShape shape{about["layers"], about["kv_heads"], about["head_dim"], ElementType::kBf16};
  ASSERT_EQ(rows.bytes, shape.slab_bytes());
  const SlabPlace place{about["layer"], about["position"]};
  const auto format =
      make_kv_format(about["format"].get<std::string>(), {shape, &rope, &tables, isa});
  ASSERT_TRUE(format.ok()) << format.status().message();

  std::vector<Line> slab((*format)->slab_bytes() / 64);
  std::byte* const bytes = slab.data()->bytes;
  ASSERT_TRUE((*format)->seal(place, reinterpret_cast<std::uint16_t*>(rows.data()), bytes).ok());
  EXPECT_EQ((*format)->used_bytes({0, 0}, bytes), sealed.bytes) << about_path;
  EXPECT_TRUE(sealed.same(bytes)) << about_path;
  EXPECT_TRUE(std::all_of(bytes + sealed.bytes, bytes + (*format)->slab_bytes(),
                          [](std::byte byte) { return byte == std::byte{0}; }));

  std::vector<std::byte> packed(sealed.bytes);
  (*format)->pack({0, 0}, bytes, packed.data());
  EXPECT_TRUE(sealed.same(packed.data())) << about_path;
  std::vector<Line> unpacked(slab.size());
  ASSERT_TRUE((*format)->unpack(place, packed, unpacked.data()->bytes).ok()) << about_path;
  EXPECT_EQ(std::memcmp(unpacked.data(), bytes, (*format)->slab_bytes()), 0) << about_path;

  std::vector<Line> page((shape.page_bytes() + 63) / 64);
  for (int head = 0; head < shape.kv_heads; ++head) {
    (*format)->open_page(place, bytes, head, reinterpret_cast<std::uint16_t*>(page.data()));
    EXPECT_EQ(
        std::memcmp(page.data(), pages.data() + shape.page_bytes() * head, shape.page_bytes()), 0)
        << about_path << " head " << head;
  }
}

TEST(SlabGolden, AreSealedAndOpenedAlikeOnAllTiers) {
  ModelIdentity model{};
  for (std::size_t i = 0; i < model.size(); ++i) model[i] = static_cast<std::byte>(100 + i);
  const auto tables = load_kv_tables(kGolden / "tables.safetensors", model);
  ASSERT_TRUE(tables.ok()) << tables.status().message();
  int count = 0;
  for (const auto& entry : fs::directory_iterator(kGolden / "valid")) {
    if (entry.path().extension() != ".json") continue;
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("cachegen") && !name.starts_with("kvquant")) continue;
    ++count;
    for (const Isa isa : kAllIsas) {
      if (isa_supported(isa)) check(entry.path(), *tables, isa);
    }
  }
  EXPECT_EQ(count, 16);
}

// The frames name the tables that their slabs were sealed with.
TEST(SlabGolden, FramesNameTheirTables) {
  const fs::path frames = kGolden.parent_path() / "frame/valid";
  ModelIdentity model{};
  for (std::size_t i = 0; i < model.size(); ++i) model[i] = static_cast<std::byte>(100 + i);
  const auto tables = load_kv_tables(frames / "sealed_tables.safetensors", model);
  ASSERT_TRUE(tables.ok()) << tables.status().message();
  const RopeTable rope(std::vector<float>(9, 0.5F), 256);
  for (const char* name : {"cachegen", "kvquant"}) {
    Golden file(frames / (std::string("sealed_") + name + ".frame"));
    const auto frame = parse_frame({file.data(), file.bytes});
    ASSERT_TRUE(frame.ok()) << frame.status().message();
    const KvShape shape{1, frame->header.kv_heads, frame->header.head_dim, ElementType::kBf16};
    const auto format =
        make_kv_format(frame->header.format, {shape, &rope, &*tables, Isa::kScalar});
    ASSERT_TRUE(format.ok()) << format.status().message();
    EXPECT_EQ((*format)->slab_name(), frame->header.format);
    EXPECT_EQ((*format)->tables(), frame->header.tables);
    EXPECT_EQ((*format)->rope_applied(), frame->header.rope_applied);
    std::vector<Line> slab((*format)->slab_bytes() / 64);
    EXPECT_TRUE((*format)->unpack({0, 128}, frame->k, slab.data()->bytes).ok());
    EXPECT_EQ((*format)->used_bytes({0, 0}, slab.data()->bytes), frame->k.size());
  }
}

}  // namespace
}  // namespace kvlane
