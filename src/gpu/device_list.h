// A list that the host writes and kernels read: what a launch shall do.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>
#include <type_traits>
#include <utility>

#include "gpu/device.h"

namespace kvlane::gpu {

// Of at most so many T. Memory is taken once; may be filled again for every launch.
template <class T>
class DeviceList {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  static Result<DeviceList> allocate(int device, std::size_t count_max) {
    KVLANE_ASSIGN(PinnedBuffer host, PinnedBuffer::allocate(device, count_max * sizeof(T)));
    KVLANE_ASSIGN(DeviceBuffer copy, DeviceBuffer::allocate(device, count_max * sizeof(T)));
    KVLANE_ASSIGN(Event copied, Event::create(device));
    return DeviceList(std::move(host), std::move(copy), std::move(copied));
  }

  // Takes the place of what was in it, in the order of the stream, which is always the same one:
  // launches given before still see the old items. Waits for the copy before this one.
  Status assign(const Stream& stream, std::span<const T> items) {
    if (items.size_bytes() > host_.bytes()) {
      return invalid_argument("a list of " + std::to_string(items.size()) + " items has room for " +
                              std::to_string(host_.bytes() / sizeof(T)));
    }
    KVLANE_TRY(copied_.synchronize());
    std::copy_n(std::as_bytes(items).data(), items.size_bytes(), host_.data());
    KVLANE_TRY(copy(stream, device_.data(), host_.data(), items.size_bytes()));
    return copied_.record(stream);
  }

  // For kernels.
  T* on_device() const { return device_.as<T>(); }

 private:
  DeviceList(PinnedBuffer host, DeviceBuffer device, Event copied)
      : host_(std::move(host)), device_(std::move(device)), copied_(std::move(copied)) {}

  PinnedBuffer host_;
  DeviceBuffer device_;
  Event copied_;
};

}  // namespace kvlane::gpu
