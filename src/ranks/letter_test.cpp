// Letters come back as they went, and no other bytes pass for one.
// SPDX-License-Identifier: Apache-2.0
#include "ranks/letter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "base/test_results.h"

namespace kvlane {
namespace {

Join join() {
  Join join{2, 4, 7, {}, {"10.0.0.2", 4711}};
  join.model.fill(std::byte{9});
  return join;
}

Plan plan() { return {"bf16", 100, 10, 7, 576, 64, 4096, 77, {{"a", 1}, {"::1", 65535}}}; }

// Of one layer.
std::vector<Codebook> codebooks() {
  std::vector<Codebook> books(2);
  for (std::uint8_t i = 0; i < Codebook::kExponentsMax; ++i) {
    books[0].exponents[i] = i;
    books[1].exponents[i] = static_cast<std::uint8_t>(100 + 2 * i);
  }
  return books;
}

Pass pass() {
  return {3,
          {{64, 0, 0, 1, {5, 6}, {1, 2}, {}},
           {700, 2, 512, 0, {1}, {-1, -1, 4}, {-1, -1, 0}, 1ULL << 40}}};
}

TEST(Letter, ComesBackAsItWent) {
  EXPECT_EQ(take(decode_join(encode_join(join()))), join());
  EXPECT_EQ(take(decode_plan(encode_plan(plan()))), plan());
  Plan saves = plan();
  saves.state = {true, 1, 20, 30, "splitzip", true, codebooks()};
  EXPECT_EQ(take(decode_plan(encode_plan(saves))), saves);
  EXPECT_EQ(take(decode_peer(encode_peer(12))), 12);
  EXPECT_EQ(take(kind_of(encode_ready())), LetterKind::kReady);
  const Bytes values(33, std::byte{4});
  const Bytes values_letter = encode_values(values);
  EXPECT_TRUE(std::ranges::equal(take(decode_values(values_letter)), values));
  const Pass told = take(decode_pass(encode_pass(pass())));
  EXPECT_EQ(told.number, 3U);
  EXPECT_EQ(told.spans, pass().spans);
  EXPECT_EQ(take(decode_layer(encode_layer({8, 31}))).layer, 31);
  const CopyOrder copy =
      take(decode_copy(encode_copy({5, {RankMemory::kArena, 1}, {RankMemory::kRows, 2}})));
  EXPECT_EQ(copy.to, (BlockPlace{RankMemory::kArena, 1}));
  EXPECT_EQ(copy.from, (BlockPlace{RankMemory::kRows, 2}));
  const Bytes write_letter = encode_write({6, {RankMemory::kBlocks, 3}, 2, values});
  const SlabOrder write = take(decode_write(write_letter));
  EXPECT_EQ(write.layer, 2);
  EXPECT_TRUE(std::ranges::equal(write.bytes, values));
  EXPECT_EQ(take(decode_read(encode_read({7, {RankMemory::kBlocks, 3}, 1, {}}))).request, 7U);
  const Bytes reply_letter = encode_reply({9, exhausted("no"), values});
  const Reply reply = take(decode_reply(reply_letter));
  EXPECT_EQ(reply.status.code(), Code::kExhausted);
  EXPECT_EQ(reply.status.message(), "no");
  EXPECT_TRUE(std::ranges::equal(reply.bytes, values));
  const Bytes end_letter = encode_pass_end(
      {4, {}, {.gemm = 1, .attention = 2, .dequantise = 3, .quantise = 4}, values, 5, 6});
  const PassEnd end = take(decode_pass_end(end_letter));
  EXPECT_TRUE(end.status.ok());
  EXPECT_EQ(end.times.quantise, 4);
  EXPECT_EQ(end.save_failures, 5U);
  EXPECT_EQ(end.hidden_tokens_lost, 6U);
  EXPECT_EQ(end.logits.size(), values.size());
}

// Those of fixed fields: every shorter letter, and a longer one.
TEST(Letter, OfAnotherLengthIsRefused) {
  const auto refuses = [](Bytes letter, const std::function<Status(ByteView)>& decode) {
    for (std::size_t bytes = 1; bytes < letter.size(); ++bytes) {
      EXPECT_FALSE(decode(ByteView(letter).first(bytes)).ok()) << bytes;
    }
    letter.push_back(std::byte{0});
    EXPECT_EQ(decode(letter).code(), Code::kCorrupt);
  };
  refuses(encode_join(join()), [](ByteView letter) { return decode_join(letter).status(); });
  refuses(encode_plan(plan()), [](ByteView letter) { return decode_plan(letter).status(); });
  Plan saves = plan();
  saves.state = {true, 1, 20, 30, "splitzip", true, codebooks()};
  refuses(encode_plan(saves), [](ByteView letter) { return decode_plan(letter).status(); });
  refuses(encode_peer(1), [](ByteView letter) { return decode_peer(letter).status(); });
  refuses(encode_pass(pass()), [](ByteView letter) { return decode_pass(letter).status(); });
  refuses(encode_layer({1, 2}), [](ByteView letter) { return decode_layer(letter).status(); });
  refuses(encode_copy({}), [](ByteView letter) { return decode_copy(letter).status(); });
  refuses(encode_read({}), [](ByteView letter) { return decode_read(letter).status(); });
  EXPECT_FALSE(kind_of({}).ok());
}

TEST(Letter, SaysNothingThatIsOutOfRange) {
  Bytes plan_letter = encode_plan(plan());
  plan_letter[1 + 4 + 4 + 3] = std::byte{0x80};  // a negative number of blocks
  EXPECT_EQ(decode_plan(plan_letter).status().code(), Code::kCorrupt);
  Plan saves = plan();
  saves.state = {.codebooks = codebooks()};
  saves.state->codebooks[1].exponents[5] = 250;  // not ascending
  EXPECT_EQ(decode_plan(encode_plan(saves)).status().code(), Code::kCorrupt);
  Bytes copy_letter = encode_copy({});
  copy_letter[1 + 8] = std::byte{3};  // no memory
  EXPECT_EQ(decode_copy(copy_letter).status().code(), Code::kCorrupt);
  Bytes pass_letter = encode_pass({1, {}});
  pass_letter[1 + 8 + 2] = std::byte{1};  // many spans, none of which is there
  EXPECT_EQ(decode_pass(pass_letter).status().code(), Code::kCorrupt);
  Bytes join_letter = encode_join(join());
  join_letter[1] = std::byte{kRanksVersion + 1};
  EXPECT_EQ(decode_join(join_letter).status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace kvlane
