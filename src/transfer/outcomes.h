// How recent transfers ended, so that a peer that asks again gets the same answer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "transfer/endpoint.h"

namespace kvlane {

// The last kOutcomesMax of them. Not thread-safe.
class Outcomes {
 public:
  // A late peer asks within its idle limit; at most some KiB each.
  static constexpr std::size_t kOutcomesMax = 4096;

  void remember(const TransferId& id, std::shared_ptr<const Bytes> answer) {
    answers_[id] = {++last_, std::move(answer)};
    order_.emplace_back(last_, id);
    if (order_.size() <= kOutcomesMax) return;
    const auto& [number, oldest] = order_.front();
    // Unless it was remembered again since.
    if (const auto at = answers_.find(oldest); at != answers_.end() && at->second.first == number) {
      answers_.erase(at);
    }
    order_.pop_front();
  }
  void forget(const TransferId& id) { answers_.erase(id); }

  // The message to answer with; null when nothing is known.
  std::shared_ptr<const Bytes> find(const TransferId& id) const {
    const auto at = answers_.find(id);
    return at == answers_.end() ? nullptr : at->second.second;
  }

 private:
  std::uint64_t last_ = 0;
  std::map<TransferId, std::pair<std::uint64_t, std::shared_ptr<const Bytes>>> answers_;
  std::deque<std::pair<std::uint64_t, TransferId>> order_;
};

}  // namespace kvlane
