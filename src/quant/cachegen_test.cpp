// CacheGen: against its formulas in double precision, sizes against entropies, and bytes from
// strangers.
// SPDX-License-Identifier: Apache-2.0
#include "quant/cachegen.h"

#include <gtest/gtest.h>

#include "codec/arithmetic_coder.h"
#include "cpu/tiers_fixture.h"
#include "quant/cachegen_models.h"
#include "quant/cachegen_slab.h"
#include "quant/tables_fixture.h"

namespace kvlane::cachegen {
namespace {

using namespace tables_fixture;
using tiers_fixture::vector_tiers;

constexpr const char* kTexts[] = {"cachegen", "cachegen:level=1", "cachegen:level=3",
                                  "cachegen:form=paper"};

struct World {
  explicit World(const KvShape& kv_shape) : shape(kv_shape) {
    std::vector<std::vector<std::uint16_t>> slabs;
    for (std::uint64_t seed = 10; seed < 14; ++seed)
      slabs.push_back(to_bits(plain_rows(shape, seed)));
    add_cachegen_tables(shape, slabs, tables);
  }
  KvFormatContext context(Isa isa) const { return {shape, nullptr, &tables, isa}; }

  KvShape shape;
  KvTables tables;
};

double reference_code(double x, double largest, int bins) {
  const double c = bins / 2 - 1;
  return std::nearbyint(x * c / largest) / c * largest;
}

double reference_anchor(double x, double largest) {
  return std::nearbyint(x * 127 / largest) / 127 * largest;
}

TEST(Cachegen, CodeIsThePublicFormula) {
  for (const KvShape& shape : shapes()) {
    const World& world = world_of<World>(shape);
    const auto format = made("cachegen:form=code,level=2", world.context(Isa::kScalar));
    const std::vector<std::uint16_t> rows = to_bits(plain_rows(shape, 3));
    for (int layer = 0; layer < shape.layers; ++layer) {
      Sealed sealed(*format, {layer, 128}, rows);
      ASSERT_TRUE(sealed.status.ok()) << sealed.status.message();
      const auto opened = open(*format, {layer, 128}, sealed.slab.data());
      for (const bool is_key : {true, false}) {
        const int bins = bins_of(2, is_key, layer, shape.layers);
        for (int token = 0; token < kBlockTokens; ++token) {
          double largest = 0;
          for (int c = 0; c < shape.kv_heads * shape.head_dim; ++c) {
            largest =
                std::max<double>(largest, std::abs(channel_value(shape, rows, is_key, token, c)));
          }
          for (int c = 0; c < shape.kv_heads * shape.head_dim; ++c) {
            const double x = channel_value(shape, rows, is_key, token, c);
            const double expected = reference_code(x, largest, bins);
            const double found = channel_value(shape, opened, is_key, token, c);
            const double steps = x * (bins / 2 - 1) / largest;
            const bool tie = std::abs(steps - std::floor(steps) - 0.5) < 1e-5;
            if (tie) continue;
            ASSERT_NEAR(found, expected, half_ulp(expected)) << token << " " << c;
          }
        }
      }
    }
  }
}

TEST(Cachegen, PaperIsAnchorsAndDeltas) {
  for (const KvShape& shape : shapes()) {
    const World& world = world_of<World>(shape);
    const auto format = made("cachegen:form=paper", world.context(Isa::kScalar));
    const std::vector<std::uint16_t> rows = to_bits(plain_rows(shape, 3));
    for (int layer = 0; layer < shape.layers; ++layer) {
      Sealed sealed(*format, {layer, 0}, rows);
      ASSERT_TRUE(sealed.status.ok());
      const auto opened = open(*format, {layer, 0}, sealed.slab.data());
      for (const bool is_key : {true, false}) {
        for (int token = 0; token < kBlockTokens; ++token) {
          const int anchor = token / 10 * 10;
          double largest = 0;
          for (int c = 0; c < shape.kv_heads * shape.head_dim; ++c) {
            largest =
                std::max<double>(largest, std::abs(channel_value(shape, rows, is_key, anchor, c)));
          }
          const double step_widths = 0.5 + 0.5 * (layer * 3 / shape.layers);
          for (int c = 0; c < shape.kv_heads * shape.head_dim; ++c) {
            const double x = channel_value(shape, rows, is_key, token, c);
            const double from =
                reference_anchor(channel_value(shape, rows, is_key, anchor, c), largest);
            const double step = width(is_key, c) * step_widths;
            const double steps = std::clamp((x - from) / step, -31.0, 31.0);
            if (std::abs(steps - std::floor(steps) - 0.5) < 1e-5) continue;
            const double expected = token == anchor ? from : from + std::nearbyint(steps) * step;
            ASSERT_NEAR(channel_value(shape, opened, is_key, token, c), expected,
                        half_ulp(expected) + 1e-6 * std::abs(from))
                << token << " " << c;
          }
        }
      }
    }
  }
}

TEST(Cachegen, TiersAreTheSame) {
  if (vector_tiers().empty()) GTEST_SKIP() << "this processor lacks AVX2";
  for (const KvShape& shape : shapes()) {
    const World& world = world_of<World>(shape);
    for (const char* text : kTexts) {
      const auto scalar = made(text, world.context(Isa::kScalar));
      Sealed a(*scalar, {1, 64}, to_bits(plain_rows(shape, 4)));
      const auto opened = open(*scalar, {1, 64}, a.slab.data());
      for (const Isa isa : vector_tiers()) {
        const auto vector = made(text, world.context(isa));
        Sealed b(*vector, {1, 64}, to_bits(plain_rows(shape, 4)));
        ASSERT_EQ(std::memcmp(a.slab.data(), b.slab.data(), scalar->slab_bytes()), 0) << text;
        EXPECT_EQ(opened, open(*vector, {1, 64}, a.slab.data()))
            << text << " head_dim " << shape.head_dim << " " << isa_name(isa);
      }
    }
  }
}

// Symbols counted here cost, under the models, what the slab takes: but for 4 bytes a lane and 1 %.
TEST(Cachegen, TakesTheEntropyOfItsModels) {
  for (const KvShape& shape : shapes()) {
    const World& world = world_of<World>(shape);
    const auto format = made("cachegen:level=2", world.context(Isa::kScalar));
    const std::vector<std::uint16_t> rows = to_bits(plain_rows(shape, 5));
    double bits = 0;
    for (const bool is_key : {true, false}) {
      const int bins = bins_of(2, is_key, 0, shape.layers);
      const int symbols = symbols_of(bins);
      const auto& counts = world.tables.values.at(table_prefix("cachegen", 0, is_key) + "bins" +
                                                  std::to_string(bins));
      for (int c = 0; c < shape.kv_heads * shape.head_dim; ++c) {
        std::vector<std::uint32_t> whole(counts.begin() + std::size_t(c) * symbols,
                                         counts.begin() + std::size_t(c + 1) * symbols);
        std::vector<std::uint32_t> firsts(symbols + 1);
        firsts_of_counts(whole, firsts);
        for (int token = 0; token < kBlockTokens; ++token) {
          const Scale scale(largest_magnitude(shape, rows.data(), is_key, token), middle_of(bins));
          const int symbol = symbol_of(channel_value(shape, rows, is_key, token, c), scale);
          bits -= std::log2((firsts[symbol + 1] - firsts[symbol]) / 65536.0);
        }
      }
    }
    Sealed sealed(*format, {0, 0}, rows);
    const double bytes = static_cast<double>(format->used_bytes({0, 0}, sealed.slab.data()) -
                                             header_bytes(Form::kCode, shape.kv_heads));
    EXPECT_LE(bytes, 1.01 * bits / 8 + 4.0 * kCoderLanes * shape.kv_heads) << shape.head_dim;
    EXPECT_GE(bytes, bits / 8 - 1);
  }
}

// Values that calibration never saw cost 16 bits each: then symbols are written as they are.
TEST(Cachegen, FallsBackToSymbolsAsTheyAre) {
  const KvShape shape{3, 2, 64, ElementType::kBf16};
  const World& world = world_of<World>(shape);
  std::vector<float> rows(shape.slab_bytes() / 2);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = (i + i / 64) % 2 == 0 ? 100.0F : -100.0F;
  }
  for (const char* text : kTexts) {
    const auto format = made(text, world.context(Isa::kScalar));
    Sealed sealed(*format, {0, 0}, to_bits(rows));
    ASSERT_TRUE(sealed.status.ok());
    EXPECT_LE(format->used_bytes({0, 0}, sealed.slab.data()), format->slab_bytes());
    EXPECT_GT(format->used_bytes({0, 0}, sealed.slab.data()) + 64, format->slab_bytes() * 9 / 10)
        << text;
    if (std::string(text) != "cachegen:form=paper") {
      EXPECT_EQ(open(*format, {0, 0}, sealed.slab.data()), to_bits(rows)) << text;
    }
    for (const Isa isa : vector_tiers()) {
      EXPECT_EQ(open(*format, {0, 0}, sealed.slab.data()),
                open(*made(text, world.context(isa)), {0, 0}, sealed.slab.data()));
    }
  }
}

TEST(Cachegen, ZeroesAndTheLargestValues) {
  const KvShape shape{3, 1, 80, ElementType::kBf16};
  const World& world = world_of<World>(shape);
  for (const int value : {0x0000, 0x8000, 0x0001, 0x7F7F, 0xFF7F}) {
    const auto bits = static_cast<std::uint16_t>(value);
    for (const char* text : kTexts) {
      const auto format = made(text, world.context(Isa::kScalar));
      const std::vector<std::uint16_t> rows(shape.slab_bytes() / 2, bits);
      Sealed sealed(*format, {0, 0}, rows);
      ASSERT_TRUE(sealed.status.ok());
      const bool small = (bits & 0x7FFF) < 2;
      for (const std::uint16_t found : open(*format, {0, 0}, sealed.slab.data())) {
        ASSERT_EQ(small ? found & 0x7FFF : found, small ? 0 : bits) << text;
      }
    }
  }
}

TEST(Cachegen, NamesWhatIsNotFinite) {
  const KvShape shape{3, 2, 64, ElementType::kBf16};
  const World& world = world_of<World>(shape);
  const auto format = made("cachegen", world.context(Isa::kScalar));
  std::vector<std::uint16_t> rows = to_bits(plain_rows(shape, 1));
  rows[3 * shape.page_plane_elements() + 9 * 64 + 5] = 0x7FC0;
  Sealed sealed(*format, {2, 640}, rows);
  EXPECT_EQ(sealed.status.message(),
            "V of layer 2, KV head 1, token 649 is nan: KV formats take finite numbers only");
}

TEST(Cachegen, OpensAnyBytesInBounds) {
  for (const KvShape& shape : shapes()) {
    const World& world = world_of<World>(shape);
    for (const char* text : kTexts) {
      const auto format = made(text, world.context(Isa::kScalar));
      std::vector others = {format};
      for (const Isa isa : vector_tiers()) others.push_back(made(text, world.context(isa)));
      Lines slab(format->slab_bytes());
      for (std::uint32_t seed = 0; seed < 20; ++seed) {
        Sealed sealed(*format, {0, 0}, to_bits(plain_rows(shape, 6)));
        std::memcpy(slab.data(), sealed.slab.data(), format->slab_bytes());
        const std::size_t until = seed < 10 ? 8 * shape.kv_heads : format->slab_bytes();
        for (std::size_t i = 0; i < until; ++i) {
          const auto dice = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0});
          if (dice[0] % 5 == 0) slab.data()[i] = static_cast<std::byte>(dice[1]);
        }
        EXPECT_LE(format->used_bytes({0, 0}, slab.data()), format->slab_bytes());
        const auto opened = open(*format, {0, 0}, slab.data());
        for (const auto& other : others) {
          EXPECT_EQ(opened, open(*other, {0, 0}, slab.data())) << text;
        }
      }
    }
  }
}

