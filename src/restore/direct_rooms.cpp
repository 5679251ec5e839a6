// The first that is large enough: what is read is of few sizes, so rooms fit where others were.
// SPDX-License-Identifier: Apache-2.0
#include "restore/direct_rooms.h"

#include <algorithm>
#include <cstdint>

namespace kvlane {
namespace {

// Of a GPU's pages, by which its memory is made visible to others.
constexpr std::size_t kGpuPageBytes = std::size_t{64} << 10;

}  // namespace

Result<std::unique_ptr<DirectRooms>> DirectRooms::open(Accelerator& device,
                                                       gpu::DirectStorage& storage,
                                                       std::size_t bytes) {
  std::unique_ptr<DirectRooms> rooms(new DirectRooms);
  rooms->bytes_ = (bytes + kGpuPageBytes - 1) / kGpuPageBytes * kGpuPageBytes;
  KVLANE_ASSIGN(rooms->memory_, device.allocate(rooms->bytes_ + kGpuPageBytes));
  const auto address = reinterpret_cast<std::uintptr_t>(rooms->memory_.get());
  rooms->begin_ = rooms->memory_.get() + (kGpuPageBytes - address % kGpuPageBytes) % kGpuPageBytes;
  KVLANE_ASSIGN(rooms->taken_, storage.take_memory({rooms->begin_, rooms->bytes_}));
  rooms->free_[0] = rooms->free_bytes_ = rooms->bytes_;
  return rooms;
}

DirectRooms::~DirectRooms() {
  std::unique_lock lock(mutex_);
  all_back_.wait(lock, [this] { return taken_ == nullptr || free_bytes_ == bytes_; });
}

DirectRooms::Room DirectRooms::take(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto fits = std::find_if(free_.begin(), free_.end(),
                                 [&](const auto& piece) { return piece.second >= bytes; });
  if (fits == free_.end()) return {};
  const auto [at, free] = *fits;
  free_.erase(fits);
  if (free > bytes) free_[at + bytes] = free - bytes;
  free_bytes_ -= bytes;
  return {this, {begin_ + at, bytes}};
}

void DirectRooms::give_back(std::span<std::byte> memory) {
  const std::lock_guard lock(mutex_);
  const auto [piece, is_new] = free_.emplace(memory.data() - begin_, memory.size());
  if (const auto next = std::next(piece);
      next != free_.end() && piece->first + piece->second == next->first) {
    piece->second += next->second;
    free_.erase(next);
  }
  if (piece != free_.begin()) {
    if (const auto before = std::prev(piece); before->first + before->second == piece->first) {
      before->second += piece->second;
      free_.erase(piece);
    }
  }
  free_bytes_ += memory.size();
  // Under the lock: who waits may be gone as soon as it can see this.
  if (free_bytes_ == bytes_) all_back_.notify_all();
}

}  // namespace kvlane
