// KVQuant: against its definition in double precision, what lies in the slab, and bytes from
// strangers.
// SPDX-License-Identifier: Apache-2.0
#include "quant/kvquant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "cpu/tiers_fixture.h"
#include "quant/kvquant_rows.h"
#include "quant/kvquant_slab.h"
#include "quant/tables_fixture.h"

namespace kvlane::kvquant {
namespace {

using namespace tables_fixture;
using tiers_fixture::vector_tiers;

constexpr int kPosition = 192;

std::vector<std::string> texts() {
  std::vector<std::string> all;
  for (const int bits : {2, 3, 4}) {
    for (const int outliers : {0, 1}) {
      all.push_back("kvquant:bits=" + std::to_string(bits) +
                    ",outliers=" + std::to_string(outliers));
    }
  }
  return all;
}

struct World {
  explicit World(const KvShape& kv_shape)
      : shape(kv_shape), rope_table(inverse_frequencies(shape.head_dim), 1024) {
    add_kvquant_tables(shape, tables);
  }
  KvFormatContext context(Isa isa) const { return {shape, &rope_table, &tables, isa}; }
  std::vector<std::uint16_t> rows(std::uint64_t seed) const {
    return rotated_rows(shape, seed, rope_table, kPosition);
  }
  const std::vector<float>& table(int layer, bool is_key, const std::string& name) const {
    return tables.values.at(table_prefix("kvquant", layer, is_key) + name);
  }

