// Golden slabs of `zack`: widths, slabs and what they open to, as an independent encoder and reader
// in Python have them. Here and not in quant, which cannot read files of tables.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/test_paths.h"
#include "calib/kv_tables_file.h"
#include "codec/codec.h"
#include "format/frame.h"
#include "quant/golden_fixture.h"
#include "quant/slab_planes.h"
#include "quant/zack.h"

namespace kvlane {
namespace {

using golden_fixture::file_name;
using golden_fixture::read;
using golden_fixture::read_rows;
using golden_fixture::Rows;
using golden_fixture::Slab;
using linear_fixture::Poisoned;

constexpr Isa kScalar = Isa::kScalar;

KvTables load_tables(const char* name) {
  ModelIdentity model{};
  for (std::size_t i = 0; i < model.size(); ++i) model[i] = static_cast<std::byte>(100 + i);
  const auto path = std::filesystem::path(kSourceDir) / "tests/golden/slab/zack" / name;
  auto tables = load_kv_tables(path, model);
  EXPECT_TRUE(tables.ok()) << tables.status().message();
  return tables.ok() ? std::move(*tables) : KvTables{};
}

class ZackGolden : public ::testing::Test {
 protected:
  ZackGolden() {
    const Slab text = read("zack/cases.json");
    about_ = nlohmann::json::parse(reinterpret_cast<const char*>(text.data()),
                                   reinterpret_cast<const char*>(text.data() + text.size()));
    shape_ = {about_["layers"], about_["kv_heads"], about_["head_dim"], ElementType::kBf16};
    errors_ = load_tables("errors.safetensors");
    errors_.values.insert(tables_.values.begin(), tables_.values.end());
  }

  const nlohmann::json& cases() const { return about_["cases"]; }
  SlabPlace place_of(const nlohmann::json& one) const { return {one["layer"], about_["position"]}; }

  std::shared_ptr<const ZackFormat> format_of(const std::string& name, Isa isa) const {
    const KvTables& tables = name.starts_with("zack:bits") ? errors_ : tables_;
    const auto made = make_kv_format(name, {.shape = shape_, .tables = &tables, .isa = isa});
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? std::dynamic_pointer_cast<const ZackFormat>(*made) : nullptr;
  }