TEST(Cachegen, SaysWhichTablesLack) {
  const KvShape shape{3, 2, 64, ElementType::kBf16};
  const auto message = [&](const char* text, const KvTables* tables) {
    return make_kv_format(text, {shape, nullptr, tables, Isa::kScalar}).status().message();
  };
  EXPECT_EQ(
      message("cachegen", nullptr),
      "KV format 'cachegen' needs tables: kvlane calibrate tables DIR --text FILE --out FILE, "
      "then --kv-tables FILE");
  World world = world_of<World>(shape);
  world.tables.values["cachegen.layers.1.v.bins16"].pop_back();
  EXPECT_EQ(message("cachegen", &world.tables),
            "KV format 'cachegen': table 'cachegen.layers.1.v.bins16' has 1919 values where this "
            "model needs 1920");
  world.tables.values["cachegen.layers.1.v.bins16"].push_back(0.5F);
  EXPECT_EQ(message("cachegen", &world.tables),
            "KV format 'cachegen': table 'cachegen.layers.1.v.bins16': channel 127, symbol 14: "
            "0.500000 is no whole number from 0 to 2^24");
  world.tables.values.erase("cachegen.layers.2.k.delta");
  EXPECT_EQ(message("cachegen:form=paper", &world.tables),
            "KV format 'cachegen': the tables have no 'cachegen.layers.2.k.delta'; to make them "
            "again: kvlane calibrate tables DIR --text FILE --out FILE, then --kv-tables FILE");
  EXPECT_EQ(message("cachegen:form=paper,level=2", &world.tables),
            "KV format 'cachegen' has no parameter 'level'");
}

