// Blocks of a replica, named and not: what sequences hold, and what those before them left behind.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace kvlane {

// Names of a prompt's complete blocks from its first token on, as far as another prompt may have
// the same; equal names are equal prefixes. Null: nobody has.
using SimBlockNames = std::shared_ptr<const std::vector<std::uint64_t>>;

// Counts blocks; a named one may have several owners, and stays when the last one leaves, until its
// memory is wanted: the longest unused first, as in the engine's pool. Not thread-safe.
class PrefixCache {
 public:
  explicit PrefixCache(int blocks) : blocks_(blocks) {}

  int blocks() const { return blocks_; }
  int taken() const { return taken_; }  // that have an owner
  int peak() const { return peak_; }    // the most there were
  // What may be taken: free, or without an owner.
  int available() const { return blocks_ - taken_; }

  // How many of the first blocks with these names are there.
  int known(std::span<const std::uint64_t> names) const;
  // How many of these have no owner, and would be taken by hold().
  int unowned(std::span<const std::uint64_t> names) const;
  // One more owner of each, all of which are there.
  void hold(std::span<const std::uint64_t> names);
  // So many blocks without names; there are as many free.
  void take(int blocks);
  // A block that its owner took without a name has this one now; false if another block has it
  // already, and the owner's stays without.
  bool publish(std::uint64_t name);
  // The owner leaves: blocks without names are free, those with names may be found again.
  void give_back(std::span<const std::uint64_t> names, int nameless);

 private:
  struct Block {
    int owners = 0;
    std::list<std::uint64_t>::iterator place;  // in unowned_, without owners
  };
  void add_taken(int blocks);

  int blocks_;
  int taken_ = 0;
  int peak_ = 0;
  std::unordered_map<std::uint64_t, Block> named_;
  std::list<std::uint64_t> unowned_;  // the longest unused first
};

}  // namespace kvlane
