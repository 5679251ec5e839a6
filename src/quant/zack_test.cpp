// Slabs of `zack`: where values lie, what opens, what is refused.
// SPDX-License-Identifier: Apache-2.0
#include "quant/zack.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "quant/tables_fixture.h"

namespace kvlane::tables_fixture {
namespace {

constexpr KvShape kShape{3, 2, 64, ElementType::kBf16};

KvTables tables_of(const KvShape& shape) {
  KvTables tables;
  add_zack_tables(shape, true, tables);
  return tables;
}

Result<std::shared_ptr<const KvFormat>> make_zack(const char* text, const KvTables& tables,
                                                  const KvShape& shape = kShape) {
  return make_kv_format(text, {.shape = shape, .tables = &tables});
}

const ZackFormat& zack(const std::shared_ptr<const KvFormat>& format) {
  return dynamic_cast<const ZackFormat&>(*format);
}

TEST(Zack, NamesSayEverything) {
  const KvTables tables = tables_of(kShape);
  const auto name = [&](const char* text) { return (*make_zack(text, tables))->name(); };
  EXPECT_EQ(name("zack:keep=0.50"), "zack:keep=0.5");
  EXPECT_EQ(name("zack:weigh=energies,keep=1,ranks=adaptive"), "zack:keep=1,weigh=energies");
  EXPECT_EQ(name("zack:keep=0.75,ranks=uniform,recent=2"), "zack:keep=0.75,ranks=uniform,recent=2");
  EXPECT_EQ((*make_zack("zack:keep=0.5,sink=1", tables))->slab_name(), "zack:keep=0.5");
  EXPECT_EQ(name("zack:sink=1,keep=0.5+hack"), "zack:keep=0.5,sink=1+hack:k=2,v=2");
  EXPECT_EQ((*make_zack("zack:keep=0.5,sink=1+hack:compute=bf16", tables))->slab_name(),
            "zack:keep=0.5+hack:k=2,v=2");
  EXPECT_EQ(name("zack:recent=1,bits=2.50+hack:compute=bf16"),
            "zack:bits=2.5,recent=1+hack:compute=bf16");
  EXPECT_EQ((*make_zack("zack:bits=2.5,recent=1+hack:compute=bf16", tables))->slab_name(),
            "zack:bits=2.5+hack");
}

TEST(Zack, PagesAreWordsOfTwoValuesOneAfterAnother) {
  const KvTables tables = tables_of(kShape);
  const RopeTable rope(inverse_frequencies(kShape.head_dim), 128);
  const auto rows = rotated_rows(kShape, 1, rope, 0);
  const auto format = *make_zack("zack:keep=0.6", tables);
  std::size_t widest = 0;
  for (int layer = 0; layer < kShape.layers; ++layer) {
    const SlabPlace place{layer, 64};
    const Sealed sealed(*format, place, rows);
    ASSERT_TRUE(sealed.status.ok());
    const auto* at =
        reinterpret_cast<const std::uint16_t*>(const_cast<Sealed&>(sealed).slab.data());
    std::size_t bytes = 0;
    for (int head = 0; head < kShape.kv_heads; ++head) {
      const HeadWidths widths = zack(format).widths(layer, head);
      EXPECT_EQ(format->page_place(layer, head).offset, bytes);
      const auto row = [&](bool is_key, int token) {
        return slab_row(kShape, rows.data(), head, is_key, token);
      };
      for (int i = 0; i < widths.k; i += 2) {
        for (int token = 0; token < kBlockTokens; ++token) {
          ASSERT_EQ(*at++, row(true, token)[i]);
          ASSERT_EQ(*at++, row(true, token)[i + 1]);
        }
      }
      for (int token = 0; token < kBlockTokens; token += 2) {
        for (int i = 0; i < widths.v; ++i) {
          ASSERT_EQ(*at++, row(false, token)[i]);
          ASSERT_EQ(*at++, row(false, token + 1)[i]);
        }
      }
      bytes += std::size_t{2} * kBlockTokens * (widths.k + widths.v);
      EXPECT_EQ(format->page_place(layer, head).offset + format->page_place(layer, head).bytes,
                bytes);
    }
    EXPECT_EQ(format->slab_bytes(layer), bytes);
    EXPECT_EQ(format->used_bytes(place, nullptr), bytes);
    widest = std::max(widest, bytes);
  }
  EXPECT_EQ(format->slab_bytes(), widest);
  const double share = zack(format).ranks().share;
  EXPECT_LE(share, 0.6);
  EXPECT_EQ(static_cast<double>(format->slab_sizes().block_bytes()),
            share * static_cast<double>(kShape.block_bytes()));
}

TEST(Zack, OpensToItsRowsAndZeros) {
  const KvTables tables = tables_of(kShape);
  const RopeTable rope(inverse_frequencies(kShape.head_dim), 128);
  const auto rows = rotated_rows(kShape, 2, rope, 0);
  const auto format = *make_zack("zack:keep=0.4", tables);
  const SlabPlace place{1, 0};
  Sealed sealed(*format, place, rows);
  const auto opened = open(*format, place, sealed.slab.data());
  ASSERT_EQ(opened.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t plane = i / kShape.page_plane_elements();
    const HeadWidths widths = zack(format).widths(1, static_cast<int>(plane / 2));
    const auto channel = static_cast<int>(i % kShape.head_dim);
    const bool kept = channel < (plane % 2 == 0 ? widths.k : widths.v);
    ASSERT_EQ(opened[i], kept ? rows[i] : 0) << i;
  }
}

// What is kept, in a format that is made for rows of these widths alone.
TEST(Zack, CodesWhatItKeeps) {
  const KvTables tables = tables_of(kShape);
  const RopeTable rope(inverse_frequencies(kShape.head_dim), 128);
  const auto rows = rotated_rows(kShape, 3, rope, 0);
  for (const char* codes : {"hack", "hack:k=4,v=2,p=32", "int4", "kivi:bits=2", "mxfp4"}) {
    const std::string text = std::string("zack:keep=0.6+") + codes;
    const auto format = *make_zack(text.c_str(), tables);
    const SlabPlace place{2, 128};
    Sealed sealed(*format, place, rows);
    ASSERT_TRUE(sealed.status.ok()) << sealed.status.message();
    const auto opened = open(*format, place, sealed.slab.data());
    std::size_t used = 0;
    for (int head = 0; head < kShape.kv_heads; ++head) {
      const HeadWidths widths = zack(format).widths(2, head);
      const KvShape narrow{1, 1, widths.k, ElementType::kBf16, widths.v};
      const auto alone = *make_zack(codes, {}, narrow);
      std::vector<std::uint16_t> kept;
      for (const bool is_key : {true, false}) {
        for (int token = 0; token < kBlockTokens; ++token) {
          const auto* const row = slab_row(kShape, rows.data(), head, is_key, token);
          kept.insert(kept.end(), row, row + (is_key ? widths.k : widths.v));
        }
      }
      Sealed expected(*alone, {0, 128}, kept);
      const auto page = open(*alone, {0, 128}, expected.slab.data());
      const PagePlace at = format->page_place(2, head);
      EXPECT_EQ(at.bytes, alone->slab_bytes());
      EXPECT_EQ(std::memcmp(sealed.slab.data() + at.offset, expected.slab.data(), at.bytes), 0);
      used += alone->used_bytes({0, 128}, expected.slab.data());
      const auto* const of_head = &opened[kShape.page_elements() * head];
      for (int token = 0; token < kBlockTokens; ++token) {
        for (int i = 0; i < widths.k; ++i) {
          ASSERT_EQ(of_head[token * 64 + i], page[token * widths.k + i]) << text;
        }
        for (int i = 0; i < widths.v; ++i) {
          ASSERT_EQ(of_head[(64 + token) * 64 + i],
                    page[kBlockTokens * widths.k + token * widths.v + i])
              << text;
        }
      }
    }
    EXPECT_EQ(format->used_bytes(place, sealed.slab.data()), used) << text;
  }
}

// Pages are slabs of formats of their own, of as many bytes together as `bits` says at most.
TEST(Zack, BitsAreEachHeadsOwn) {
  const KvTables tables = tables_of(kShape);
  std::set<std::string> names;
  for (const auto& [text, bits] : {std::pair{"zack:bits=2+hack", 2.0},
                                   {"zack:bits=3.3+hack", 3.3},
                                   {"zack:bits=8.5+hack:meta=bf16", 8.5}}) {
    const auto format = *make_zack(text, tables);
    double bytes = 0;
    for (int layer = 0; layer < kShape.layers; ++layer) {
      for (int head = 0; head < kShape.kv_heads; ++head) {
        const KvFormat& codes = *zack(format).codes(layer, head);
        names.insert(codes.name());
        EXPECT_EQ(codes.shape().widths(), zack(format).widths(layer, head));
        EXPECT_EQ(format->page_place(layer, head).bytes, codes.slab_bytes());
      }
      bytes += static_cast<double>(format->used_bytes({layer, 0}, nullptr));
    }
    const double values = static_cast<double>(kShape.layers * kShape.slab_bytes()) / 2;
    EXPECT_LE(8 * bytes / values, bits) << text;
    EXPECT_GT(8 * bytes / values, bits - 0.4) << text;
  }
  EXPECT_GT(names.size(), 3U);
  EXPECT_TRUE(names.contains("hack:k=8,v=8,meta=bf16"));
}

TEST(Zack, WhatBitsCannotBeSaysWhy) {
  KvTables tables = tables_of(kShape);
  const auto message = [&](const char* text) {
    return std::string(make_zack(text, tables).status().message());
  };
  EXPECT_EQ(message("zack:bits=2.5,keep=0.5+hack"), "KV format 'zack' has either bits or keep");
  EXPECT_EQ(message("zack:bits=2.5,weigh=values+hack"),
            "KV format 'zack' has either bits or weigh");
  EXPECT_EQ(message("zack:bits=17+hack"),
            "KV format 'zack': bits is a number from 0.0001 to 16, with at most four decimals, "
            "not '17'");
  for (const char* const codes : {"", "+int4", "+zack"}) {
    EXPECT_EQ(message(("zack:bits=2.5" + std::string(codes)).c_str()),
              "zack:bits chooses bits of codes of hack: write zack:bits=2.5+hack");
  }
  EXPECT_EQ(message("zack:bits=2.5+hack:k=2"),
            "behind zack:bits, which chooses them, hack has no parameter 'k'");
  EXPECT_EQ(message("zack:bits=2.5+hack:paper"),
            "behind zack:bits, which chooses them, hack has no parameter 'p'");
  EXPECT_EQ(message("zack:bits=2.5+hack:sink=1"),
            "sink and recent stand before the '+', as in zack:keep=0.5,sink=1+hack");
  EXPECT_EQ(message("zack:bits=0.5+hack"),
            "KV format 'zack': fewer than 0.8125 bits a value cannot be met");
  tables.values.erase("zack.layers.1.v.errors");
  EXPECT_NE(message("zack:bits=2.5+hack").find("the tables have no 'zack.layers.1.v.errors'"),
            std::string::npos);
}

// Errors and random numbers are of the head that a page is of, not of the page's only one.
TEST(Zack, CodesKnowTheirHead) {
  const KvTables tables = tables_of(kShape);
  const auto format = *make_zack("zack:keep=0.4,ranks=uniform+hack:p=32,round=sr", tables);
  std::vector<std::uint16_t> rows(kShape.slab_bytes() / 2);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = to_bf16(normal(4, static_cast<std::uint32_t>(i % (rows.size() / 2)))).bits;
  }
  std::vector<std::vector<std::byte>> pages;
  for (const int layer : {0, 2}) {
    Sealed sealed(*format, {layer, 64}, rows);
    ASSERT_TRUE(sealed.status.ok()) << sealed.status.message();
    for (int head = 0; head < 2; ++head) {
      const PagePlace at = format->page_place(layer, head);
      pages.emplace_back(sealed.slab.data() + at.offset, sealed.slab.data() + at.offset + at.bytes);
    }
  }
  for (std::size_t i = 0; i < pages.size(); ++i) {
    for (std::size_t j = i + 1; j < pages.size(); ++j) EXPECT_NE(pages[i], pages[j]) << i << j;
  }
  rows[rows.size() / 2 + 5 * 64] = to_bf16(1e6F).bits;
  EXPECT_EQ(Sealed(*format, {2, 64}, rows).status.message(),
            "K of layer 2, KV head 1, token 69 is 999424, beyond 65504, the largest that scales of "
            "this KV format hold");
  EXPECT_EQ(Sealed(**make_zack("zack:keep=0.4+int4", tables), {2, 64}, rows).status.message(),
            "K of layer 2, KV head 1, token 69 is 999424, beyond 65504, the largest that FP16 "
            "scales hold");
}

TEST(Zack, GivesTheRotationOfTheTables) {
  const KvTables tables = tables_of(kShape);
  const auto format = *make_zack("zack:keep=0.4", tables);
  const auto& expected = tables.values.at("zack.layers.2.k.rotation");
  EXPECT_EQ(std::memcmp(format->key_rotation(2, 1), expected.data() + 64 * 64, 64 * 64 * 4), 0);
  EXPECT_EQ(format->query_rotation(2, 1), format->key_rotation(2, 1));
}

TEST(Zack, QueriesMayHaveARotationOfTheirOwn) {
  KvTables tables = tables_of(kShape);
  const auto same = *make_zack("zack:keep=0.4", tables);
  stretch_zack_rotations(kShape, tables);
  const auto format = *make_zack("zack:keep=0.4", tables);
  const auto& of_keys = tables.values.at("zack.layers.2.k.rotation");
  const auto& of_queries = tables.values.at("zack.layers.2.k.query_rotation");
  constexpr std::size_t kMatrix = std::size_t{64} * 64;
  EXPECT_EQ(std::memcmp(format->key_rotation(2, 1), of_keys.data() + kMatrix, kMatrix * 4), 0);
  EXPECT_EQ(std::memcmp(format->query_rotation(2, 1), of_queries.data() + kMatrix, kMatrix * 4), 0);
  EXPECT_NE(format->tables(), same->tables());
  tables.values.erase("zack.layers.0.k.query_rotation");
  EXPECT_NE(make_zack("zack:keep=0.4", tables)
                .status()
                .message()
                .find("the tables have no 'zack.layers.0.k.query_rotation'"),
            std::string::npos);
}

TEST(Zack, LeavesWhatWeightsHaveRotated) {
  KvTables tables = tables_of(kShape);
  const auto rotated = *make_zack("zack:keep=0.5", tables);
  for (int layer = 0; layer < kShape.layers; ++layer) {
    const std::string prefix = table_prefix("zack", layer, true);
    tables.values[prefix + "folded_rotation"] = tables.values.at(prefix + "rotation");
  }
  EXPECT_EQ(make_zack("zack", tables).status().message(),
            "tables of 'zack' say that K is rotated in the weights, and that it is not");
  for (int layer = 0; layer < kShape.layers; ++layer) {
    tables.values.erase(table_prefix("zack", layer, true) + "rotation");
  }
  const auto folded = *make_zack("zack:keep=0.5", tables);
  EXPECT_EQ(folded->key_rotation(2, 1), nullptr);
  EXPECT_EQ(folded->query_rotation(2, 1), nullptr);
  EXPECT_EQ(folded->slab_bytes(), rotated->slab_bytes());
  EXPECT_NE(folded->tables(), rotated->tables());

  tables.values.erase("zack.layers.1.k.folded_rotation");
  EXPECT_NE(make_zack("zack", tables)
                .status()
                .message()
                .find("the tables have no 'zack.layers.1.k.folded_rotation'"),
            std::string::npos);
}

TEST(Zack, OtherTablesAreOtherSlabs) {
  KvTables tables = tables_of(kShape);
  const auto first = *make_zack("zack:keep=0.4", tables);
  tables.values["zack.layers.0.k.rotation"][5] += 0.01F;
  EXPECT_NE((*make_zack("zack:keep=0.4", tables))->tables(), first->tables());
}

TEST(Zack, WhatCannotBeSaysWhy) {
  const KvTables tables = tables_of(kShape);
  const auto message = [](const auto& made) { return std::string(made.status().message()); };
  EXPECT_EQ(message(make_zack("zack:keep=0.2", tables)),
            "KV format 'zack': a share of 0.2 cannot be met: every head keeps at least 16 of its "
            "64 dimensions");
  EXPECT_EQ(message(make_zack("zack:keep=0.5", {})),
            "KV format 'zack' needs tables: kvlane calibrate zack DIR --text FILE --out OUT, then "
            "OUT in the model's place");
  EXPECT_NE(
      message(make_zack("zack:keep=0.5", tables, {3, 2, 128, ElementType::kBf16})).find("values"),
      std::string::npos);
  EXPECT_EQ(message(make_zack("zack:keep=0.5", tables, {3, 2, 40, ElementType::kBf16})),
            "KV format 'zack' takes a head_dim that is a multiple of 16 up to 256, not 40");
  EXPECT_EQ(message(make_zack("zack+cachegen", tables)),
            "what zack keeps can be coded by hack, kvquant and formats with linear codes, not by "
            "'cachegen'");
  EXPECT_EQ(message(make_zack("zack+zack", tables)),
            "what zack keeps can be coded by hack, kvquant and formats with linear codes, not by "
            "'zack'");
  EXPECT_EQ(message(make_zack("int4+hack", tables)),
            "only what zack keeps can be coded in another format, not 'int4+hack'");
  EXPECT_EQ(message(make_zack("hack:paper+int4", tables)),
            "only what zack keeps can be coded in another format, not 'hack+int4'");
  EXPECT_EQ(message(make_zack("zack:ranks=uniform,weigh=energies", tables)),
            "KV format 'zack': with ranks=uniform nothing is weighed");
  EXPECT_EQ(message(make_zack("zack+hack:sink=1", tables)),
            "sink and recent stand before the '+', as in zack:keep=0.5,sink=1+hack");
  EXPECT_EQ(message(make_zack("zack+hack:paper,rqe=0", tables)),
            "zack reads a query's own block in 16 bits");
  EXPECT_EQ(message(make_zack("zack+hack:colour=2", tables)),
            "KV format 'hack' has no parameter 'colour'");
  EXPECT_EQ(message(make_zack("zack+", tables)), "'+' is followed by a format");
  KvTables bad = tables;
  bad.values["zack.layers.1.v.singular_values"][3] = 1e6F;
  EXPECT_EQ(message(make_zack("zack:keep=0.5", bad)),
            "KV format 'zack': singular values are not finite, not negative and descending");
}

TEST(Zack, RefusesWhatIsNotFinite) {
  const KvTables tables = tables_of(kShape);
  const auto format = *make_zack("zack:keep=0.4", tables);
  std::vector<std::uint16_t> rows(kShape.slab_bytes() / 2, to_bf16(1.0F).bits);
  rows.back() = to_bf16(std::numeric_limits<float>::infinity()).bits;
  Lines slab(format->slab_bytes());
  const Status status = format->seal({2, 128}, rows.data(), slab.data());
  EXPECT_EQ(status.message(),
            "V of layer 2, KV head 1, token 191 is inf: KV formats take finite numbers only");
}

}  // namespace
}  // namespace kvlane::tables_fixture
