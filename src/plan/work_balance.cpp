// LPT by a radix sort and a heap.
// SPDX-License-Identifier: Apache-2.0
#include "plan/work_balance.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

namespace kvlane {

std::int64_t makespan_bound(std::span<const std::int64_t> work, int machines) {
  std::int64_t total = 0, largest = 0;
  for (const std::int64_t task : work) {
    total += task;
    largest = std::max(largest, task);
  }
  const std::int64_t mean = total / machines + (total % machines > 0 ? 1 : 0);
  return std::max(mean, largest);
}

std::int64_t list_makespan(std::span<const std::int64_t> work, int machines) {
  std::vector<std::int64_t> loads(machines);
  MachineLoads least;
  least.reset(loads);
  for (const std::int64_t task : work) loads[least.add_to_least(task)] += task;
  return *std::max_element(loads.begin(), loads.end());
}

double machine_use(std::int64_t total, int machines, std::int64_t makespan) {
  if (total == 0) return 1;
  return static_cast<double>(total) / (static_cast<double>(makespan) * machines);
}

void WorkBalancer::begin(int machines) {
  loads_.assign(machines, 0);
  given_.clear();
}

void WorkBalancer::add_round_robin(std::span<const std::int64_t> work) {
  const auto machines = static_cast<std::int32_t>(loads_.size());
  std::int32_t machine = 0;
  for (const std::int64_t task : work) {
    given_.push_back({static_cast<std::int32_t>(given_.size()), machine});
    loads_[machine] += task;
    machine = machine + 1 < machines ? machine + 1 : 0;
  }
}

void WorkBalancer::give(int machine, std::int64_t work) {
  given_.push_back({static_cast<std::int32_t>(given_.size()), machine});
  loads_[machine] += work;
}

void WorkBalancer::add_longest_first(std::span<const std::int64_t> work) {
  const auto first = static_cast<std::int32_t>(given_.size());
  sort_longest_first(work);
  const auto take = [&](const Task& task, std::int32_t machine) {
    given_.push_back({first + task.number, machine});
    loads_[machine] += task.work;
  };
  // As long as there are idle machines, they are the least loaded ones.
  std::size_t next = 0;
  for (std::size_t i = 0; i < loads_.size() && next < sorted_.size(); ++i) {
    if (loads_[i] == 0) take(sorted_[next++], static_cast<std::int32_t>(i));
  }
  least_.reset(loads_);
  for (; next < sorted_.size(); ++next) {
    take(sorted_[next], least_.add_to_least(sorted_[next].work));
  }
}

std::int64_t WorkBalancer::makespan() const {
  return *std::max_element(loads_.begin(), loads_.end());
}

const WorkPlan& WorkBalancer::finish() {
  const std::size_t machines = loads_.size();
  plan_.first.assign(machines + 1, 0);
  plan_.tasks.resize(given_.size());
  // Until all are placed, first[m] is the place of machine m's next task.
  for (const Given& given : given_) ++plan_.first[given.machine];
  std::exclusive_scan(plan_.first.begin(), plan_.first.end(), plan_.first.begin(), 0);
  for (const Given& given : given_) plan_.tasks[plan_.first[given.machine]++] = given.task;
  std::copy_backward(plan_.first.begin(), plan_.first.end() - 1, plan_.first.end());
  plan_.first[0] = 0;
  plan_.total = std::accumulate(loads_.begin(), loads_.end(), std::int64_t{0});
  plan_.makespan = makespan();
  return plan_;
}

const WorkPlan& WorkBalancer::balance(std::span<const std::int64_t> work, int machines) {
  begin(machines);
  add_round_robin(work);
  const std::int64_t round_robin = makespan();
  begin(machines);
  add_longest_first(work);
  if (makespan() > round_robin) {
    begin(machines);
    add_round_robin(work);
  }
  return finish();
}

// By bytes, from the lowest to the highest that is used: stable, and several times faster than
// comparing where tasks are thousands.
void WorkBalancer::sort_longest_first(std::span<const std::int64_t> work) {
  constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;
  sorted_.resize(work.size());
  spare_.resize(work.size());
  std::uint64_t used = 0;  // bits
  for (std::size_t i = 0; i < work.size(); ++i) {
    sorted_[i] = {work[i], static_cast<std::int32_t>(i)};
    used |= static_cast<std::uint64_t>(work[i]);
  }
  const auto bits = static_cast<int>(std::bit_width(used));
  for (int shift = std::countr_zero(used); shift < bits; shift += kDigitBits) {
    const auto digit = [shift](const Task& task) {
      return kDigits - 1 - ((task.work >> shift) & (kDigits - 1));
    };
    std::array<std::int32_t, kDigits> place = {};
    for (const Task& task : sorted_) ++place[digit(task)];
    std::exclusive_scan(place.begin(), place.end(), place.begin(), 0);
    for (const Task& task : sorted_) spare_[place[digit(task)]++] = task;
    sorted_.swap(spare_);
  }
}

}  // namespace kvlane
