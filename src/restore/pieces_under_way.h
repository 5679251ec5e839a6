// Pieces of sequences on their way to a device, which says that something went wrong, but not with
// which of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "kvlane/status.h"

namespace kvlane {

// For one thread.
class PiecesUnderWay {
 public:
  // How many there were so far.
  std::uint64_t given() const { return given_; }
  void give() {
    ++given_;
    moving_ = true;
  }
  // `finish` returns when all that was given is in its place, or tells why it is not. It is asked
  // when something was given since the last time.
  template <class Finish>
  void settle(const Finish& finish) {
    if (!std::exchange(moving_, false)) return;
    Status status = finish();
    if (status.ok()) return;
    failed_ = given_;
    error_ = std::move(status);
  }
  // Of what has settled: an error if one of the pieces behind the first `since` may not be in its
  // place.
  Status verdict(std::uint64_t since) const { return failed_ > since ? error_ : Status(); }

 private:
  bool moving_ = false;
  std::uint64_t given_ = 0;
  // After the last error: `given_` then, and what it was.
  std::uint64_t failed_ = 0;
  Status error_;
};

}  // namespace kvlane
