// KVQuant's codes behind ZACK: against their definition in double precision, with widths that
// differ by head; what lies in a slab; which tables are refused.
// SPDX-License-Identifier: Apache-2.0
#include "quant/zack_kvquant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>

#include "cpu/tiers_fixture.h"
#include "format/frame.h"
#include "quant/kvquant.h"
#include "quant/tables_fixture.h"

namespace kvlane::tables_fixture {
namespace {

using tiers_fixture::vector_tiers;

const KvShape kZackKvquantShape{3, 3, 80, ElementType::kBf16};
constexpr int kPosition = 192;
constexpr const char* kZack = "zack:keep=0.5";

const KvTables& tables_of_test() {
  static const KvTables tables = [] {
    KvTables made;
    add_zack_tables(kZackKvquantShape, true, made);
    for (const char* const zack : {kZack, "zack:keep=0.9", "zack:keep=0.6,ranks=uniform"}) {
      add_zack_kvquant_tables(zack, kZackKvquantShape, made);
    }
    return made;
  }();
  return tables;
}

Result<std::shared_ptr<const KvFormat>> make_from_text(const std::string& text,
                                                       const KvTables& tables = tables_of_test(),
                                                       Isa isa = Isa::kScalar) {
  return make_kv_format(text, {.shape = kZackKvquantShape, .tables = &tables, .isa = isa});
}

std::string message(const std::string& text, const KvTables& tables = tables_of_test()) {
  return std::string(make_from_text(text, tables).status().message());
}

const ZackKvquant& kvquant_of(const std::shared_ptr<const KvFormat>& format) {
  return dynamic_cast<const ZackKvquant&>(*format);
}

std::vector<std::uint16_t> rows_of(std::uint64_t seed) {
  return to_bits(plain_rows(kZackKvquantShape, seed));
}

// One kept value of a token.
struct Kept {
  int head;
  int channel;  // of the head
  double value;

  auto place() const { return std::pair(head, channel); }
};

std::vector<Kept> kept_of(const ZackKvquant& format, int layer, bool is_key, int token,
                          const std::vector<std::uint16_t>& rows) {
  std::vector<Kept> kept;
  for (int head = 0; head < kZackKvquantShape.kv_heads; ++head) {
    const HeadWidths widths = format.widths(layer, head);
    for (int c = 0; c < (is_key ? widths.k : widths.v); ++c) {
      const auto* const row = slab_row(kZackKvquantShape, rows.data(), head, is_key, token);
      kept.push_back({head, c, to_float(bf16{row[c]})});
    }
  }
  return kept;
}

// What stands for x between limits, or NaN where a little more or less would be another.
double coded(double x, double low, double high, const std::vector<float>& signposts,
             const std::vector<float>& values) {
  const double middle = (low + high) / 2;
  const double reach = (high - low) / 2;
  const double t = reach > 0 ? (x - middle) / reach : 0;
  std::size_t best = 0;
  for (std::size_t i = 0; i < signposts.size(); ++i) {
    if (i > 0 && std::abs(t - (double(signposts[i]) + signposts[i - 1]) / 2) < 1e-4) return NAN;
    if (std::abs(t - signposts[i]) < std::abs(t - signposts[best])) best = i;
  }
  return values[best] * reach + middle;
}

// A format's definition, in double precision.
class Definition {
 public:
  Definition(const std::string& zack, int bits, int outliers, bool room_by_token)
      : tables_name_(zack + "+kvquant"),
        bits_(bits),
        outliers_(outliers),
        room_by_token_(room_by_token) {}

  std::string text() const {
    return tables_name_ + ":bits=" + std::to_string(bits_) +
           (outliers_ == 0   ? ",outliers=0"
            : room_by_token_ ? ",room=token"
                             : "");
  }

  // How many values are kept in 16 bits.
  int check(const ZackKvquant& format, int layer, const std::vector<std::uint16_t>& rows,
            const std::vector<std::uint16_t>& opened, std::uint32_t cut) const {
    const auto [outside, expected_cut] = outside_keys(format, layer, rows);
    EXPECT_EQ(cut, expected_cut);
    int kept_apart = 0;
    for (int token = 0; token < kBlockTokens; ++token) {
      for (const bool is_key : {true, false}) {
        const std::vector<Kept> kept = kept_of(format, layer, is_key, token, rows);
        kept_apart += is_key ? static_cast<int>(outside[token].size()) : 2 * at_end(kept);
        const std::vector<double> expected =
            is_key ? keys(layer, kept, outside[token]) : values(layer, kept);
        for (std::size_t i = 0; i < kept.size(); ++i) {
          const double found = to_float(bf16{slab_row(
              kZackKvquantShape, opened.data(), kept[i].head, is_key, token)[kept[i].channel]});
          if (std::isnan(expected[i])) continue;
          EXPECT_NEAR(found, expected[i], half_ulp(expected[i]) + 1e-5)
              << text() << (is_key ? " K" : " V") << " token " << token << " head " << kept[i].head
              << " channel " << kept[i].channel;
        }
      }
    }
    return kept_apart;
  }