  Slab seal(const KvFormat& format, SlabPlace place, const Rows& rows) const {
    Poisoned<std::byte> slab(format.slab_bytes(place.layer));
    const Status status = format.seal(place, rows.data(), slab.data());
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(slab.intact_beyond()) << format.name();
    return slab.values();
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

  KvTables tables_ = load_tables("tables.safetensors");
  KvTables errors_;  // and those that only `bits` needs
  nlohmann::json about_;
  KvShape shape_;
};

TEST_F(ZackGolden, WidthsAreThoseOfTheTables) {
  for (const auto& one : cases()) {
    const auto format = format_of(one["format"], kScalar);
    EXPECT_EQ(format->name(), one["format"].get<std::string>());
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const auto& widths = one["widths"][layer][head];
        if (widths.size() > 2) {
          EXPECT_EQ(format->codes(layer, head)->name(), widths[2].get<std::string>());
        }
        EXPECT_EQ(format->widths(layer, head), (HeadWidths{widths[0], widths[1]}))
            << format->name() << " layer " << layer << " head " << head;
      }
    }
  }
}

TEST_F(ZackGolden, RowsAreSealedAndOpenedAlikeOnAllTiers) {
  const Rows rows = read_rows("zack/rows.rows");
  ASSERT_EQ(rows.size() * sizeof(rows[0]), shape_.slab_bytes());
  EXPECT_EQ(cases().size(), 11U);
  for (const Isa isa : kAllIsas) {
    if (!isa_supported(isa)) continue;
    for (const auto& one : cases()) {
      const auto format = format_of(one["format"], isa);
      const std::string file = "zack/" + file_name(one["format"]);
      const Slab expected = read(file + ".slab");
      ASSERT_EQ(format->slab_bytes(place_of(one).layer), expected.size()) << file;
      EXPECT_EQ(seal(*format, place_of(one), rows), expected) << file << isa_name(isa);
      EXPECT_EQ(open(*format, place_of(one), expected), read_rows(file + ".opened"))
          << file << isa_name(isa);
    }
  }
}

TEST_F(ZackGolden, WhatTravelsComesBack) {
  for (const auto& one : cases()) {
    const auto format = format_of(one["format"], kScalar);
    const SlabPlace place = place_of(one);
    const Slab slab = read("zack/" + file_name(one["format"]) + ".slab");
    Slab packed(format->used_bytes(place, slab.data()));
    EXPECT_EQ(packed.size(), one["packed_bytes"]) << one["format"];
    format->pack(place, slab.data(), packed.data());
    Poisoned<std::byte> unpacked(slab.size());
    ASSERT_TRUE(format->unpack(place, packed, unpacked.data()).ok()) << one["format"];
    EXPECT_EQ(unpacked.values(), slab) << one["format"];
    EXPECT_TRUE(unpacked.intact_beyond());
    packed.push_back(std::byte{0});
    EXPECT_FALSE(format->unpack(place, packed, unpacked.data()).ok());
  }
}

// What frames carry: tests/golden/frame/valid has one.
TEST_F(ZackGolden, TravelsAsTheFrameSays) {
  const Slab file = read("../frame/valid/sealed_zack.frame");
  const auto frame = parse_frame({file.data(), file.size()});
  ASSERT_TRUE(frame.ok()) << frame.status().message();
  const auto format = format_of("zack:sink=1,keep=0.75+hack:compute=bf16", kScalar);
  EXPECT_EQ(frame->header.format, format->slab_name());
  EXPECT_EQ(frame->header.tables, format->tables());
  EXPECT_EQ(frame->header.rope_applied, format->rope_applied());
  const SlabPlace place{static_cast<int>(frame->header.layer), about_["position"]};
  Poisoned<std::byte> slab(format->slab_bytes(place.layer));
  ASSERT_TRUE(format->unpack(place, frame->k, slab.data()).ok());
  EXPECT_EQ(slab.values(), read("zack/" + file_name(frame->header.format) + ".slab"));
}

// The same of planes in codecs.
TEST_F(ZackGolden, ValuesTravelInCodecs) {
  const auto format = format_of("zack:keep=0.75", kScalar);
  for (const std::string name : {"sealed_zack_splitzip", "sealed_zack_channel"}) {
    const Slab file = read("../frame/valid/" + name + ".frame");
    const auto frame = parse_frame({file.data(), file.size()});
    ASSERT_TRUE(frame.ok()) << frame.status().message();
    EXPECT_EQ(frame->header.format, format->slab_name());
    EXPECT_EQ(frame->header.tables, format->tables());
    const int layer = frame->header.layer;
    const HeadWidths widths = format->planes()->widths(layer);
    const Codec& codec = **find_codec(frame->header.codec, kScalar);
    const PlaneShape k{ElementType::kBf16, 1, kBlockTokens, widths.k};
    const PlaneShape v{ElementType::kBf16, 1, kBlockTokens, widths.v};
    Rows rows(k.elements() + v.elements());
    const auto bytes = std::as_writable_bytes(std::span(rows));
    ASSERT_TRUE(codec.decode(k, frame->k, bytes.first(k.bytes())).ok()) << name;
    ASSERT_TRUE(codec.decode(v, frame->v, bytes.subspan(k.bytes())).ok()) << name;
    // The encoders of the golden files are others, and write the same.
    Bytes again(codec.bound(k));
    again.resize(codec.encode(k, bytes.first(k.bytes()), nullptr, again));
    EXPECT_TRUE(std::equal(again.begin(), again.end(), frame->k.begin(), frame->k.end())) << name;
    Poisoned<std::byte> slab(format->slab_bytes(layer));
    format->planes()->from_rows(layer, rows.data(), slab.data());
    EXPECT_TRUE(slab.intact_beyond()) << name;
    // The file has K of all heads, then V.
    const Rows opened = open(*format, {layer, about_["position"]}, slab.values());
    const Rows planes = read_rows("../frame/valid/" + name + ".planes");
    ASSERT_EQ(opened.size(), planes.size());
    const std::size_t elements = shape_.page_plane_elements();
    for (std::size_t i = 0; i < opened.size(); ++i) {
      const std::size_t head = i / (2 * elements), part = i / elements % 2;
      ASSERT_EQ(opened[i], planes[(part * shape_.kv_heads + head) * elements + i % elements]) << i;
    }
  }
}

}  // namespace
}  // namespace kvlane
