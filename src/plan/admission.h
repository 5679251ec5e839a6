// Who may start, and who has to give way: order of requests, room, fairness between clients.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace kvlane {

// What decides between requests: priority first (lower goes first), then the client that has been
// served least, then arrival.
struct Rank {
  int priority = 0;
  double served = 0;  // of its client, see ClientShares; equal for all that run
  std::uint64_t arrival = 0;
};
bool goes_before(const Rank& one, const Rank& other);

// Whether a sequence that takes `blocks` of those without an owner may start beside `growing`
// answers: each of these may soon want one block more, and would have to stop another.
bool may_start(int blocks, int blocks_free, int growing);

// Tokens served to each client (Sheng et al., OSDI'24, "virtual token counter"): the one with the
// fewest is next. A client that comes back after a pause starts level with the least served of
// those that wait or run, so that nobody saves up. Thread-compatible.
class ClientShares {
 public:
  struct Account {
    double served = 0;
    int requests = 0;
  };

  // One more request of this client is in the house, or one less. The account is there as long as
  // any of its requests is.
  const Account& enter(const std::string& client);
  void leave(const std::string& client);
  // Tokens computed for it, prompt or answer. It is in the house.
  void charge(const std::string& client, int tokens) { clients_[client].served += tokens; }
  double served(const std::string& client) const;

 private:
  std::map<std::string, Account> clients_;  // those in the house
  // The least anybody in the house was served: who leaves with less would be lifted to it anyway,
  // so nobody has to be remembered but those who leave with more.
  std::map<std::string, double> ahead_;
};

}  // namespace kvlane
