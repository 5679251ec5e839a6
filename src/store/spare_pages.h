// Memory of extents that nobody needs any more, for the next ones: the system takes longer to give
// fresh pages than a disk to take them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "cpu/memory.h"

namespace kvlane {

// Thread-safe.
class SparePages : public std::enable_shared_from_this<SparePages> {
 public:
  // What a buffer for so many bytes has: steps of a sixteenth at most, since extents of a model
  // have few sizes, but for a codec, of which each differs a little.
  static std::size_t rounded(std::size_t bytes) {
    const std::size_t step = std::max(kStepMin, std::bit_floor(bytes) / 16);
    return (bytes + step - 1) / step * step;
  }

  // Of rounded() bytes. What is in it is anything. kExhausted when the system has none.
  Result<PageBuffer> take(std::size_t wanted) {
    const std::size_t bytes = rounded(wanted);
    {
      const std::lock_guard guard(mutex_);
      const auto found = std::ranges::find(spare_, bytes, &PageBuffer::bytes);
      if (found != spare_.end()) {
        PageBuffer buffer = std::move(*found);
        spare_.erase(found);
        bytes_ -= bytes;
        return buffer;
      }
    }
    return PageBuffer::allocate(bytes);
  }

  void give(PageBuffer buffer) {
    if (buffer.data() == nullptr) return;
    std::deque<PageBuffer> gone;  // to the system, without the lock
    const std::lock_guard guard(mutex_);
    bytes_ += buffer.bytes();
    spare_.push_back(std::move(buffer));
    for (; bytes_ > kBytesMax; spare_.pop_front()) {
      bytes_ -= spare_.front().bytes();
      gone.push_back(std::move(spare_.front()));
    }
  }

  // Comes back here from its last owner, who may outlive all others.
  std::shared_ptr<PageBuffer> shared(PageBuffer buffer) {
    const auto lent = std::make_shared<Lent>(std::move(buffer), shared_from_this());
    return {lent, &lent->buffer};
  }

 private:
  struct Lent {
    Lent(PageBuffer pages, std::shared_ptr<SparePages> from)
        : buffer(std::move(pages)), home(std::move(from)) {}
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;
    ~Lent() { home->give(std::move(buffer)); }

    PageBuffer buffer;
    const std::shared_ptr<SparePages> home;
  };

  static constexpr std::size_t kStepMin = 4096;
  static constexpr std::size_t kBytesMax = std::size_t{16} << 20;

  std::mutex mutex_;
  std::deque<PageBuffer> spare_;  // the longest unused first
  std::size_t bytes_ = 0;
};

}  // namespace kvlane
