// Every row of every KV head in exactly one unit, and each step by hand-computed examples.
// SPDX-License-Identifier: Apache-2.0
#include "plan/prefill_balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace kvlane {
namespace {

using ::testing::ElementsAre;

constexpr int kNoLimit = std::numeric_limits<int>::max();
constexpr PrefillBalanceSteps kNoSteps = {false, false, false};
constexpr HeadWidths kWide = {128, 128}, kMedium = {48, 64}, kNarrow = {16, 16};  // 257, 113, 33

std::vector<PrefillBalanceSteps> all_steps() {
  std::vector<PrefillBalanceSteps> all;
  for (int i = 0; i < 8; ++i) all.push_back({(i & 1) != 0, (i & 2) != 0, (i & 4) != 0});
  return all;
}

struct Prompts {
  std::vector<PrefillSpan> spans;
  std::vector<HeadWidths> heads;
};

Prompts random_prompts(std::mt19937& random) {
  Prompts prompts;
  prompts.spans.resize(1 + random() % 6);
  std::int32_t first_row = 0;
  for (PrefillSpan& span : prompts.spans) {
    span.position = random() % 2 == 0 ? 0 : static_cast<std::int32_t>(random() % 9000);
    span.rows = static_cast<std::int32_t>(random() % (1U << random() % 12));
    span.first_row = first_row;
    first_row += span.rows;
  }
  prompts.heads.resize(1 + random() % 8);
  for (HeadWidths& head : prompts.heads) {
    head.k = static_cast<std::int32_t>(16 + random() % 8 * 16);
    head.v = static_cast<std::int32_t>(16 + random() % 8 * 16);
  }
  return prompts;
}

std::int64_t work_of(const PrefillUnit& unit, int group, const std::vector<HeadWidths>& heads) {
  return prefill_visible_keys(unit, group) * key_work(heads[unit.kv_head]);
}

std::vector<std::int64_t> loads_of(const PrefillBalance& plan, int group,
                                   const std::vector<HeadWidths>& heads) {
  std::vector<std::int64_t> loads(plan.first.size() - 1);
  for (std::size_t machine = 0; machine < loads.size(); ++machine) {
    for (int i = plan.first[machine]; i < plan.first[machine + 1]; ++i) {
      loads[machine] += work_of(plan.units[i], group, heads);
    }
  }
  return loads;
}

TEST(PrefillRows, GrowAsHeadsAreNarrower) {
  EXPECT_EQ(prefill_rows(kWide, 257, kNoLimit), 64);
  EXPECT_EQ(prefill_rows(kMedium, 257, kNoLimit), 160);   // 145.6
  EXPECT_EQ(prefill_rows({64, 64}, 257, kNoLimit), 128);  // 127.5
  EXPECT_EQ(prefill_rows({96, 112}, 257, kNoLimit), 80);  // 78.7
  EXPECT_EQ(prefill_rows(kNarrow, 257, kNoLimit), 512);   // 498.4
  EXPECT_EQ(prefill_rows(kNarrow, 33, kNoLimit), 64);
}

TEST(PrefillRows, HaveRoomForTheirAccumulators) {
  const int room = PrefillBalanceShape{}.accumulators_max;
  EXPECT_EQ(room, 24576);
  EXPECT_EQ(prefill_rows(kWide, 257, room), 64);
  EXPECT_EQ(prefill_rows(kMedium, 257, room), 160);
  EXPECT_EQ(prefill_rows(kNarrow, 257, room), 304);  // 80 a row: 307.2
  EXPECT_EQ(prefill_rows(kWide, 257, 64 * 192), 64);
  EXPECT_EQ(prefill_rows(kWide, 257, 64 * 192 - 1), 48);
  EXPECT_EQ(prefill_rows(kWide, 257, 1000), 16);
}

TEST(PrefillVisibleKeys, AreThoseUpToEachRowsToken) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const auto group = static_cast<int>(1 + random() % 29);
    PrefillUnit unit = {};
    unit.position = static_cast<std::int32_t>(random() % 2000);
    unit.first_pair = static_cast<std::int32_t>(random() % 1000);
    unit.pairs = static_cast<std::int32_t>(random() % 600);
    std::int64_t keys = 0;
    for (int pair = unit.first_pair; pair < unit.first_pair + unit.pairs; ++pair) {
      keys += unit.position + pair / group + 1;
    }
    EXPECT_EQ(prefill_visible_keys(unit, group), keys);
  }
  EXPECT_EQ(prefill_visible_keys({.first_pair = 1 << 29, .pairs = 512, .position = 1 << 29}, 1),
            std::int64_t{512} * (1 << 30) + 512 * 513 / 2);
}

