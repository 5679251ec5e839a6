// Entropy coders: what is coded comes back, and takes what its model says.
// SPDX-License-Identifier: Apache-2.0
#include "codec/arithmetic_coder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"
#include "codec/lane_coder.h"

namespace kvlane {
namespace {

using Firsts = std::vector<std::uint32_t>;

struct Case {
  const char* what;
  Firsts firsts;
};

std::vector<Case> models() {
  Firsts even(257);
  for (std::uint32_t i = 0; i <= 256; ++i) even[i] = i << 8;
  Firsts geometric{0};
  for (std::uint32_t share = 32768; share > 1; share /= 2)
    geometric.push_back(geometric.back() + share);
  geometric.push_back(kModelTotal);
  Firsts rare(32);
  for (std::uint32_t i = 0; i < 31; ++i) rare[i] = i;
  rare[31] = kModelTotal;
  return {{"one symbol that has it all", {0, kModelTotal}},
          {"all but one part of 2^16 last", {0, 1, kModelTotal}},
          {"all but one part of 2^16 first", {0, kModelTotal - 1, kModelTotal}},
          {"two halves", {0, kModelTotal / 2, kModelTotal}},
          {"256 even ones", even},
          {"halves of halves", geometric},
          {"30 of one part", rare},
          {"symbols that own nothing", {0, 0, 40000, 40000, kModelTotal, kModelTotal}}};
}

// Symbols as the model expects them, or, if `unlikely`, each in turn.
std::vector<std::uint8_t> draw(const Firsts& firsts, std::size_t count, bool unlikely,
                               std::uint64_t seed) {
  std::vector<std::uint8_t> symbols(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t point = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0})[0] >> 16;
    if (unlikely) {
      const std::size_t s = i % (firsts.size() - 1);
      if (firsts[s] < firsts[s + 1]) point = firsts[s];
    }
    symbols[i] = static_cast<std::uint8_t>(
        std::upper_bound(firsts.begin(), firsts.end() - 1, point) - firsts.begin() - 1);
  }
  return symbols;
}

double entropy_bytes(const Firsts& firsts, std::span<const std::uint8_t> symbols) {
  double bits = 0;
  for (const std::uint8_t s : symbols) bits -= std::log2((firsts[s + 1] - firsts[s]) / 65536.0);
  return bits / 8;
}

TEST(ArithmeticCoder, GivesBackWhatTakesItsEntropy) {
  for (const Case& model : models()) {
    for (const std::size_t count : {0, 1, 2, 10, 64, 255, 256, 5000}) {
      for (std::uint64_t seed = 0; seed < 20; ++seed) {
        const auto symbols = draw(model.firsts, count, seed % 4 == 3, seed);
        Bytes coded(arithmetic_bound(count));
        coded.resize(arithmetic_encode(symbols, model.firsts, coded));
        const double entropy = entropy_bytes(model.firsts, symbols);
        EXPECT_LE(static_cast<double>(coded.size()), 1.01 * entropy + 2) << model.what << count;
        std::vector<std::uint8_t> back(count, 0xEE);
        arithmetic_decode(coded, model.firsts, back);
        ASSERT_EQ(back, symbols) << model.what << ", " << count;
      }
    }
  }
}

TEST(ArithmeticCoder, DecodesAnyBytesToSymbolsOfTheModel) {
  for (const Case& model : models()) {
    for (std::uint32_t seed = 0; seed < 200; ++seed) {
      Bytes coded(seed % 40);
      for (std::size_t i = 0; i < coded.size(); ++i) {
        const auto die = philox4x32(seed, {static_cast<std::uint32_t>(i), 1, 0, 0})[0];
        coded[i] = static_cast<std::byte>(seed % 5 == 0 ? 0xFF : die);
      }
      std::vector<std::uint8_t> symbols(100);
      arithmetic_decode(coded, model.firsts, symbols);
      for (const std::uint8_t s : symbols) {
        ASSERT_LT(s + 1U, model.firsts.size());
        ASSERT_LT(model.firsts[s], model.firsts[s + 1]);
      }
    }
  }
}

// Lane i % 16 takes symbol i.
std::size_t encode_lanes(const Firsts& firsts, std::span<const std::uint8_t> symbols,
                         std::span<std::byte> room) {
  LaneEncoder encoder(room);
  for (std::size_t i = symbols.size(); i-- > 0;) {
    const std::uint8_t s = symbols[i];
    encoder.put(static_cast<int>(i % kCoderLanes), firsts[s], firsts[s + 1] - firsts[s]);
  }
  return encoder.finish();
}

TEST(LaneCoder, GivesBackWhatTakesItsEntropy) {
  for (const Case& model : models()) {
    for (const std::size_t count : {0, 1, 15, 16, 17, 256, 1024, 20000}) {
      for (std::uint64_t seed = 0; seed < 5; ++seed) {
        const auto symbols = draw(model.firsts, count, seed == 4, seed);
        Bytes room(2 * count + kLaneStateBytes);
        const std::size_t bytes = encode_lanes(model.firsts, symbols, room);
        ASSERT_GT(bytes, 0U);
        EXPECT_EQ(bytes % 2, 0U);
        const double entropy = entropy_bytes(model.firsts, symbols);
        EXPECT_LE(static_cast<double>(bytes), 1.01 * entropy + 4.0 * kCoderLanes)
            << model.what << ", " << count;
        LaneDecoder decoder(ByteView(room).last(bytes));
        for (std::size_t i = 0; i < count; ++i) {
          const auto lane = static_cast<int>(i % kCoderLanes);
          const auto at =
              std::upper_bound(model.firsts.begin(), model.firsts.end() - 1, decoder.slot(lane)) -
              1;
          ASSERT_EQ(at - model.firsts.begin(), symbols[i]) << model.what << ", " << i;
          decoder.take(lane, *at, at[1] - *at);
        }
      }
    }
  }
}

TEST(LaneCoder, SaysWhenThereIsTooLittleRoom) {
  const Firsts firsts = {0, 1, kModelTotal};
  const std::vector<std::uint8_t> symbols(100, 0);
  Bytes room(2 * symbols.size() + kLaneStateBytes);
  const std::size_t bytes = encode_lanes(firsts, symbols, room);
  for (std::size_t less = 0; less <= bytes; ++less) {
    Bytes exact(less);
    EXPECT_EQ(encode_lanes(firsts, symbols, exact), less == bytes ? bytes : 0) << less;
  }
}

}  // namespace
}  // namespace kvlane
