// Best fit among the buffers that are free.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/message_memory.h"

#include <utility>

namespace kvlane {
namespace {

// Coded slabs differ a little in length; rounded up, they fit each other's buffers.
constexpr std::size_t kGranularity = std::size_t{16} << 10;

}  // namespace

// A buffer that finds its way back.
struct MessageMemory::Loan {
  Loan(std::shared_ptr<MessageMemory> memory, std::size_t bytes)
      : home(std::move(memory)), buffer(home->find_or_make(bytes)), taken(buffer.capacity()) {
    buffer.resize(bytes);
  }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  ~Loan() { home->give_back(std::move(buffer), taken); }

  const std::shared_ptr<MessageMemory> home;
  Bytes buffer;
  const std::size_t taken;
};

std::shared_ptr<Bytes> MessageMemory::take(std::size_t bytes) {
  const auto loan = std::make_shared<Loan>(shared_from_this(), bytes);
  return {loan, &loan->buffer};
}

Bytes MessageMemory::find_or_make(std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto fit = free_.lower_bound(bytes);
    if (fit != free_.end() && fit->first <= 2 * bytes) {
      free_bytes_ -= fit->first;
      used_bytes_ += fit->first;
      Bytes found = std::move(free_.extract(fit).mapped());
      return found;
    }
  }
  Bytes buffer;
  buffer.reserve((bytes + kGranularity - 1) / kGranularity * kGranularity);
  const std::lock_guard lock(mutex_);
  used_bytes_ += buffer.capacity();
  trim();
  return buffer;
}

// `taken` is what it had room for when it was taken.
void MessageMemory::give_back(Bytes buffer, std::size_t taken) {
  // It keeps its length: what a vector grows by is filled with zeros.
  const std::size_t capacity = buffer.capacity();
  const std::lock_guard lock(mutex_);
  used_bytes_ -= taken;
  if (capacity == 0) return;
  free_bytes_ += capacity;
  free_.emplace(capacity, std::move(buffer));
  trim();
}

// The shortest go first: they are what nobody could use.
void MessageMemory::trim() {
  while (!free_.empty() && used_bytes_ + free_bytes_ > bytes_max_) {
    free_bytes_ -= free_.begin()->first;
    free_.erase(free_.begin());
  }
}

std::size_t MessageMemory::free_bytes() const {
  const std::lock_guard lock(mutex_);
  return free_bytes_;
}

}  // namespace kvlane