 private:
  const std::vector<float>& table(int layer, bool is_key, const std::string& name) const {
    return tables_of_test().values.at(table_prefix(tables_name_, layer, is_key) + "o" +
                                      std::to_string(outliers_) + "." + name);
  }
  double code(int layer, bool is_key, double x, double low, double high) const {
    const std::string levels = "b" + std::to_string(bits_) + ".";
    return coded(x, low, high, table(layer, is_key, levels + "signposts"),
                 table(layer, is_key, levels + "values"));
  }

  // Outliers of a token at either end.
  int at_end(const std::vector<Kept>& kept) const {
    return outliers_ * static_cast<int>((kept.size() + 199) / 200);
  }

  // [64] numbers of channels of a token's K that are kept as they are; and how many are cut.
  std::pair<std::vector<std::set<int>>, std::uint32_t> outside_keys(
      const ZackKvquant& format, int layer, const std::vector<std::uint16_t>& rows) const {
    std::vector<std::set<int>> chosen(kBlockTokens);
    std::uint32_t cut = 0;
    std::vector<std::tuple<double, int, int>> found;
    const auto take = [&](std::size_t room) {
      std::sort(found.begin(), found.end());
      for (std::size_t i = 0; i < found.size(); ++i) {
        const auto& [distance, token, c] = found[i];
        if (i < room) chosen[token].insert(c);
        cut += i >= room;
      }
      found.clear();
    };
    std::size_t room = 0;
    for (int token = 0; token < kBlockTokens && outliers_ > 0; ++token) {
      const std::vector<Kept> kept = kept_of(format, layer, true, token, rows);
      room = 2 * std::size_t(at_end(kept));
      for (int c = 0; c < static_cast<int>(kept.size()); ++c) {
        const double low = table(layer, true, "low")[c];
        const double high = table(layer, true, "high")[c];
        const double distance = std::abs(kept[c].value - (low + high) / 2) / ((high - low) / 2);
        if (distance > 1) found.emplace_back(-distance, token, c);
      }
      if (room_by_token_) take(room);
    }
    take(room * kBlockTokens);
    return {chosen, cut};
  }

  std::vector<double> keys(int layer, const std::vector<Kept>& kept,
                           const std::set<int>& outside) const {
    std::vector<double> expected;
    for (int c = 0; c < static_cast<int>(kept.size()); ++c) {
      expected.push_back(outside.contains(c)
                             ? kept[c].value
                             : code(layer, true, kept[c].value, table(layer, true, "low")[c],
                                    table(layer, true, "high")[c]));
    }
    return expected;
  }

  // Limits of all heads together; outliers are the ends of an order in which nothing is equal.
  std::vector<double> values(int layer, const std::vector<Kept>& kept) const {
    const auto all = static_cast<int>(kept.size());
    std::vector<int> order;
    for (int c = 0; c < all; ++c) order.push_back(c);
    const auto falling = [&](int a, int b) {
      return std::pair(-kept[a].value, a) < std::pair(-kept[b].value, b);
    };
    const auto rising = [&](int a, int b) {
      return std::pair(kept[a].value, a) < std::pair(kept[b].value, b);
    };
    const int end = at_end(kept);
    std::sort(order.begin(), order.end(), falling);
    const double high = kept[order[end]].value;
    std::sort(order.begin() + end, order.end(), rising);
    const double low = kept[order[2 * end]].value;
    std::vector<double> expected(all);
    for (int i = 0; i < all; ++i) {
      const double x = kept[order[i]].value;
      expected[order[i]] = i < 2 * end ? x : code(layer, false, x, low, high);
    }
    return expected;
  }

