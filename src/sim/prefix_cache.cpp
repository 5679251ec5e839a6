// Owners and memory.
// SPDX-License-Identifier: Apache-2.0
#include "sim/prefix_cache.h"

#include <algorithm>

namespace kvlane {

int PrefixCache::known(std::span<const std::uint64_t> names) const {
  const auto unknown = std::find_if(
      names.begin(), names.end(), [&](const std::uint64_t name) { return !named_.contains(name); });
  return static_cast<int>(unknown - names.begin());
}

int PrefixCache::unowned(std::span<const std::uint64_t> names) const {
  return static_cast<int>(std::count_if(names.begin(), names.end(), [&](const std::uint64_t name) {
    return named_.at(name).owners == 0;
  }));
}

void PrefixCache::hold(std::span<const std::uint64_t> names) {
  int found = 0;
  for (const std::uint64_t name : names) {
    Block& block = named_.at(name);
    if (block.owners++ > 0) continue;
    unowned_.erase(block.place);
    ++found;
  }
  add_taken(found);
}

void PrefixCache::take(int blocks) { add_taken(blocks); }

void PrefixCache::add_taken(int blocks) {
  taken_ += blocks;
  peak_ = std::max(peak_, taken_);
  while (static_cast<int>(unowned_.size()) > available()) {
    named_.erase(unowned_.front());
    unowned_.pop_front();
  }
}

bool PrefixCache::publish(std::uint64_t name) {
  return named_.try_emplace(name, Block{.owners = 1, .place = {}}).second;
}

// The last block first: who begins alike wants the first ones longest.
void PrefixCache::give_back(std::span<const std::uint64_t> names, int nameless) {
  taken_ -= nameless;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    Block& block = named_.at(*name);
    if (--block.owners > 0) continue;
    block.place = unowned_.insert(unowned_.end(), *name);
    --taken_;
  }
}

}  // namespace kvlane