  KvShape shape;
  RopeTable rope_table;
  KvTables tables;
};

// The value that stands for x, and whether a little more or less of x would be another.
struct Coded {
  double value;
  bool near_border;
};

Coded nearest(double x, double low, double high, const std::vector<float>& signposts,
              const std::vector<float>& values) {
  const double middle = (low + high) / 2;
  const double reach = (high - low) / 2;
  const double t = reach > 0 ? (x - middle) / reach : 0;
  std::size_t best = 0;
  bool near = false;
  for (std::size_t i = 1; i < signposts.size(); ++i) {
    near = near || std::abs(t - (double(signposts[i]) + signposts[i - 1]) / 2) < 1e-4;
    if (std::abs(t - signposts[i]) < std::abs(t - signposts[best])) best = i;
  }
  return {values[best] * reach + middle, near};
}

// One token's K before rotation, by channel, in double precision.
std::vector<double> plain_keys(const World& world, const std::vector<std::uint16_t>& rows,
                               int token) {
  const int dim = world.shape.head_dim;
  const RopeAngles angles = world.rope_table.angles(kPosition + token);
  std::vector<double> plain;
  for (int c = 0; c < world.shape.kv_heads * dim; ++c) {
    const int i = c % dim % (dim / 2);
    const int low_channel = c / dim * dim + i;
    const double low = channel_value(world.shape, rows, true, token, low_channel);
    const double high = channel_value(world.shape, rows, true, token, low_channel + dim / 2);
    plain.push_back(c == low_channel ? low * angles.cos[i] + high * angles.sin[i]
                                     : high * angles.cos[i] - low * angles.sin[i]);
  }
  return plain;
}

// Which values of K are kept: [64] channels of each token, and how many are not though they lie
// outside.
struct KeptKeys {
  std::vector<std::set<int>> channels;
  std::uint32_t cut = 0;
};

KeptKeys kept_keys(const World& world, int layer, bool room_by_token,
                   const std::vector<std::uint16_t>& rows) {
  const int count = world.shape.head_dim * world.shape.kv_heads;
  const auto& low = world.table(layer, true, "o1.low");
  const auto& high = world.table(layer, true, "o1.high");
  const std::size_t room = 2 * std::size_t((count + 199) / 200);
  KeptKeys kept{std::vector<std::set<int>>(kBlockTokens)};
  std::vector<std::tuple<double, int, int>> outside;
  const auto take = [&](std::size_t most) {
    std::sort(outside.begin(), outside.end());
    for (std::size_t i = 0; i < outside.size(); ++i) {
      const auto& [distance, token, c] = outside[i];
      if (i < most) kept.channels[token].insert(c);
      kept.cut += i >= most;
    }
    outside.clear();
  };
  for (int token = 0; token < kBlockTokens; ++token) {
    const std::vector<double> plain = plain_keys(world, rows, token);
    for (int c = 0; c < count; ++c) {
      const double distance =
          std::abs(plain[c] - (low[c] + high[c]) / 2) / ((high[c] - low[c]) / 2);
      if (distance > 1) outside.emplace_back(-distance, token, c);
    }
    if (room_by_token) take(room);
  }
  take(room * kBlockTokens);
  return kept;
}

// What a token's K should become: coded values, kept ones, then rotation.
void check_keys(const World& world, int layer, int bits, int outliers, const std::set<int>& kept,
                const std::vector<std::uint16_t>& rows, const std::vector<std::uint16_t>& opened,
                int token) {
  const int dim = world.shape.head_dim;
  const int channels = dim * world.shape.kv_heads;
  const std::string o = "o" + std::to_string(outliers) + ".";
  const std::string name = o + "b" + std::to_string(bits);
  const auto& low = world.table(layer, true, o + "low");
  const auto& high = world.table(layer, true, o + "high");
  const std::vector<double> plain = plain_keys(world, rows, token);
  std::vector<Coded> coded;
  for (int c = 0; c < channels; ++c) {
    coded.push_back(nearest(plain[c], low[c], high[c],
                            world.table(layer, true, name + ".signposts"),
                            world.table(layer, true, name + ".values")));
    const double distance = std::abs(plain[c] - (low[c] + high[c]) / 2) / ((high[c] - low[c]) / 2);
    if (std::abs(distance - 1) < 1e-4) coded.back().near_border = true;
    if (kept.contains(c)) coded.back().value = to_float(to_bf16(float(plain[c])));
  }
  const RopeAngles angles = world.rope_table.angles(kPosition + token);
  for (int c = 0; c < channels; ++c) {
    if (c % dim >= dim / 2) continue;
    const Coded& a = coded[c];
    const Coded& b = coded[c + dim / 2];
    if (a.near_border || b.near_border) continue;
    const int i = c % dim;
    const double size = std::abs(a.value) + std::abs(b.value);
    // A kept value may round the other way when it was rotated back in 32 bits.
    const double slack = outliers == 1 ? 2 * half_ulp(size) : 0;
    const double first = a.value * angles.cos[i] - b.value * angles.sin[i];
    const double second = b.value * angles.cos[i] + a.value * angles.sin[i];
    ASSERT_NEAR(channel_value(world.shape, opened, true, token, c), first,
                half_ulp(first) + 1e-6 * size + (size > 8 ? slack : 0));
    ASSERT_NEAR(channel_value(world.shape, opened, true, token, c + dim / 2), second,
                half_ulp(second) + 1e-6 * size + (size > 8 ? slack : 0));
  }
}

void check_values(const World& world, int layer, int bits, int outliers,
                  const std::vector<std::uint16_t>& rows, const std::vector<std::uint16_t>& opened,
                  int token) {
  const int channels = world.shape.head_dim * world.shape.kv_heads;
  const std::string name = "o" + std::to_string(outliers) + ".b" + std::to_string(bits);
  std::vector<double> x;
  for (int c = 0; c < channels; ++c) x.push_back(channel_value(world.shape, rows, false, token, c));
  std::vector<double> sorted = x;
  std::sort(sorted.begin(), sorted.end());
  const int end = (channels * outliers + 199) / 200;
  const double low = sorted[end];
  const double high = sorted[channels - 1 - end];
  int kept = 0;
  for (int c = 0; c < channels; ++c) {
    const double found = channel_value(world.shape, opened, false, token, c);
    kept += found == x[c];
    if (x[c] < low || x[c] > high) {
      ASSERT_EQ(found, x[c]) << "an outlier";
      continue;
    }
    const Coded coded = nearest(x[c], low, high, world.table(layer, false, name + ".signposts"),
                                world.table(layer, false, name + ".values"));
    if (coded.near_border || found == x[c]) continue;
    ASSERT_NEAR(found, coded.value, half_ulp(coded.value) + 1e-6 * (high - low)) << c;
  }
  ASSERT_GE(kept, 2 * end);
}

TEST(Kvquant, IsItsDefinitionInDoublePrecision) {
  std::uint32_t all_cut = 0;
  for (const KvShape& shape : shapes()) {
    const World& world = world_of<World>(shape);
    const auto rows = world.rows(21);
    for (const int bits : {2, 3, 4}) {
      for (const std::string rest : {"outliers=0", "outliers=1", "outliers=1,room=token"}) {
        const auto format =
            made("kvquant:bits=" + std::to_string(bits) + "," + rest, world.context(Isa::kScalar));
        const int outliers = rest[9] - '0';
        const int layer = bits % shape.layers;
        Sealed sealed(*format, {layer, kPosition}, rows);
        ASSERT_TRUE(sealed.status.ok()) << sealed.status.message();
        const auto opened = open(*format, {layer, kPosition}, sealed.slab.data());
        KeptKeys kept{std::vector<std::set<int>>(kBlockTokens)};
        const bool by_token = rest.ends_with("token");
        if (outliers == 1) kept = kept_keys(world, layer, by_token, rows);
        for (int token = 0; token < kBlockTokens; ++token) {
          check_keys(world, layer, bits, outliers, kept.channels[token], rows, opened, token);
          check_values(world, layer, bits, outliers, rows, opened, token);
          if (HasFatalFailure())
            FAIL() << format->name() << " token " << token << " d " << shape.head_dim;
        }
        EXPECT_EQ(kvquant_cut_values(sealed.slab.data()), kept.cut);
        all_cut += kept.cut;
      }
    }
  }
  EXPECT_GT(all_cut, 0U) << "some tokens were to have more outliers than room";
}

TEST(Kvquant, UsedBytesAreCodesLimitsAndOutliers) {
  const KvShape shape{3, 2, 64, ElementType::kBf16};
  const World& world = world_of<World>(shape);
  for (const int bits : {2, 3, 4}) {
    const std::size_t head = 4 + 4 * 4 + 2 * 2 * 64;
    const std::size_t codes = std::size_t(bits) * 4 * 64 * 64 / 8;
    const auto none =
        made("kvquant:outliers=0,bits=" + std::to_string(bits), world.context(Isa::kScalar));
    Sealed a(*none, {0, kPosition}, world.rows(1));
    EXPECT_EQ(none->used_bytes({0, 0}, a.slab.data()), head + codes);
    const auto some = made("kvquant:bits=" + std::to_string(bits), world.context(Isa::kScalar));
    Sealed b(*some, {0, kPosition}, world.rows(1));
    // One at either end of a token's 128 values of V, at most as many of K.
    EXPECT_GT(some->used_bytes({0, 0}, b.slab.data()), head + codes + 64 * 2 * 4);
    EXPECT_LE(some->used_bytes({0, 0}, b.slab.data()), head + codes + 2 * 64 * 2 * 4);
    EXPECT_LE(some->used_bytes({0, 0}, b.slab.data()), some->slab_bytes());
  }
}

TEST(Kvquant, TiersAreTheSame) {
  if (vector_tiers().empty()) GTEST_SKIP() << "this processor lacks AVX2";
  for (const KvShape& shape : shapes()) {
    const World& world = world_of<World>(shape);
    for (const std::string& text : texts()) {
      const auto scalar = made(text, world.context(Isa::kScalar));
      Sealed a(*scalar, {1, kPosition}, world.rows(4));
      const auto opened = open(*scalar, {1, kPosition}, a.slab.data());
      for (const Isa isa : vector_tiers()) {
        const auto vector = made(text, world.context(isa));
        Sealed b(*vector, {1, kPosition}, world.rows(4));
        ASSERT_EQ(std::memcmp(a.slab.data(), b.slab.data(), scalar->slab_bytes()), 0) << text;
        EXPECT_EQ(opened, open(*vector, {1, kPosition}, a.slab.data()))
            << text << " head_dim " << shape.head_dim << " " << isa_name(isa);
      }
    }
  }
}

TEST(Kvquant, ExtremeRowsStayFinite) {
  const KvShape shape{3, 1, 80, ElementType::kBf16};
  const World& world = world_of<World>(shape);
  for (const int value : {0x0000, 0x8000, 0x0001, 0x7F7F, 0xFF7F}) {
    const std::vector<std::uint16_t> rows(shape.slab_bytes() / 2,
                                          static_cast<std::uint16_t>(value));
    for (const std::string& text : texts()) {
      const auto format = made(text, world.context(Isa::kScalar));
      Sealed sealed(*format, {0, kPosition}, rows);
      ASSERT_TRUE(sealed.status.ok());
      const auto opened = open(*format, {0, kPosition}, sealed.slab.data());
      for (std::size_t i = 0; i < opened.size(); ++i) {
        ASSERT_TRUE(is_finite_bf16(opened[i])) << text << " " << i;
        if (i < opened.size() / 2) continue;
        ASSERT_EQ(to_float(bf16{opened[i]}), to_float(bf16{rows[i]}));
      }
    }
  }
}

TEST(Kvquant, NamesWhatIsNotFinite) {
  const KvShape shape{3, 2, 64, ElementType::kBf16};
  const World& world = world_of<World>(shape);
  const auto format = made("kvquant", world.context(Isa::kScalar));
  auto rows = world.rows(1);
  rows[2 * shape.page_plane_elements() + 63 * 64] = 0xFF80;
  Sealed sealed(*format, {1, kPosition}, rows);
  EXPECT_EQ(sealed.status.message(),
            "K of layer 1, KV head 1, token 255 is -inf: KV formats take finite numbers only");
}

TEST(Kvquant, OpensAnyBytesInBounds) {
  for (const KvShape& shape : shapes()) {
    const World& world = world_of<World>(shape);
    for (const std::string& text : texts()) {
      const auto format = made(text, world.context(Isa::kScalar));
      std::vector others = {format};
      for (const Isa isa : vector_tiers()) others.push_back(made(text, world.context(isa)));
      Lines slab(format->slab_bytes());
      for (std::uint32_t seed = 0; seed < 10; ++seed) {
        Sealed sealed(*format, {0, kPosition}, world.rows(6));
        std::memcpy(slab.data(), sealed.slab.data(), format->slab_bytes());
        const std::size_t until = seed < 5 ? codes_at(shape.kv_heads) : format->slab_bytes();
        for (std::size_t i = 0; i < until; ++i) {
          const auto dice = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0});
          if (dice[0] % 5 == 0) slab.data()[i] = static_cast<std::byte>(dice[1]);
        }
        EXPECT_LE(format->used_bytes({0, 0}, slab.data()), format->slab_bytes());
        const auto opened = open(*format, {0, kPosition}, slab.data());
        for (const auto& other : others) {
          EXPECT_EQ(opened, open(*other, {0, kPosition}, slab.data())) << text;
        }
      }
    }
  }
}