  std::string tables_name_;
  int bits_;
  int outliers_;
  bool room_by_token_;
};

TEST(ZackKvquant, IsItsDefinitionInDoublePrecision) {
  std::set<int> widths;
  std::uint32_t all_cut = 0;
  for (const char* const zack : {kZack, "zack:keep=0.9"}) {
    for (const int bits : {2, 3, 4}) {
      for (const auto& [outliers, by_token] : {std::pair{0, false}, {1, false}, {1, true}}) {
        const Definition definition(zack, bits, outliers, by_token);
        const auto format = *make_from_text(definition.text());
        ASSERT_EQ(format->name(), definition.text());
        const SlabPlace place{bits % kZackKvquantShape.layers, kPosition};
        const auto rows = rows_of(31);
        Sealed sealed(*format, place, rows);
        ASSERT_TRUE(sealed.status.ok()) << sealed.status.message();
        const auto opened = open(*format, place, sealed.slab.data());
        const std::uint32_t cut = kvquant_cut_values(sealed.slab.data());
        const int kept = definition.check(kvquant_of(format), place.layer, rows, opened, cut);
        const PagePlace last = format->page_place(place.layer, kZackKvquantShape.kv_heads - 1);
        EXPECT_EQ(format->used_bytes(place, sealed.slab.data()),
                  last.offset + last.bytes + 4 * std::size_t(kept));
        EXPECT_EQ(kept > 0, outliers > 0);
        all_cut += cut;
        for (int head = 0; head < kZackKvquantShape.kv_heads; ++head) {
          widths.insert(kvquant_of(format).widths(place.layer, head).k);
          widths.insert(kvquant_of(format).widths(place.layer, head).v);
        }
      }
    }
  }
  EXPECT_GT(all_cut, 0U) << "some tokens were to have more outliers than room";
  EXPECT_GE(widths.size(), 3U) << "heads were to have widths of their own";
}

TEST(ZackKvquant, OpensToZerosBehindWhatIsKept) {
  const auto format = *make_from_text("zack:keep=0.5+kvquant");
  const SlabPlace place{1, kPosition};
  Sealed sealed(*format, place, rows_of(2));
  const auto opened = open(*format, place, sealed.slab.data());
  int zeros = 0;
  for (int head = 0; head < kZackKvquantShape.kv_heads; ++head) {
    const HeadWidths widths = kvquant_of(format).widths(1, head);
    Lines kept(sizeof(std::uint16_t) * kBlockTokens * (widths.k + widths.v));
    auto* const page = reinterpret_cast<std::uint16_t*>(kept.data());
    kvquant_of(format).open_kept(place, sealed.slab.data(), head, page);
    for (const bool is_key : {true, false}) {
      const int width = is_key ? widths.k : widths.v;
      const std::uint16_t* const narrow = is_key ? page : page + kBlockTokens * widths.k;
      for (int i = 0; i < kBlockTokens * kZackKvquantShape.head_dim; ++i) {
        const int token = i / kZackKvquantShape.head_dim, c = i % kZackKvquantShape.head_dim;
        const std::uint16_t found =
            slab_row(kZackKvquantShape, opened.data(), head, is_key, token)[c];
        ASSERT_EQ(found, c < width ? narrow[token * width + c] : 0);
        zeros += c >= width;
      }
    }
  }
  EXPECT_GT(zeros, 0);
}

TEST(ZackKvquant, SlabsAreCodesLimitsAndOutliersOfAllHeads) {
  for (const int bits : {2, 4}) {
    const auto format = *make_from_text("zack:keep=0.5+kvquant:bits=" + std::to_string(bits));
    for (int layer = 0; layer < kZackKvquantShape.layers; ++layer) {
      std::size_t at = 4 + 4 * 2 * 3 + 2 * 2 * 64;
      std::size_t k = 0;
      std::size_t v = 0;
      for (int head = 0; head < kZackKvquantShape.kv_heads; ++head) {
        const HeadWidths widths = kvquant_of(format).widths(layer, head);
        const std::size_t bytes = 64 * std::size_t(widths.k + widths.v) * bits / 8;
        EXPECT_EQ(format->page_place(layer, head).offset, at);
        EXPECT_EQ(format->page_place(layer, head).bytes, bytes);
        at += bytes;
        k += widths.k;
        v += widths.v;
      }
      const std::size_t outliers = 128 * ((k + 199) / 200 + (v + 199) / 200);
      EXPECT_EQ(format->slab_bytes(layer), (at + 4 * outliers + 63) / 64 * 64);
      Sealed sealed(*format, {layer, kPosition}, rows_of(3));
      const std::size_t used = format->used_bytes({layer, kPosition}, sealed.slab.data());
      EXPECT_GT(used, at + 4 * 128 * ((v + 199) / 200) / 2);
      EXPECT_LE(used, at + 4 * outliers);
      for (std::size_t i = used; i < format->slab_bytes(layer); ++i) {
        ASSERT_EQ(sealed.slab.data()[i], std::byte{0}) << i;
      }
    }
  }
}

TEST(ZackKvquant, TiersAreTheSameWhateverTheBytes) {
  if (vector_tiers().empty()) GTEST_SKIP() << "this processor lacks AVX2";
  const SlabPlace place{1, kPosition};
  for (const char* const codes : {"bits=2", "bits=3,outliers=0", "bits=4,room=token"}) {
    const std::string text = std::string(kZack) + "+kvquant:" + codes;
    const auto scalar = *make_from_text(text);
    Sealed a(*scalar, place, rows_of(4));
    for (const Isa isa : vector_tiers()) {
      Sealed b(**make_from_text(text, tables_of_test(), isa), place, rows_of(4));
      ASSERT_EQ(std::memcmp(a.slab.data(), b.slab.data(), scalar->slab_bytes(1)), 0) << text;
    }
    for (std::uint32_t seed = 0; seed < 8; ++seed) {
      const auto opened = open(*scalar, place, a.slab.data());
      for (const Isa isa : vector_tiers()) {
        const auto vector = *make_from_text(text, tables_of_test(), isa);
        EXPECT_EQ(opened, open(*vector, place, a.slab.data())) << text << " " << isa_name(isa);
      }
      for (std::size_t i = 0; i < scalar->slab_bytes(1); ++i) {
        const auto dice = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0});
        if (dice[0] % (i < 300 ? 5 : 50) == 0) a.slab.data()[i] = static_cast<std::byte>(dice[1]);
      }
    }
  }
}

