// The thread of a CUDA kernel, as device code wants it (gpu/device_code.h). For .cu files only;
// blocks are one-dimensional and made of whole warps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/device_code.h"

namespace kvlane::gpu {

class CudaThread {
 public:
  __device__ int index() const { return static_cast<int>(threadIdx.x); }
  __device__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ int lane() const { return index() % kWarpThreads; }
  __device__ int warp() const { return index() / kWarpThreads; }
  __device__ int warps() const { return threads() / kWarpThreads; }

  __device__ void sync_block() { __syncthreads(); }
  __device__ void sync_warp() { __syncwarp(); }
  __device__ std::uint32_t shuffle(std::uint32_t x, int lane) { return __shfl_sync(kAll, x, lane); }
  __device__ std::uint32_t shuffle_up(std::uint32_t x, int by, int width) {
    return __shfl_up_sync(kAll, x, static_cast<unsigned>(by), width);
  }
  __device__ std::uint32_t ballot(bool condition) { return __ballot_sync(kAll, condition); }
  __device__ std::uint32_t sum(std::uint32_t x) { return __reduce_add_sync(kAll, x); }
  // See gpu/device_float.h.
  __device__ void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                           std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  __device__ void mma_fp16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                           std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  __device__ void mma_fp16(float (&d)[4], const std::uint32_t (&a)[2], std::uint32_t b) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
  }
  __device__ void mma_u8s8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                           std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  __device__ void mma_u8u8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                           std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  __device__ void mma_s8s8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                           std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  __device__ std::uint32_t transposed(std::uint32_t pair) {
    std::uint32_t result;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
    return result;
  }
  __device__ void load_matrices(const Words4& own, std::uint32_t (&m)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared_address(own))
                 : "memory");
  }
  __device__ void load_transposed(const Words4& own, std::uint32_t (&m)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(shared_address(own))
                 : "memory");
  }
  // Past the first-level cache: each block of threads reads its bytes once.
  __device__ void copy_async(Words4& to, const std::byte* from, bool wanted) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)),
                   "r"(wanted ? 16 : 0)
                 : "memory");
  }
  __device__ void fetch_ahead(const std::byte* at) {
    asm volatile("prefetch.global.L2 [%0];" : : "l"(__cvta_generic_to_global(at)));
  }
  __device__ void wait_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }
  __device__ void close_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }
  template <int kLeft>
  __device__ void wait_copies_but() {
    asm volatile("cp.async.wait_group %0;" : : "n"(kLeft) : "memory");
  }
  __device__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
  }
  __device__ void wait_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
  }
  __device__ void add(std::uint32_t& word, std::uint32_t x) { atomicAdd(&word, x); }

 protected:
  __device__ static unsigned shared_address(const Words4& words) {
    return static_cast<unsigned>(__cvta_generic_to_shared(&words));
  }

 private:
  static constexpr unsigned kAll = ~0U;
};

}  // namespace kvlane::gpu
