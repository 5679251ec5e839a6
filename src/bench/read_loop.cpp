// Slots go from the reader to the taker and back.
// SPDX-License-Identifier: Apache-2.0
#include "bench/read_loop.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace kvlane {

Status ReadLoop::reserve(std::size_t slots, std::size_t bytes) {
  slots_.clear();
  bytes_ = bytes;
  for (std::size_t s = 0; s < slots; ++s) {
    KVLANE_ASSIGN(PageBuffer memory, PageBuffer::allocate(bytes));
    slots_.push_back({std::move(memory)});
  }
  return {};
}

// Takes the next item, if there is one; lets the lock go meanwhile, as reads may end at once.
void ReadLoop::begin(std::unique_lock<std::mutex>& lock, std::size_t slot) {
  if (next_ == order_.size() || !status_.ok()) return;
  const std::size_t index = order_[next_++];
  slots_[slot].index = index;
  busy_ += 1;
  lock.unlock();
  (*begin_)(index, {slots_[slot].memory.data(), bytes_}, [this, slot](const Status& status) {
    const std::lock_guard guard(mutex_);
    if (!status.ok() && status_.ok()) status_ = status;
    ready_.push_back(slot);
    changed_.notify_one();
  });
  lock.lock();
}

void ReadLoop::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return busy_ == 0 || !ready_.empty(); });
    if (ready_.empty()) return;
    const std::size_t slot = ready_.front();
    ready_.pop_front();
    if (status_.ok()) {
      lock.unlock();
      const Status taken = (*take_)(slots_[slot].index, {slots_[slot].memory.data(), bytes_}, slot);
      lock.lock();
      if (!taken.ok() && status_.ok()) status_ = taken;
    }
    begin(lock, slot);
    busy_ -= 1;
    if (busy_ == 0) changed_.notify_all();
  }
}

Status ReadLoop::run(std::span<const std::size_t> order, int threads, const Begin& begin_read,
                     const Take& take) {
  order_ = order;
  begin_ = &begin_read;
  take_ = &take;
  next_ = 0;
  status_ = {};
  {
    std::unique_lock lock(mutex_);
    busy_ = 1;  // this thread's own, so that nobody thinks that all is done
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) begin(lock, slot);
    busy_ -= 1;
  }
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t) others.emplace_back([this] { work(); });
  work();
  for (std::thread& other : others) other.join();
  return std::exchange(status_, {});
}

}  // namespace kvlane
