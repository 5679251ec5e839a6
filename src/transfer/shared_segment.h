// Memory that two workers of one host have mapped: spec/transfer.md section 11.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kvlane/status.h"
#include "transfer/owned_file.h"
#include "transfer/shared_ring.h"

namespace kvlane {

inline constexpr std::size_t kRingBytesMin = std::size_t{64} << 10;
inline constexpr std::size_t kRingBytesMax = std::size_t{16} << 20;
// What lies before the rings: their controls, in a page of their own.
inline constexpr std::size_t kSharedHeaderBytes = 4096;

// Whether a ring may have this size.
bool is_ring_size(std::size_t bytes);

// Two rings, one a direction. The mapping goes with this object; the memory lives until both sides
// have let go of it.
class SharedSegment {
 public:
  // Takes memory, all of it now, and seals it so that no later access can fail. Its file, for the
  // other side, goes to `file`. kUnavailable when the system gives none, kInvalidArgument when
  // `ring_bytes` is no size of a ring.
  static Result<std::unique_ptr<SharedSegment>> create(std::size_t ring_bytes, OwnedFile* file);
  // Maps what a peer has made. kCorrupt when the file is not such memory of that size, sealed.
  static Result<std::unique_ptr<SharedSegment>> adopt(const OwnedFile& file,
                                                      std::size_t ring_bytes);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // Ring 0 goes from connector to acceptor, ring 1 back.
  RingControl& control(int ring) const;
  std::span<std::byte> bytes(int ring) const;

 private:
  SharedSegment(std::byte* data, std::size_t ring_bytes) : data_(data), ring_bytes_(ring_bytes) {}
  static Result<std::unique_ptr<SharedSegment>> map(int file, std::size_t ring_bytes);

  std::byte* const data_;
  const std::size_t ring_bytes_;
};

}  // namespace kvlane
