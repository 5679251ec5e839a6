// Slabs through the codecs of a device: many planes in one launch, on a line of its own, so that
// only coded bytes cross between device and host. Bytes and verdicts are those of the CPU's codecs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "codec/codec.h"
#include "codec/coded_slab.h"
#include "model/accelerator.h"

namespace kvlane {

// The valid rows of a slab in memory of the device, and codebooks for its K and its V if the codec
// takes one: a plane whose book is null is counted.
struct DeviceSlab {
  const std::byte* slab;
  int rows;
  std::array<const Codebook*, 2> books{};
};

// Untrusted bytes on their way to the first rows of a slab of the device.
struct ComingSlab {
  CodedSlab coded;
  int rows;
  std::byte* slab;
};

// For one thread at a time. Does not outlive its device.
class SlabCoder {
 public:
  // Whether devices have kernels of it.
  static bool knows(const Codec& codec);

  // Takes buffers for up to `slabs_max` slabs at once.
  static Result<SlabCoder> open(Accelerator& device, const KvShape& shape, int slabs_max);

  int slabs_max() const { return planes_max_ / 2; }

  // Encodes 1 to slabs_max() slabs with a codec that is known. Begins when the device has reached
  // `done`, if that is not null. What comes back is valid until the next call.
  Result<std::span<const CodedSlab>> encode(const Codec& codec, std::span<const DeviceSlab> slabs,
                                            const DeviceMark* done);

  // Decodes 1 to slabs_max() slabs into their places. `verdicts`, one for each, is what `codec`,
  // the CPU's, says of its bytes: after an error its rows are garbage. What comes back is the
  // device's error, after which all of them are.
  Status decode(const Codec& codec, std::span<const ComingSlab> slabs, std::span<Status> verdicts);

 private:
  SlabCoder(const KvShape& shape, int slabs_max);

  Status allocate(Accelerator& device);
  template <class Gpu>
  Status give_encode(std::span<const DeviceSlab> slabs);
  template <class Gpu>
  Status give_decode(std::span<const ComingSlab> slabs);
  Status give_rows(const ComingSlab& slab, int plane);
  bool fits(const CodedSlab& coded) const;
  Status copy_plane(std::byte* dense, const std::byte* slab, int part, int rows);

  // Each plane's place in the buffers.
  std::byte* dense(int plane) const { return memory_.get() + plane * plane_bytes_; }
  std::byte* body(int plane) const {
    return memory_.get() + planes_max_ * plane_bytes_ + plane * body_bytes_;
  }
  std::byte* host_body(int plane) const { return host_.get() + plane * body_bytes_; }
  // Behind the bodies: what launches are told, and what they tell of each plane.
  std::byte* told() const { return host_body(planes_max_); }
  std::byte* result(int plane) const;
  std::byte* book(int plane) const;

  KvShape shape_;
  int planes_max_;
  std::size_t plane_bytes_, body_bytes_;  // of a whole one at most, as multiples of 256
  std::unique_ptr<DeviceLane> lane_;
  Accelerator::Memory memory_;  // of the device: planes without gaps, then bodies
  Accelerator::Memory host_;    // bodies, tasks, results, codebooks
  std::vector<CodedSlab> coded_;
};

}  // namespace kvlane