TEST(ZackKvquant, ExtremeRowsStayFinite) {
  for (const int value : {0x0000, 0x8000, 0x0001, 0x7F7F, 0xFF7F}) {
    const std::vector<std::uint16_t> rows(kZackKvquantShape.slab_bytes() / 2,
                                          static_cast<std::uint16_t>(value));
    for (const char* const codes : {"bits=2", "bits=4,outliers=0"}) {
      const auto format = *make_from_text(std::string(kZack) + "+kvquant:" + codes);
      Sealed sealed(*format, {0, 0}, rows);
      ASSERT_TRUE(sealed.status.ok());
      for (const std::uint16_t bits : open(*format, {0, 0}, sealed.slab.data())) {
        ASSERT_TRUE(is_finite_bf16(bits)) << codes << " " << value;
      }
    }
  }
  auto rows = rows_of(1);
  rows[kZackKvquantShape.page_plane_elements() - 1] = 0x7F80;  // in a dimension that is dropped
  const auto format = *make_from_text(std::string(kZack) + "+kvquant");
  EXPECT_EQ(Sealed(*format, {2, 64}, rows).status.message(),
            "K of layer 2, KV head 0, token 127 is inf: KV formats take finite numbers only");
}

TEST(ZackKvquant, NamesAreShortEnoughForFrames) {
  const auto name = [](const char* text) { return (*make_from_text(text))->name(); };
  EXPECT_EQ(name("zack+kvquant"), "zack:keep=0.5+kvquant:bits=4");
  EXPECT_EQ(name("zack:sink=1,keep=0.50+kvquant:room=slab,outliers=1,bits=3"),
            "zack:keep=0.5,sink=1+kvquant:bits=3");
  EXPECT_EQ(name("zack:keep=0.5+kvquant:room=token,bits=2"),
            "zack:keep=0.5+kvquant:bits=2,room=token");
  const auto longest = *make_from_text("zack:keep=0.6,ranks=uniform,recent=2+kvquant:bits=3");
  EXPECT_EQ(longest->slab_name(), "zack:keep=0.6,ranks=uniform+kvquant:bits=3");
  EXPECT_LE(longest->slab_name().size() + 3, kFormatNameBytesMax);  // room for keep=0.6875
  EXPECT_TRUE(longest->rope_applied());
  EXPECT_EQ(longest->window().recent, 2);
}

