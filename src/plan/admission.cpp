// Ranks, room and counters.
// SPDX-License-Identifier: Apache-2.0
#include "plan/admission.h"

#include <algorithm>
#include <tuple>

namespace kvlane {

bool goes_before(const Rank& one, const Rank& other) {
  return std::tie(one.priority, one.served, one.arrival) <
         std::tie(other.priority, other.served, other.arrival);
}

bool may_start(int blocks, int blocks_free, int growing) {
  // Alone it may have everything: nobody else would ever give a block back.
  return blocks + growing <= blocks_free;
}

const ClientShares::Account& ClientShares::enter(const std::string& client) {
  double least = 0;
  for (auto it = clients_.begin(); it != clients_.end(); ++it) {
    least = it == clients_.begin() ? it->second.served : std::min(least, it->second.served);
  }
  const auto [account, is_new] = clients_.try_emplace(client);
  ++account->second.requests;
  if (!is_new) return account->second;
  account->second.served = least;
  if (const auto before = ahead_.find(client); before != ahead_.end()) {
    account->second.served = std::max(least, before->second);
    ahead_.erase(before);
  }
  return account->second;
}

void ClientShares::leave(const std::string& client) {
  const auto found = clients_.find(client);
  if (--found->second.requests > 0) return;
  const double served = found->second.served;
  clients_.erase(found);
  if (clients_.empty()) {
    ahead_.clear();  // all start level again
    return;
  }
  double least = clients_.begin()->second.served;
  for (const auto& [name, account] : clients_) least = std::min(least, account.served);
  if (served > least) ahead_[client] = served;
  std::erase_if(ahead_, [least](const auto& entry) { return entry.second <= least; });
}

double ClientShares::served(const std::string& client) const {
  const auto found = clients_.find(client);
  return found == clients_.end() ? 0 : found->second.served;
}

}  // namespace kvlane
