// Memory for messages that carry slabs, used again and again: fresh memory from the system costs
// more time than everything else that is done with a byte on its way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "base/bytes.h"

namespace kvlane {

// Thread-safe. Messages may outlive it.
class MessageMemory : public std::enable_shared_from_this<MessageMemory> {
 public:
  // Keeps buffers that nobody uses as long as all buffers together, used or not, have at most
  // `bytes_max`. How many are in use is for the caller to limit.
  explicit MessageMemory(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  // A buffer of `bytes` that hold anything, with room for at most twice as much if it was used
  // before. It comes back when nobody holds it any more.
  std::shared_ptr<Bytes> take(std::size_t bytes);

  // Of buffers that nobody uses.
  std::size_t free_bytes() const;

 private:
  struct Loan;

  Bytes find_or_make(std::size_t bytes);
  void give_back(Bytes buffer, std::size_t taken);
  void trim();

  const std::size_t bytes_max_;
  mutable std::mutex mutex_;
  std::multimap<std::size_t, Bytes> free_;  // by capacity
  std::size_t free_bytes_ = 0;
  std::size_t used_bytes_ = 0;
};

}  // namespace kvlane
