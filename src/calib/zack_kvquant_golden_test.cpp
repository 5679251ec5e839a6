// Golden slabs of `zack` in codes of `kvquant`: slabs and what they open to, as an independent
// encoder and reader in Python have them.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/test_paths.h"
#include "calib/kv_tables_file.h"
#include "format/frame.h"
#include "quant/golden_fixture.h"
#include "quant/zack_kvquant.h"

namespace kvlane {
namespace {

using golden_fixture::file_name;
using golden_fixture::read;
using golden_fixture::read_rows;
using golden_fixture::Rows;
using golden_fixture::Slab;
using linear_fixture::Poisoned;

class ZackKvquantGolden : public ::testing::Test {
 protected:
  ZackKvquantGolden() {
    const Slab text = read("zack_kvquant/cases.json");
    about_ = nlohmann::json::parse(reinterpret_cast<const char*>(text.data()),
                                   reinterpret_cast<const char*>(text.data() + text.size()));
    shape_ = {about_["layers"], about_["kv_heads"], about_["head_dim"], ElementType::kBf16};
    ModelIdentity model{};
    for (std::size_t i = 0; i < model.size(); ++i) model[i] = static_cast<std::byte>(100 + i);
    const auto folder = std::filesystem::path(kSourceDir) / "tests/golden/slab";
    const std::filesystem::path files[] = {folder / "zack/tables.safetensors",
                                           folder / "zack_kvquant/tables.safetensors"};
    auto tables = load_kv_tables(files, model);
    EXPECT_TRUE(tables.ok()) << tables.status().message();
    tables_ = std::move(*tables);
  }

  SlabPlace place_of(const nlohmann::json& one) const { return {one["layer"], about_["position"]}; }

  std::shared_ptr<const ZackKvquant> format_of(const std::string& name, Isa isa) const {
    const auto made = make_kv_format(name, {.shape = shape_, .tables = &tables_, .isa = isa});
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::dynamic_pointer_cast<const ZackKvquant>(*made);
  }

  Rows open(const KvFormat& format, SlabPlace place, const Slab& slab) const {
    Poisoned<std::byte> sealed(slab.size());
    std::copy(slab.begin(), slab.end(), sealed.data());
    Rows rows;
    for (int head = 0; head < shape_.kv_heads; ++head) {
      Poisoned<std::uint16_t> page(shape_.page_elements());
      format.open_page(place, sealed.data(), head, page.data());
      EXPECT_TRUE(page.intact_beyond()) << format.name();
      const Rows values = page.values();
      rows.insert(rows.end(), values.begin(), values.end());
    }
    return rows;
  }

  KvTables tables_;
  nlohmann::json about_;
  KvShape shape_;
};

TEST_F(ZackKvquantGolden, RowsAreSealedOpenedAndTravelAlikeOnAllTiers) {
  const Rows rows = read_rows("zack/rows.rows");
  EXPECT_EQ(about_["cases"].size(), 6U);
  for (const Isa isa : kAllIsas) {
    if (!isa_supported(isa)) continue;
    for (const auto& one : about_["cases"]) {
      const auto format = format_of(one["format"], isa);
      EXPECT_EQ(format->name(), one["format"].get<std::string>());
      const SlabPlace place = place_of(one);
      const std::string file = "zack_kvquant/" + file_name(one["format"]);
      const Slab travels = read(file + ".slab");
      Poisoned<std::byte> slab(format->slab_bytes(place.layer));
      const Status status = format->seal(place, rows.data(), slab.data());
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(slab.intact_beyond());
      Slab packed(format->used_bytes(place, slab.data()));
      format->pack(place, slab.data(), packed.data());
      EXPECT_EQ(packed, travels) << file << isa_name(isa);
      Poisoned<std::byte> unpacked(format->slab_bytes(place.layer));
      ASSERT_TRUE(format->unpack(place, travels, unpacked.data()).ok()) << file;
      EXPECT_TRUE(unpacked.intact_beyond());
      EXPECT_EQ(unpacked.values(), slab.values());
      EXPECT_EQ(open(*format, place, slab.values()), read_rows(file + ".opened"))
          << file << isa_name(isa);
    }
  }
}

TEST_F(ZackKvquantGolden, WidthsAreThoseOfTheTables) {
  for (const auto& one : about_["cases"]) {
    const auto format = format_of(one["format"], Isa::kScalar);
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const auto& widths = one["widths"][layer][head];
        EXPECT_EQ(format->widths(layer, head), (HeadWidths{widths[0], widths[1]}));
      }
    }
  }
}

// What frames carry.
TEST_F(ZackKvquantGolden, TravelsAsTheFrameSays) {
  const Slab file = read("../frame/valid/sealed_zack_kvquant.frame");
  const auto frame = parse_frame({file.data(), file.size()});
  ASSERT_TRUE(frame.ok()) << frame.status().message();
  const auto format = format_of("zack:recent=1,keep=0.75+kvquant:bits=3", Isa::kScalar);
  EXPECT_EQ(frame->header.format, format->slab_name());
  EXPECT_EQ(frame->header.tables, format->tables());
  EXPECT_EQ(frame->header.rope_applied, format->rope_applied());
  const Slab expected = read("zack_kvquant/" + file_name(frame->header.format) + ".slab");
  EXPECT_TRUE(std::equal(frame->k.begin(), frame->k.end(), expected.begin(), expected.end()));
}

}  // namespace
}  // namespace kvlane
