// Kernels of decode attention that dequantises, whose block i has unit i: four warps, a page each.
//
// Instructions of a warp for a page (4,864 bytes, as for attention on codes) on sm_90, but for the
// rescaling of outputs, which few pages need; registers, and blocks of a multiprocessor. No spills,
// which the build insists on.
//
//   matrix unit, whole   1,090: 512 HFMA2, 256 LOP3, 68 HMMA, 32 turn words    128   4
//   matrix unit, split     915: 256 HFMA2, 256 LOP3, 81 HMMA, 32 turn words    128   4
//   cores, 1 head        1,820: 512 LOP3, 512 FADD, 512 FFMA                    96   5
//   cores, 4 heads       3,770: 512 LOP3, 512 FADD, 2,048 FFMA                 168   3
//   cores, 8 heads       6,340: 512 LOP3, 512 FADD, 4,096 FFMA                 255   2
//
// On the matrix unit 1 to 8 heads cost the same. How many attention on codes needs is counted at
// the head of attention/hack_decode_cuda.cu. Whole values would take the cores 512 fused
// multiply-adds more, and save less with any number of heads, so there is no kernel for them.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_dequantise.h"
#include "bench/gpu_dequantise_cores_device.h"
#include "gpu/cuda_status.h"
#include "gpu/cuda_thread.h"
#include "gpu/early_launch.h"

namespace kvlane {

namespace {

constexpr int kThreads = kDecodeWarps * gpu::kWarpThreads;

constexpr int blocks_for(int queries) { return queries == 1 ? 5 : queries <= 4 ? 3 : 2; }

template <bool kWhole>
__global__ void __launch_bounds__(kThreads, 4)
    attend_dequantised_units(const HackDecodeBatch batch, const DecodeUnit* units) {
  __shared__ DequantiseShared shared;
  gpu::CudaThread thread;
  thread.let_next_begin();
  attend_dequantised<kWhole ? DequantiseForm::kWhole : DequantiseForm::kSplit>(
      thread, batch, units[blockIdx.x], shared);
}

template <int kQueries>
__global__ void __launch_bounds__(kThreads, blocks_for(kQueries))
    attend_dequantised_units_on_cores(const HackDecodeBatch batch, const DecodeUnit* units) {
  __shared__ DequantiseCoresShared shared;
  gpu::CudaThread thread;
  thread.let_next_begin();
  attend_dequantised_on_cores<kQueries>(thread, batch, units[blockIdx.x], shared);
}

using Kernel = void (*)(const HackDecodeBatch, const DecodeUnit*);

Kernel kernel_of(GpuDequantiser how, int group) {
  switch (how) {
    case GpuDequantiser::kMatrixWhole: return attend_dequantised_units<true>;
    case GpuDequantiser::kMatrixSplit: return attend_dequantised_units<false>;
    case GpuDequantiser::kCores: break;
  }
  if (group == 1) return attend_dequantised_units_on_cores<1>;
  if (group <= 4) return attend_dequantised_units_on_cores<4>;
  return attend_dequantised_units_on_cores<kDecodeColumns>;
}

bool aligned(const void* address, std::size_t to) {
  return reinterpret_cast<std::uintptr_t>(address) % to == 0;
}

}  // namespace

Status attend_dequantised_on_gpu(GpuDequantiser how, const HackDecodeBatch& batch,
                                 const DecodeUnit* units, std::size_t count,
                                 const gpu::Stream& stream) {
  const hack::PageLayout& layout = dequantise::kLayout;
  if (batch.head_dim != kDequantiseDim || batch.heads % batch.kv_heads != 0 ||
      batch.layout.v_codes != layout.v_codes || batch.layout.k_metadata != layout.k_metadata ||
      batch.layout.v_metadata != layout.v_metadata || batch.layout.bytes != layout.bytes) {
    return invalid_argument("attention that dequantises is for bare `hack` at head_dim 128");
  }
  if (!aligned(batch.slabs, 64) || batch.block_bytes % 64 != 0 || !aligned(batch.out, 16) ||
      !aligned(units, 16) || !aligned(batch.queries.codes, 16) ||
      !aligned(batch.queries.rests, 16)) {
    return invalid_argument(
        "attention that dequantises needs slabs at multiples of 64 bytes and all else of 16");
  }
  if (count == 0) return {};
  const Kernel kernel = kernel_of(how, batch.heads / batch.kv_heads);
  KVLANE_TRY(gpu::use_device(stream.device()));
  return gpu::launch_early(kernel, {count, kThreads}, stream, "decode attention that dequantises",
                           batch, units);
}

}  // namespace kvlane
