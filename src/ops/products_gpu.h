// Matrix products with fixed weights on a GPU, by cuBLASLt.
//
// cuBLASLt is found at run time: half a gigabyte that only those need who multiply on a GPU.
// Its kernels differ with the number of rows, and so may the last bits of a row; the same product
// in a program with the same device and library gives the same bits every time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "gpu/device.h"

namespace kvlane {

// y = x W^T, or y += x W^T. Addresses are multiples of 16; all memory is the device's.
struct GpuProduct {
  const std::byte* weights;  // [n][k], BF16
  const std::byte* x;        // [rows][k], BF16
  float* y;                  // [rows][n]
  int rows, n, k;            // at least 1; n and k multiples of 8
  bool add;                  // to what y has
};

// Thread-compatible.
class GpuProducts {
 public:
  // Of memory that kernels may use for sums of parts: what cuBLAS itself takes on Hopper.
  static constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

  // kUnsupported in a build without CUDA; kUnavailable where there is no device or no cuBLASLt of
  // the version that this program was built with.
  static Result<std::unique_ptr<GpuProducts>> create(int device);

  virtual ~GpuProducts() = default;

  // Returns when the product is in the stream, which is of our device and the only one that uses
  // this object. The first product of each shape asks for the kernel that it then stays with, which
  // takes the host some 0.1 ms. kInvalidArgument for shapes and addresses that are not as above,
  // kInternal for what cuBLASLt refuses.
  virtual Status multiply(const GpuProduct& product, const gpu::Stream& stream) = 0;

 protected:
  GpuProducts() = default;
};

}  // namespace kvlane