TEST(PrefillBalance, CoversEveryRowOfEveryHeadOnce) {
  std::mt19937 random(2);
  PrefillBalancer balancer;
  for (int round = 0; round < 100; ++round) {
    const Prompts prompts = random_prompts(random);
    const auto group = static_cast<int>(1 + random() % 8);
    const auto machines = static_cast<int>(1 + random() % 150);
    std::int64_t total = -1;
    for (const PrefillBalanceSteps& steps : all_steps()) {
      const PrefillBalance& plan = balancer.balance(
          prompts.spans, prompts.heads, {.group = group, .machines = machines, .steps = steps});
      std::vector<std::vector<int>> takers;
      for (const PrefillSpan& span : prompts.spans) {
        takers.insert(takers.end(), prompts.heads.size(), std::vector<int>(span.rows * group));
      }
      for (const PrefillUnit& unit : plan.units) {
        const PrefillSpan& span = prompts.spans[unit.sequence];
        EXPECT_EQ(unit.position, span.position);
        EXPECT_EQ(unit.first_row, span.first_row);
        EXPECT_EQ(unit.first_pair % kPrefillRowsStep, 0);
        EXPECT_GE(unit.pairs, 1);
        auto& rows = takers[unit.sequence * prompts.heads.size() + unit.kv_head];
        ASSERT_LE(unit.first_pair + unit.pairs, static_cast<int>(rows.size()));
        for (int i = 0; i < unit.pairs; ++i) ++rows[unit.first_pair + i];
      }
      for (const auto& rows : takers) {
        for (const int count : rows) EXPECT_EQ(count, 1);
      }
      const auto loads = loads_of(plan, group, prompts.heads);
      ASSERT_EQ(loads.size(), machines);
      EXPECT_EQ(plan.makespan, *std::max_element(loads.begin(), loads.end()));
      if (total < 0) total = plan.total;
      EXPECT_EQ(plan.total, total) << "work does not depend on how it is cut";
    }
  }
}

