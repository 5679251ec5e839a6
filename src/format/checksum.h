// XXH3, the checksum of all byte formats here, by libxxhash, with its kernels for this processor
// where it has some: on long inputs its plain functions for x86, which are for SSE2, take 4 to 20
// times as long.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/bytes.h"

namespace kvlane {

std::uint64_t xxh3_64(ByteView bytes);

// XXH3-128 of bytes that come in pieces.
class Xxh3Of128 {
 public:
  Xxh3Of128();
  bool ok() const { return state_ != nullptr; }  // false: there was no memory for it

  void restart();
  void add(ByteView piece);
  std::array<std::byte, 16> digest() const;  // most significant byte first

 private:
  struct Free {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, Free> state_;
};

}  // namespace kvlane