TEST(Kvquant, SaysWhatIsWrongWithTables) {
  const KvShape shape{3, 2, 64, ElementType::kBf16};
  World world = world_of<World>(shape);
  const auto message = [&](const KvTables* tables) {
    return make_kv_format("kvquant:bits=3", {shape, &world.rope_table, tables, Isa::kScalar})
        .status()
        .message();
  };
  EXPECT_EQ(message(nullptr),
            "KV format 'kvquant' needs tables: kvlane calibrate tables DIR --text FILE --out FILE, "
            "then --kv-tables FILE");
  auto& signposts = world.tables.values["kvquant.layers.2.v.o1.b3.signposts"];
  signposts[3] = 5;
  EXPECT_EQ(message(&world.tables),
            "KV format 'kvquant': table 'kvquant.layers.2.v.o1.b3.signposts' is not ascending");
  signposts[7] = 17;
  std::sort(signposts.begin(), signposts.end());
  EXPECT_EQ(message(&world.tables),
            "KV format 'kvquant': table 'kvquant.layers.2.v.o1.b3.signposts' goes beyond 16");
  world.tables.values["kvquant.layers.1.k.o1.low"][9] = 1e30F;
  EXPECT_EQ(message(&world.tables),
            "KV format 'kvquant': table 'kvquant.layers.1.k.o1.low' is above "
            "'kvquant.layers.1.k.o1.high' or beyond 2^120 in channel 9");
  world.tables.values["kvquant.layers.0.k.o1.high"].push_back(0);
  EXPECT_EQ(message(&world.tables),
            "KV format 'kvquant': table 'kvquant.layers.0.k.o1.high' has 129 values where this "
            "model needs 128");
  EXPECT_EQ(
      make_kv_format("kvquant", {shape, nullptr, &world.tables, Isa::kScalar}).status().message(),
      "KV format 'kvquant' needs the model's rotary angles");
}