// One head, five units of 64 rows that see 2080, 6176, 10272, 14368 and 18464 keys.
TEST(PrefillBalance, CutsTheLastRoundIntoPiecesOfAMachinesShare) {
  const std::vector<HeadWidths> heads = {kNarrow};
  const std::vector<PrefillSpan> spans = {{0, 320, 0}};
  PrefillBalancer balancer;
  PrefillBalanceShape shape = {.group = 1, .machines = 4};
  // The shortest unit is the last round: 2080 / 4 keys are 16 rows of its mean, 32.5. All four
  // pieces, 904, 648, 392 and 136 keys, go to the machine with 6176.
  const PrefillBalance& plan = balancer.balance(spans, heads, shape);
  EXPECT_THAT(plan.first, ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(loads_of(plan, 1, heads), ElementsAre(18464 * 33, 14368 * 33, 10272 * 33, 8256 * 33));
  EXPECT_EQ(plan.units[4].first_pair, 48);
  EXPECT_EQ(plan.units[7].first_pair, 0);
  // Without order the last unit of the head is the last round: 18464 / 4 keys are again 16 rows,
  // which see 4232, 4488, 4744 and 5000. Loads of whole rounds are 2080, 6176, 10272 and 14368.
  shape.steps = {true, true, false};
  EXPECT_THAT(
      loads_of(balancer.balance(spans, heads, shape), 1, heads),
      ElementsAre((2080 + 5000 + 4488) * 33, (6176 + 4744) * 33, (10272 + 4232) * 33, 14368 * 33));
  shape.steps = kNoSteps;
  EXPECT_THAT(loads_of(balancer.balance(spans, heads, shape), 1, heads),
              ElementsAre((2080 + 18464) * 33, 6176 * 33, 10272 * 33, 14368 * 33));
}

// 160 rows: three units of the wide head (534560, 1587232 and 1188368), one of the other
// (1455440).
TEST(PrefillBalance, AllStepsTogether) {
  const std::vector<HeadWidths> heads = {kWide, kMedium};
  const std::vector<PrefillSpan> spans = {{0, 160, 0}};
  PrefillBalancer balancer;
  PrefillBalanceShape shape = {.group = 1, .machines = 3};
  // The last round is the first unit. 534560 / 3 is 21.3 of its rows, so 32: 398864 and 135696.
  const PrefillBalance& plan = balancer.balance(spans, heads, shape);
  EXPECT_THAT(loads_of(plan, 1, heads), ElementsAre(1587232, 1455440 + 135696, 1188368 + 398864));
  EXPECT_THAT(plan.first, ElementsAre(0, 1, 3, 5));
  EXPECT_EQ(plan.units[2].first_pair, 0);
  EXPECT_EQ(plan.units[2].pairs, 32);
  EXPECT_EQ(plan.units[4].first_pair, 32);
  EXPECT_EQ(plan.units[4].pairs, 32);
  shape.steps.redistribute = false;
  EXPECT_THAT(loads_of(balancer.balance(spans, heads, shape), 1, heads),
              ElementsAre(1587232, 1455440, 1188368 + 534560));
  // Units of 64 rows in head order, three of each head: the same rows of both on each machine.
  shape.steps = kNoSteps;
  EXPECT_THAT(loads_of(balancer.balance(spans, heads, shape), 1, heads),
              ElementsAre(2080 * 370, 6176 * 370, 4624 * 370));
}

TEST(PrefillBalance, WholeRoundsStayAsTheyAre) {
  const std::vector<HeadWidths> heads(4, kWide);
  const std::vector<PrefillSpan> spans = {{0, 64, 0}};
  PrefillBalancer balancer;
  EXPECT_EQ(balancer.balance(spans, heads, {.group = 1, .machines = 4}).units.size(), 4);
  EXPECT_EQ(balancer.balance(spans, heads, {.group = 1, .machines = 2}).units.size(), 4);
  // All four are the last round: 6.4 rows each would do, but 16 are a tile.
  EXPECT_EQ(balancer.balance(spans, heads, {.group = 1, .machines = 40}).units.size(), 16);
}

TEST(PrefillBalance, SameInputSamePlanWhateverWasBefore) {
  std::mt19937 random(3);
  PrefillBalancer used;
  for (int round = 0; round < 50; ++round) {
    const Prompts prompts = random_prompts(random);
    PrefillBalancer fresh;
    const PrefillBalanceShape shape = {.group = 4, .machines = 108};
    const PrefillBalance& a = used.balance(prompts.spans, prompts.heads, shape);
    const PrefillBalance& b = fresh.balance(prompts.spans, prompts.heads, shape);
    EXPECT_EQ(a.first, b.first);
    ASSERT_EQ(a.units.size(), b.units.size());
    for (std::size_t i = 0; i < a.units.size(); ++i) {
      EXPECT_EQ(a.units[i].sequence, b.units[i].sequence);
      EXPECT_EQ(a.units[i].kv_head, b.units[i].kv_head);
      EXPECT_EQ(a.units[i].first_pair, b.units[i].first_pair);
      EXPECT_EQ(a.units[i].pairs, b.units[i].pairs);
    }
  }
}

TEST(PrefillBalance, NothingToDo) {
  const std::vector<HeadWidths> heads = {kWide};
  PrefillBalancer balancer;
  EXPECT_TRUE(balancer.balance({}, heads, {.group = 4, .machines = 3}).units.empty());
  const std::vector<PrefillSpan> spans = {{7, 0, 0}};
  EXPECT_EQ(balancer.balance(spans, heads, {.group = 4, .machines = 3}).makespan, 0);
}

}  // namespace
}  // namespace kvlane
