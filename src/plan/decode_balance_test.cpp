// Every token of every KV head in exactly one piece, and cuts at fixed places.
// SPDX-License-Identifier: Apache-2.0
#include "plan/decode_balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "format/shape.h"
#include "plan/decode_cuts.h"

namespace kvlane {
namespace {

constexpr int kSplit = 16;
constexpr int kRunTokens = kSplit * kBlockTokens;

struct Batch {
  std::vector<std::int32_t> tokens;
  std::vector<HeadWidths> heads;
};

Batch random_batch(std::mt19937& random) {
  Batch batch;
  batch.tokens.resize(1 + random() % 64);
  for (std::int32_t& count : batch.tokens) {
    const int scale = 1 << random() % 16;
    count = static_cast<std::int32_t>(random() % (scale + 1));
  }
  batch.heads.resize(1 + random() % 8);
  for (HeadWidths& head : batch.heads) {
    head.k = static_cast<std::int32_t>(16 + random() % 8 * 16);
    head.v = static_cast<std::int32_t>(16 + random() % 8 * 16);
  }
  return batch;
}

std::int64_t work_of(const DecodePiece& piece, const Batch& batch) {
  return std::int64_t{piece.end_token - piece.first_token} * key_work(batch.heads[piece.kv_head]);
}

void expect_sound(const DecodeBalance& plan, const Batch& batch, const DecodeBalanceShape& shape) {
  ASSERT_EQ(plan.first.size(), shape.machines + 1);
  EXPECT_EQ(plan.first.front(), 0);
  EXPECT_EQ(plan.first.back(), plan.pieces.size());
  std::int64_t total = 0, makespan = 0;
  std::map<std::pair<int, int>, std::vector<std::pair<int, int>>> ranges;
  for (int machine = 0; machine < shape.machines; ++machine) {
    std::int64_t load = 0;
    for (int i = plan.first[machine]; i < plan.first[machine + 1]; ++i) {
      const DecodePiece& piece = plan.pieces[i];
      load += work_of(piece, batch);
      ranges[{piece.sequence, piece.kv_head}].emplace_back(piece.first_token, piece.end_token);
    }
    total += load;
    makespan = std::max(makespan, load);
  }
  EXPECT_EQ(plan.total, total);
  EXPECT_EQ(plan.makespan, makespan);
  for (int sequence = 0; sequence < static_cast<int>(batch.tokens.size()); ++sequence) {
    const std::int32_t end = batch.tokens[sequence];
    for (int kv_head = 0; kv_head < static_cast<int>(batch.heads.size()); ++kv_head) {
      auto pieces = ranges[{sequence, kv_head}];
      std::ranges::sort(pieces);
      int next = 0;
      for (const auto& [first_token, end_token] : pieces) {
        EXPECT_EQ(first_token, next);
        EXPECT_LT(first_token, end_token);
        EXPECT_TRUE(shape.split_blocks > 0 ? first_token % kRunTokens == 0 : first_token == 0);
        next = end_token;
      }
      EXPECT_EQ(next, end);
    }
  }
}

TEST(DecodeBalance, CoversEveryTokenOfEveryHeadOnceWithCutsAtRuns) {
  std::mt19937 random(1);
  DecodeBalancer balancer;
  for (int round = 0; round < 300; ++round) {
    const Batch batch = random_batch(random);
    const auto machines = static_cast<int>(1 + random() % 150);
    for (const bool longest_first : {false, true}) {
      for (const int split_blocks : {0, kSplit}) {
        const DecodeBalanceShape shape = {machines, split_blocks, longest_first};
        expect_sound(balancer.balance(batch.tokens, batch.heads, shape), batch, shape);
      }
    }
  }
}

TEST(DecodeBalance, NeverWorseThanRoundRobinOfTheSamePieces) {
  std::mt19937 random(2);
  DecodeBalancer balancer;
  for (int round = 0; round < 300; ++round) {
    const Batch batch = random_batch(random);
    const auto machines = static_cast<int>(1 + random() % 150);
    for (const int split_blocks : {0, kSplit}) {
      const std::int64_t balanced =
          balancer.balance(batch.tokens, batch.heads, {machines, split_blocks}).makespan;
      const std::int64_t round_robin =
          balancer.balance(batch.tokens, batch.heads, {machines, split_blocks, false}).makespan;
      EXPECT_LE(balanced, round_robin);
    }
  }
}

// What a machine has more than its share is part of one piece, and of one run where shares are
// long.
TEST(DecodeBalance, CutTasksLeaveNoMachineMuchMoreThanItsShare) {
  std::mt19937 random(3);
  DecodeBalancer balancer;
  int long_shares = 0;
  for (int round = 0; round < 300; ++round) {
    const Batch batch = random_batch(random);
    const auto machines = static_cast<int>(1 + random() % 150);
    const DecodeBalance& plan = balancer.balance(batch.tokens, batch.heads, {machines, kSplit});
    const std::int64_t share = (plan.total + machines - 1) / machines;
    std::int64_t widest_run = 0;
    for (const HeadWidths& head : batch.heads) {
      widest_run = std::max(widest_run, std::int64_t{kRunTokens} * key_work(head));
    }
    EXPECT_LE(plan.makespan, share + share / kDecodePiecesMachine + widest_run);
    if (share < 7 * widest_run) continue;
    ++long_shares;
    EXPECT_LE(plan.makespan, share + widest_run);
    EXPECT_LE(3 * plan.makespan, 4 * share);
  }
  EXPECT_GT(long_shares, 50);
}

// In one go, and levelled by a run.
TEST(DecodeBalance, LongSharesAreFewPieces) {
  const std::vector<HeadWidths> heads = {{64, 64}, {16, 16}};
  const std::vector<std::int32_t> tokens = {40 * kRunTokens, 24 * kRunTokens, 100};
  DecodeBalancer balancer;
  const DecodeBalance& plan = balancer.balance(tokens, heads, {4, kSplit});
  EXPECT_LT(plan.pieces.size(), 4 * kDecodePiecesMachine / 2);
  EXPECT_LE(plan.makespan * 4, plan.total * 101 / 100);
}

// Pieces are counted, not dealt: as dealt.
TEST(DecodeCuts, RoundRobinIsThatOfThePlan) {
  std::mt19937 random(5);
  DecodeBalancer balancer;
  std::vector<std::int64_t> loads;
  for (int round = 0; round < 500; ++round) {
    const Batch batch = random_batch(random);
    const auto machines = static_cast<int>(1 + random() % (round % 2 == 0 ? 7 : 150));
    const int split = round % 3 == 0 ? 0 : kSplit;
    const DecodeBalanceShape shape = {machines, split, false, 1 + static_cast<int>(random() % 40)};
    EXPECT_EQ(round_robin_makespan(DecodeCuts(batch.tokens, batch.heads, shape), loads),
              balancer.balance(batch.tokens, batch.heads, shape).makespan);
  }
}

TEST(DecodeBalance, HeadsOfOneSequenceByTheirWidths) {
  // Work a token is 257, 33, 129 and 97.
  const std::vector<HeadWidths> heads = {{128, 128}, {16, 16}, {64, 64}, {32, 64}};
  const std::vector<std::int32_t> tokens = {1000};
  DecodeBalancer balancer;
  const DecodeBalance& plan = balancer.balance(tokens, heads, {2, 0});
  ASSERT_EQ(plan.pieces.size(), 4);
  EXPECT_EQ(plan.first[1], 1);  // the widest against all others
  EXPECT_EQ(plan.pieces[0].kv_head, 0);
  EXPECT_EQ(plan.makespan, 259000);
  EXPECT_EQ(plan.total, 516000);
  // In head order 257 + 129 against 33 + 97.
  EXPECT_EQ(balancer.balance(tokens, heads, {2, 0, false}).makespan, 386000);
}

TEST(DecodeBalance, OneLongSequenceIsCutForAllMachines) {
  const std::vector<HeadWidths> heads(8, {64, 64});
  const std::vector<std::int32_t> tokens = {132 * kRunTokens};
  DecodeBalancer balancer;
  EXPECT_EQ(balancer.balance(tokens, heads, {132, 0}).makespan, 132 * kRunTokens * 129);
  const DecodeBalance& plan = balancer.balance(tokens, heads, {132, kSplit});
  EXPECT_EQ(plan.makespan, 8 * kRunTokens * 129);
  // A share is 8 runs; 7 of them are a piece or, at the end of a head's tokens, two.
  EXPECT_LE(plan.pieces.size(), 3 * 132);
}

TEST(DecodeBalance, TasksAreCutNoFinerThanNeeded) {
  // A machine's share is all, and a 16th of that 8 runs.
  const std::vector<HeadWidths> heads = {{16, 16}};
  const std::vector<std::int32_t> tokens = {128 * kRunTokens};
  DecodeBalancer balancer;
  const DecodeBalance& plan = balancer.balance(tokens, heads, {1, kSplit, false});
  ASSERT_EQ(plan.pieces.size(), kDecodePiecesMachine);
  for (const DecodePiece& piece : plan.pieces) {
    EXPECT_EQ(piece.end_token - piece.first_token, 8 * kRunTokens);
  }
}

TEST(DecodeBalance, SameInputSamePlanWhateverWasBefore) {
  std::mt19937 random(4);
  DecodeBalancer used;
  for (int round = 0; round < 50; ++round) {
    const Batch batch = random_batch(random);
    DecodeBalancer fresh;
    const DecodeBalance& a = used.balance(batch.tokens, batch.heads, {108, kSplit});
    const DecodeBalance& b = fresh.balance(batch.tokens, batch.heads, {108, kSplit});
    EXPECT_EQ(a.first, b.first);
    ASSERT_EQ(a.pieces.size(), b.pieces.size());
    for (std::size_t i = 0; i < a.pieces.size(); ++i) {
      EXPECT_EQ(a.pieces[i].sequence, b.pieces[i].sequence);
      EXPECT_EQ(a.pieces[i].kv_head, b.pieces[i].kv_head);
      EXPECT_EQ(a.pieces[i].first_token, b.pieces[i].first_token);
      EXPECT_EQ(a.pieces[i].end_token, b.pieces[i].end_token);
    }
  }
}

TEST(DecodeBalance, NothingToDo) {
  const std::vector<HeadWidths> heads = {{16, 16}};
  DecodeBalancer balancer;
  const std::vector<std::int32_t> none = {0, 0};
  EXPECT_TRUE(balancer.balance(none, heads, {3, kSplit}).pieces.empty());
  EXPECT_EQ(balancer.balance({}, heads, {3, kSplit}).makespan, 0);
}

}  // namespace
}  // namespace kvlane