TEST(Kvquant, RoomIsForOutliersOnly) {
  const KvShape shape{3, 2, 64, ElementType::kBf16};
  const World& world = world_of<World>(shape);
  EXPECT_EQ(make_kv_format("kvquant:outliers=0,room=slab", world.context(Isa::kScalar))
                .status()
                .message(),
            "KV format 'kvquant' has no parameter 'room'");
  const auto by_token = made("kvquant:room=token", world.context(Isa::kScalar));
  const auto by_slab = made("kvquant:room=slab", world.context(Isa::kScalar));
  Sealed a(*by_token, {0, kPosition}, world.rows(3));
  Sealed b(*by_slab, {0, kPosition}, world.rows(3));
  EXPECT_EQ(by_token->slab_bytes(), by_slab->slab_bytes());
  EXPECT_GT(kvquant_cut_values(a.slab.data()), kvquant_cut_values(b.slab.data()));
}

TEST(Kvquant, NamesSayEveryParameter) {
  const KvShape shape{3, 2, 64, ElementType::kBf16};
  const World& world = world_of<World>(shape);
  EXPECT_EQ(made("kvquant", world.context(Isa::kScalar))->name(),
            "kvquant:bits=4,outliers=1,room=slab");
  EXPECT_EQ(made("kvquant:sink=1,bits=2,outliers=0", world.context(Isa::kScalar))->name(),
            "kvquant:bits=2,outliers=0,sink=1");
  EXPECT_EQ(make_kv_format("kvquant:bits=5", world.context(Isa::kScalar)).status().message(),
            "KV format 'kvquant': bits is 2, 3 or 4, not '5'");
}

TEST(KvquantRows, LimitsAreOrderStatistics) {
  const std::vector<float> row = {3, 9, -1, 9, 4, -8, 5, 9, -8, 0};
  std::vector<std::uint32_t> order(row.size());
  const Limits limits = token_limits(row, 2, order);
  EXPECT_EQ(limits.high, 9);  // the third of three
  EXPECT_EQ(limits.low, -1);
  std::sort(order.begin(), order.begin() + 4);
  EXPECT_EQ(std::vector(order.begin(), order.begin() + 4),
            (std::vector<std::uint32_t>{1, 3, 5, 8}));
  EXPECT_EQ(token_limits(row, 0, order).high, 9);
  EXPECT_EQ(token_limits(row, 0, order).low, -8);
}

TEST(KvquantRows, OutliersOfATokenAreThePublicOnes) {
  EXPECT_EQ(outliers_at_end(4096, 1), 21);
  EXPECT_EQ(outliers_at_end(4096, 0), 0);
  EXPECT_EQ(outliers_at_end(64, 1), 1);
}

}  // namespace
}  // namespace kvlane::kvquant