TEST(ZackKvquant, GivesTheRotationsOfTheTables) {
  KvTables tables = tables_of_test();
  stretch_zack_rotations(kZackKvquantShape, tables);
  const auto format = *make_from_text("zack:keep=0.5+kvquant", tables);
  const std::size_t matrix = std::size_t(kZackKvquantShape.head_dim) * kZackKvquantShape.head_dim;
  for (const auto& [found, of] : {std::pair{format->key_rotation(2, 1), "rotation"},
                                  {format->query_rotation(2, 1), "query_rotation"}}) {
    const auto& expected = tables.values.at(std::string("zack.layers.2.k.") + of);
    EXPECT_EQ(std::memcmp(found, expected.data() + matrix, matrix * sizeof(float)), 0) << of;
  }
}

TEST(ZackKvquant, OtherTablesOfEitherKindAreOtherSlabs) {
  const std::uint64_t id = (*make_from_text("zack:keep=0.5+kvquant"))->tables();
  for (const auto& [name, other] : {std::pair{"zack.layers.0.k.rotation", true},
                                    {"zack:keep=0.5+kvquant.layers.2.v.o1.b4.values", true},
                                    {"zack:keep=0.9+kvquant.layers.2.v.o1.b4.values", false}}) {
    KvTables tables = tables_of_test();
    tables.values.at(name)[3] += 0.001F;
    EXPECT_EQ((*make_from_text("zack:keep=0.5+kvquant", tables))->tables() != id, other) << name;
  }
  EXPECT_EQ((*make_from_text(kZack))->tables(), tables_id(tables_of_test(), "zack"))
      << "tables behind a name of `zack` are none of its own";
}

TEST(ZackKvquant, WhatCannotBeSaysWhy) {
  EXPECT_EQ(message("zack:bits=2.5+kvquant"),
            "zack:bits chooses bits of codes of hack: write zack:bits=2.5+hack");
  EXPECT_EQ(message("zack:keep=0.5+kvquant:sink=1"),
            "sink and recent stand before the '+', as in zack:keep=0.5,sink=1+kvquant");
  EXPECT_EQ(message("zack:keep=0.5+kvquant:bits=5"),
            "KV format 'kvquant': bits is 2, 3 or 4, not '5'");
  EXPECT_EQ(message("zack:keep=0.5+kvquant:outliers=0,room=slab"),
            "KV format 'kvquant' has no parameter 'room'");
  EXPECT_EQ(message("zack:keep=0.5+kvquant+hack"),
            "only what zack keeps can be coded in another format, not 'kvquant+hack'");
}

TEST(ZackKvquant, TablesOfOthersAreRefused) {
  const std::string how =
      "; to make them again: kvlane calibrate tables DIR --text FILE --for zack:keep=0.7+kvquant "
      "--out FILE, then --kv-tables FILE";
  EXPECT_EQ(message("zack:keep=0.7,sink=1+kvquant"),
            "KV format 'zack:keep=0.7+kvquant': the tables have no "
            "'zack:keep=0.7+kvquant.layers.0.k.widths'" +
                how);
  KvTables tables = tables_of_test();
  auto& widths = tables.values.at("zack:keep=0.5+kvquant.layers.1.v.widths");
  std::swap(*std::min_element(widths.begin(), widths.end()),
            *std::max_element(widths.begin(), widths.end()));
  EXPECT_NE(message("zack:keep=0.5+kvquant", tables)
                .find("table 'zack:keep=0.5+kvquant.layers.1.v.widths' is of a KV head "),
            std::string::npos);
  tables = tables_of_test();
  tables.values.at("zack:keep=0.5+kvquant.layers.2.k.o1.low").pop_back();
  EXPECT_NE(message("zack:keep=0.5+kvquant", tables).find(" values where this model needs "),
            std::string::npos);
  tables = tables_of_test();
  tables.values.at("zack:keep=0.5+kvquant.layers.0.k.o1.b4.values")[2] = 17;
  EXPECT_EQ(message("zack:keep=0.5+kvquant", tables),
            "KV format 'zack:keep=0.5+kvquant': table "
            "'zack:keep=0.5+kvquant.layers.0.k.o1.b4.values' goes beyond 16");
  KvTables without;
  for (const auto& [name, values] : tables_of_test().values) {
    if (!name.starts_with("zack.")) without.values[name] = values;
  }
  EXPECT_NE(message("zack:keep=0.5+kvquant", without).find("kvlane calibrate zack DIR"),
            std::string::npos);
}

}  // namespace
}  // namespace kvlane::tables_fixture
