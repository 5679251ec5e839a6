// Memory of a device that disks are read into directly, in rooms of any size.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "gpu/direct_storage.h"
#include "model/accelerator.h"

namespace kvlane {

// Thread-safe.
class DirectRooms {
 public:
  // `bytes` of the device's memory, which `storage` takes. Ends before the device.
  static Result<std::unique_ptr<DirectRooms>> open(Accelerator& device, gpu::DirectStorage& storage,
                                                   std::size_t bytes);
  // Waits until all rooms are given back.
  ~DirectRooms();
  DirectRooms(const DirectRooms&) = delete;
  DirectRooms& operator=(const DirectRooms&) = delete;

  // Gives itself back at the end of its life; nothing may be read into it any more then. Movable.
  class Room {
   public:
    Room() = default;  // none
    Room(Room&& other) noexcept
        : rooms_(std::exchange(other.rooms_, nullptr)), memory_(other.memory_) {}
    Room& operator=(Room&& other) noexcept {
      std::swap(rooms_, other.rooms_);
      std::swap(memory_, other.memory_);
      return *this;
    }
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    ~Room() {
      if (rooms_ != nullptr) rooms_->give_back(memory_);
    }

    explicit operator bool() const { return rooms_ != nullptr; }
    // Of the device; aligned to 4,096.
    std::span<std::byte> memory() const { return memory_; }

   private:
    friend class DirectRooms;
    Room(DirectRooms* rooms, std::span<std::byte> memory) : rooms_(rooms), memory_(memory) {}
    DirectRooms* rooms_ = nullptr;
    std::span<std::byte> memory_;
  };

  // `bytes`: a multiple of 4,096. None if so much in a row is not free now.
  Room take(std::size_t bytes);

 private:
  DirectRooms() = default;
  void give_back(std::span<std::byte> memory);

  Accelerator::Memory memory_;
  std::unique_ptr<gpu::DirectStorage::Memory> taken_;  // ends before the memory
  std::byte* begin_ = nullptr;
  std::mutex mutex_;
  std::condition_variable all_back_;
  std::map<std::size_t, std::size_t> free_;  // where it begins, and bytes; neighbours are joined
  std::size_t bytes_ = 0;
  std::size_t free_bytes_ = 0;
};

}  // namespace kvlane
