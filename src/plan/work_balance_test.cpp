// Every task once, no plan worse than round-robin, and Graham's bound against best plans.
// SPDX-License-Identifier: Apache-2.0
#include "plan/work_balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace kvlane {
namespace {

using ::testing::ElementsAre;
using Work = std::vector<std::int64_t>;

const WorkPlan& round_robin(WorkBalancer& balancer, const Work& work, int machines) {
  balancer.begin(machines);
  balancer.add_round_robin(work);
  return balancer.finish();
}

const WorkPlan& longest_first(WorkBalancer& balancer, const Work& work, int machines) {
  balancer.begin(machines);
  balancer.add_longest_first(work);
  return balancer.finish();
}

// Holds a plan's figures against its lists.
void expect_sound(const WorkPlan& plan, const Work& work, int machines) {
  ASSERT_EQ(plan.first.size(), machines + 1);
  ASSERT_EQ(plan.tasks.size(), work.size());
  EXPECT_EQ(plan.first.front(), 0);
  EXPECT_EQ(plan.first.back(), work.size());
  std::vector<int> takers(work.size());
  std::int64_t makespan = 0;
  for (int machine = 0; machine < machines; ++machine) {
    std::int64_t load = 0;
    for (int i = plan.first[machine]; i < plan.first[machine + 1]; ++i) {
      ++takers[plan.tasks[i]];
      load += work[plan.tasks[i]];
    }
    makespan = std::max(makespan, load);
  }
  for (const int count : takers) EXPECT_EQ(count, 1);
  EXPECT_EQ(plan.makespan, makespan);
  EXPECT_EQ(plan.total, std::accumulate(work.begin(), work.end(), std::int64_t{0}));
  EXPECT_GE(plan.makespan, makespan_bound(work, machines));
}

// The best makespan, by trying all plans.
std::int64_t best_makespan(const Work& work, std::size_t next, Work& loads) {
  if (next == work.size()) return *std::max_element(loads.begin(), loads.end());
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  std::set<std::int64_t> tried;
  for (std::int64_t& load : loads) {
    if (!tried.insert(load).second) continue;
    load += work[next];
    best = std::min(best, best_makespan(work, next + 1, loads));
    load -= work[next];
  }
  return best;
}

// Tasks that `machines` machines can do until `end`, all without a pause: every machine's time cut
// at random places.
Work without_pause(int machines, int pieces_max, int end, std::mt19937& random) {
  Work work;
  for (int machine = 0; machine < machines; ++machine) {
    std::set<int> cuts = {0, end};
    const auto pieces = 1 + random() % pieces_max;
    while (cuts.size() <= pieces) cuts.insert(static_cast<int>(random() % end));
    for (auto cut = cuts.begin(); *cut != end;) {
      const int begin = *cut;
      work.push_back(*++cut - begin);
    }
  }
  std::shuffle(work.begin(), work.end(), random);
  return work;
}

TEST(WorkBalance, GoesByLoadThenByNumber) {
  WorkBalancer balancer;
  // 9 to machine 0, 7 to 1, 5 to 2, the second 5 to 2 (5 < 7), 4 to 1, 2 to 0.
  const WorkPlan& plan = longest_first(balancer, {5, 9, 2, 5, 7, 4}, 3);
  EXPECT_THAT(plan.tasks, ElementsAre(1, 2, 4, 5, 0, 3));
  EXPECT_THAT(plan.first, ElementsAre(0, 2, 4, 6));
  EXPECT_EQ(plan.makespan, 11);
  EXPECT_EQ(plan.total, 32);
}

TEST(WorkBalance, EqualTasksGoInTheirOrder) {
  WorkBalancer balancer;
  EXPECT_THAT(longest_first(balancer, {6, 6, 6, 6, 6}, 2).tasks, ElementsAre(0, 2, 4, 1, 3));
  EXPECT_THAT(round_robin(balancer, {6, 6, 6, 6, 6}, 2).tasks, ElementsAre(0, 2, 4, 1, 3));
}

TEST(WorkBalance, ALotKnowsOfEarlierOnes) {
  WorkBalancer balancer;
  balancer.begin(2);
  balancer.add_round_robin(Work{8, 1, 1});
  balancer.add_longest_first(Work{3, 5, 2});
  // Loads are 9 and 1: 5 and 3 go to machine 1, and 2 to either's 9.
  const WorkPlan& plan = balancer.finish();
  EXPECT_THAT(plan.tasks, ElementsAre(0, 2, 5, 1, 4, 3));
  EXPECT_THAT(plan.first, ElementsAre(0, 3, 6));
  EXPECT_EQ(plan.makespan, 11);
}

TEST(WorkBalance, NothingAndNoWork) {
  WorkBalancer balancer;
  EXPECT_EQ(balancer.balance({}, 3).makespan, 0);
  EXPECT_THAT(balancer.finish().first, ElementsAre(0, 0, 0, 0));
  expect_sound(balancer.balance(Work{0, 0}, 3), {0, 0}, 3);
  EXPECT_EQ(machine_use(0, 3, 0), 1);
  EXPECT_EQ(machine_use(30, 3, 20), 0.5);
}

TEST(WorkBalance, SortsWorkOfAnySize) {
  WorkBalancer balancer;
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const Work work = {1, most / 2, 255, 256, 0, most / 4, 65536, 1};
  EXPECT_THAT(longest_first(balancer, work, 1).tasks, ElementsAre(1, 5, 6, 3, 2, 0, 7, 4));
  EXPECT_THAT(longest_first(balancer, {most, 0}, 1).tasks, ElementsAre(0, 1));
}

TEST(WorkBalance, PlansAreSoundAndNeverWorseThanRoundRobin) {
  std::mt19937 random(1);
  WorkBalancer balancer;
  for (int round = 0; round < 3000; ++round) {
    const int machines = 1 + static_cast<int>(random() % (round % 3 == 0 ? 4 : 150));
    Work work(random() % (round % 2 == 0 ? 12 : 600));
    const int kind = round % 4;
    for (std::int64_t& task : work) {
      const auto length = static_cast<std::int64_t>(1 + random() % 32768);
      const auto width = static_cast<std::int64_t>(33 + random() % 15 * 16);
      // Few different sizes, attention's, one sequence far above the others, and some of none.
      if (kind == 0) task = 1 + static_cast<std::int64_t>(random() % 4);
      if (kind == 1) task = length * width;
      if (kind == 2) task = random() % 40 == 0 ? length * 1000 : width;
      if (kind == 3) task = random() % 3 == 0 ? 0 : width;
    }
    const WorkPlan& plan = balancer.balance(work, machines);
    expect_sound(plan, work, machines);
    const WorkPlan balanced = plan;
    expect_sound(round_robin(balancer, work, machines), work, machines);
    EXPECT_LE(balanced.makespan, balancer.finish().makespan);
    EXPECT_LE(balanced.makespan, longest_first(balancer, work, machines).makespan);
    // List scheduling of what is sorted is LPT.
    Work sorted = work;
    std::sort(sorted.rbegin(), sorted.rend());
    EXPECT_EQ(list_makespan(sorted, machines), balancer.finish().makespan);
    // The same once more, from memory that other plans have used.
    const WorkPlan& again = balancer.balance(work, machines);
    EXPECT_EQ(again.tasks, balanced.tasks);
    EXPECT_EQ(again.first, balanced.first);
  }
}

TEST(WorkBalance, TakesRoundRobinWhereThatIsSooner) {
  WorkBalancer balancer;
  const Work work = {2, 3, 2, 3, 2};
  EXPECT_EQ(longest_first(balancer, work, 2).makespan, 7);
  EXPECT_EQ(round_robin(balancer, work, 2).makespan, 6);
  const WorkPlan& plan = balancer.balance(work, 2);
  EXPECT_EQ(plan.makespan, 6);
  EXPECT_THAT(plan.tasks, ElementsAre(0, 2, 4, 1, 3));
}

TEST(WorkBalance, KeepsGrahamsBoundAgainstTheBestPlan) {
  std::mt19937 random(2);
  WorkBalancer balancer;
  for (int round = 0; round < 400; ++round) {
    const auto machines = static_cast<int>(2 + random() % 3);
    Work work(1 + random() % 9);
    for (std::int64_t& task : work) task = 1 + static_cast<std::int64_t>(random() % 20);
    Work loads(machines);
    const std::int64_t best = best_makespan(work, 0, loads);
    EXPECT_LE(makespan_bound(work, machines), best);
    EXPECT_LE(longest_first(balancer, work, machines).makespan * 3 * machines,
              best * (4 * machines - 1));
  }
}

// Where a plan without pauses exists, the lower bound is the best makespan, for any size.
TEST(WorkBalance, KeepsGrahamsBoundAgainstTheLowerBound) {
  std::mt19937 random(3);
  WorkBalancer balancer;
  for (const int machines : {2, 3, 16, 108, 132, 144}) {
    for (const int pieces_max : {2, 3, 4, 20}) {
      for (int round = 0; round < 20; ++round) {
        const int end = 1000 + static_cast<int>(random() % 1000000);
        const Work work = without_pause(machines, pieces_max, end, random);
        ASSERT_EQ(makespan_bound(work, machines), end);
        EXPECT_LE(longest_first(balancer, work, machines).makespan * 3 * machines,
                  std::int64_t{end} * (4 * machines - 1));
      }
    }
  }
}

// 2N - 1, 2N - 1, ..., N + 1, N + 1, N, N, N: nothing is worse for LPT.
TEST(WorkBalance, MeetsGrahamsBoundInHisOwnExample) {
  WorkBalancer balancer;
  for (const int machines : {2, 3, 16, 108, 132, 144}) {
    Work work = {machines, machines, machines};
    for (int task = machines + 1; task < 2 * machines; ++task) work.insert(work.end(), 2, task);
    EXPECT_EQ(makespan_bound(work, machines), 3 * machines);
    EXPECT_EQ(longest_first(balancer, work, machines).makespan, 4 * machines - 1);
  }
}

// So 4/3 of the lower bound cannot be promised: here the best plan takes nearly twice as long.
TEST(WorkBalance, TheLowerBoundMayBeHalfOfTheBestPlan) {
  WorkBalancer balancer;
  const Work work(133, 100);
  EXPECT_EQ(makespan_bound(work, 132), 101);
  EXPECT_EQ(balancer.balance(work, 132).makespan, 200);
}

TEST(ListMakespan, TakesTasksAsMachinesBecomeFree) {
  EXPECT_EQ(list_makespan(Work{1, 1, 9, 1, 1}, 2), 10);  // 1, 9 and 1, 1, 1
  EXPECT_EQ(list_makespan(Work{9, 1, 1, 1, 1}, 2), 9);
  EXPECT_EQ(list_makespan(Work{}, 2), 0);
}

}  // namespace
}  // namespace kvlane
