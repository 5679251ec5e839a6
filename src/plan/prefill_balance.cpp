// Cuts spans into units by the widths of heads and shares them.
// SPDX-License-Identifier: Apache-2.0
#include "plan/prefill_balance.h"

#include <algorithm>
#include <numeric>

namespace kvlane {
namespace {

// Whole tiles for so many rows.
std::int64_t round_up(std::int64_t rows) {
  return divide_up(rows, kPrefillRowsStep) * kPrefillRowsStep;
}

// Keys that the first `rows` rows of a span see.
std::int64_t visible_keys(std::int64_t position, std::int64_t rows, std::int64_t group) {
  const std::int64_t tokens = rows / group, rest = rows % group;
  return rows * (position + 1) + group * (tokens * (tokens - 1) / 2) + rest * tokens;
}

}  // namespace

int prefill_rows(const HeadWidths& head, int widest, int accumulators_max) {
  const std::int64_t like_widest =
      round_up(divide_up(std::int64_t{kPrefillUnitRows} * widest, key_work(head)));
  const std::int64_t room =
      accumulators_max / (head.v + kPrefillKeys) / kPrefillRowsStep * kPrefillRowsStep;
  return static_cast<int>(std::max<std::int64_t>(kPrefillRowsStep, std::min(like_widest, room)));
}

std::int64_t prefill_visible_keys(const PrefillUnit& unit, int group) {
  return visible_keys(unit.position, std::int64_t{unit.first_pair} + unit.pairs, group) -
         visible_keys(unit.position, unit.first_pair, group);
}

void PrefillBalancer::cut(std::span<const PrefillSpan> spans, std::span<const HeadWidths> heads,
                          const PrefillBalanceShape& shape) {
  int widest = 0;
  for (const HeadWidths& head : heads) widest = std::max(widest, key_work(head));
  units_.clear();
  work_.clear();
  for (int sequence = 0; sequence < static_cast<int>(spans.size()); ++sequence) {
    const PrefillSpan& span = spans[sequence];
    const int end = span.rows * shape.group;
    for (int kv_head = 0; kv_head < static_cast<int>(heads.size()); ++kv_head) {
      const HeadWidths& head = heads[kv_head];
      const int rows = prefill_rows(head, shape.steps.rows_by_width ? widest : key_work(head),
                                    shape.accumulators_max);
      for (int pair = 0; pair < end; pair += std::min(rows, end - pair)) {
        units_.push_back(
            {sequence, kv_head, pair, std::min(rows, end - pair), span.position, span.first_row});
        work_.push_back(prefill_visible_keys(units_.back(), shape.group) * key_work(head));
      }
    }
  }
}

// Moves as many units as are no whole round from `units_` to `last_`: the shortest ones if these
// come last, of equal ones those of the highest number. What stays keeps its order.
void PrefillBalancer::take_last_round(const PrefillBalanceShape& shape) {
  last_.clear();
  last_work_.clear();
  const std::size_t whole = units_.size() - units_.size() % shape.machines;
  if (whole == units_.size()) return;
  const auto before = [&](const Key& a, const Key& b) {
    if (shape.steps.longest_first && a.work != b.work) return a.work > b.work;
    return a.number < b.number;
  };
  keys_.clear();
  for (std::size_t i = 0; i < work_.size(); ++i) {
    keys_.push_back({work_[i], static_cast<std::int32_t>(i)});
  }
  const auto first_of_last = keys_.begin() + static_cast<std::ptrdiff_t>(whole);
  std::nth_element(keys_.begin(), first_of_last, keys_.end(), before);
  const Key limit = *first_of_last;
  std::size_t stay = 0;
  for (std::size_t i = 0; i < work_.size(); ++i) {
    if (before({work_[i], static_cast<std::int32_t>(i)}, limit)) {
      units_[stay] = units_[i];
      work_[stay++] = work_[i];
    } else {
      last_.push_back(units_[i]);
      last_work_.push_back(work_[i]);
    }
  }
  units_.resize(stay);
  work_.resize(stay);
}

// Cuts units of the last round into pieces that are about what every machine has of that round,
// and appends them to the others.
void PrefillBalancer::cut_last_round(std::span<const HeadWidths> heads,
                                     const PrefillBalanceShape& shape) {
  const std::int64_t share =
      std::accumulate(last_work_.begin(), last_work_.end(), std::int64_t{0}) / shape.machines;
  for (std::size_t i = 0; i < last_.size(); ++i) {
    const PrefillUnit& unit = last_[i];
    const int end = unit.first_pair + unit.pairs;
    // By the mean work of the unit's rows.
    const int rows = static_cast<int>(
        std::clamp<std::int64_t>(round_up(divide_up(share * unit.pairs, last_work_[i])),
                                 kPrefillRowsStep, round_up(unit.pairs)));
    for (int pair = unit.first_pair; pair < end; pair += std::min(rows, end - pair)) {
      PrefillUnit piece = unit;
      piece.first_pair = pair;
      piece.pairs = std::min(rows, end - pair);
      units_.push_back(piece);
      work_.push_back(prefill_visible_keys(piece, shape.group) * key_work(heads[unit.kv_head]));
    }
  }
}

const PrefillBalance& PrefillBalancer::balance(std::span<const PrefillSpan> spans,
                                               std::span<const HeadWidths> heads,
                                               const PrefillBalanceShape& shape) {
  cut(spans, heads, shape);
  std::size_t whole = units_.size();
  if (shape.steps.redistribute) {
    take_last_round(shape);
    whole = units_.size();
    cut_last_round(heads, shape);
  }
  const std::span<const std::int64_t> work = work_;
  balancer_.begin(shape.machines);
  if (shape.steps.longest_first) {
    balancer_.add_longest_first(work.first(whole));
  } else {
    balancer_.add_round_robin(work.first(whole));
  }
  balancer_.add_longest_first(work.subspan(whole));
  const WorkPlan& plan = balancer_.finish();
  plan_.units.resize(units_.size());
  std::transform(plan.tasks.begin(), plan.tasks.end(), plan_.units.begin(),
                 [&](std::int32_t task) { return units_[task]; });
  plan_.first = plan.first;
  plan_.total = plan.total;
  plan_.makespan = plan.makespan;
  return plan_;
}

}  // namespace kvlane
