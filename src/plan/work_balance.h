// Shares tasks of known work among machines that are alike: threads of a CPU, SMs of a GPU.
//
// Work is a whole number of any unit, at least 0, that of all tasks together below 2^63; so plans
// are exact and the same everywhere. A plan says who does what and in which order, and nothing
// about results: tasks are cut where attention cuts them anyway, so no bit depends on a plan.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "plan/machine_loads.h"

namespace kvlane {

// a / b, rounded up; neither is negative.
template <std::integral Int>
constexpr Int divide_up(Int a, std::type_identity_t<Int> b) {
  return (a + b - 1) / b;
}

// Machine m does tasks[first[m]] ... tasks[first[m + 1] - 1], in this order.
struct WorkPlan {
  std::vector<std::int32_t> tasks;
  std::vector<std::int32_t> first;  // [machines + 1]
  std::int64_t total = 0;           // work of all tasks
  std::int64_t makespan = 0;        // the largest work of a machine: when the last one is done
};

// No plan is done sooner: the machines' mean, rounded up, or the largest task. The best plan may
// take up to twice as long: N + 1 equal tasks on N machines.
std::int64_t makespan_bound(std::span<const std::int64_t> work, int machines);

// When the last one is done if machines take tasks in the order given, each as soon as it is free
// (list scheduling): a grid of thread blocks, or threads that draw tickets.
std::int64_t list_makespan(std::span<const std::int64_t> work, int machines);

// Share of the machines' time in which they work, until the last is done; 1 without work.
double machine_use(std::int64_t total, int machines, std::int64_t makespan);

// Makes plans. Tasks come in lots, and a lot knows what machines have to do already; tasks are
// numbered through all lots. Thread-compatible; keeps its memory between plans.
class WorkBalancer {
 public:
  // At least one machine.
  void begin(int machines);
  // Task i of the lot to machine i mod machines: the baseline.
  void add_round_robin(std::span<const std::int64_t> work);
  // One task to one machine: the caller knows better.
  void give(int machine, std::int64_t work);
  // The largest first, each to the least loaded machine (LPT: longest processing time first); of
  // equal tasks and machines the lowest number. In a plan of one lot the makespan is at most 4/3 of
  // the best plan's: R. L. Graham, Bounds on multiprocessing timing anomalies, 1969.
  void add_longest_first(std::span<const std::int64_t> work);
  // The largest work of a machine so far.
  std::int64_t makespan() const;
  // The plan, which is valid until begin() is called again.
  const WorkPlan& finish();

  // Longest first, or round-robin where that happens to be done sooner: 2, 3, 2, 3, 2 on two
  // machines.
  const WorkPlan& balance(std::span<const std::int64_t> work, int machines);

 private:
  struct Task {
    std::int64_t work;
    std::int32_t number;
  };
  struct Given {
    std::int32_t task, machine;
  };

  void sort_longest_first(std::span<const std::int64_t> work);

  WorkPlan plan_;
  std::vector<std::int64_t> loads_;  // of machines
  std::vector<Given> given_;         // in the order in which tasks were given away
  MachineLoads least_;
  std::vector<Task> sorted_, spare_;
};

}  // namespace kvlane