TEST(Cachegen, NamesSayEveryParameter) {
  const KvShape shape{3, 2, 64, ElementType::kBf16};
  const World& world = world_of<World>(shape);
  EXPECT_EQ(made("cachegen", world.context(Isa::kScalar))->name(), "cachegen:form=code,level=2");
  const auto format = made("cachegen:form=paper,sink=1", world.context(Isa::kScalar));
  EXPECT_EQ(format->name(), "cachegen:form=paper,sink=1");
  EXPECT_EQ(format->window(), (KvWindow{1, 0}));
}

TEST(CachegenBins, AreThePublicOnesFor32And80Layers) {
  EXPECT_EQ(bins_of(2, true, 9, 32), 32);
  EXPECT_EQ(bins_of(2, true, 10, 32), 16);
  EXPECT_EQ(bins_of(2, false, 1, 32), 32);
  EXPECT_EQ(bins_of(2, false, 2, 32), 16);
  EXPECT_EQ(bins_of(1, true, 19, 32), 16);
  EXPECT_EQ(bins_of(1, true, 20, 32), 12);
  EXPECT_EQ(bins_of(3, false, 31, 32), 32);
  EXPECT_EQ(bins_of(2, true, 39, 80), 32);
  EXPECT_EQ(bins_of(2, true, 40, 80), 16);
  EXPECT_EQ(bins_of(2, false, 19, 80), 32);
  EXPECT_EQ(bins_of(2, false, 20, 80), 16);
  EXPECT_EQ(bins_of(2, false, 0, 2), 32);
}

}  // namespace
}  // namespace kvlane::cachegen
