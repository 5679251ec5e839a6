// The thread of a CUDA kernel that is made for sm_90a, with what its warpgroup multiplies. For
// X_hopper.cu files only.
//
// Four warps from a multiple of four on are a warpgroup, which multiplies tiles of 64 rows, and
// goes on while it does so:
//   publish()                      what this thread has written to shared memory is there for
//                                  products behind the next barrier
//   begin_products()               behind the last access to accumulators and operands in registers
//   multiply_s8s8<kAdd>(d, a, b, step)
//                                  d = A B, or d += A B, of signed bytes, with 32 products a sum;
//                                  of n columns a thread has n / 2 entries
//   multiply_fp16(d, a, b, step)   d += A B of binary16, with 16 products a sum; A in registers
//   close_products()               what was begun since the last call is a group
//   wait_products_but<kLeft>(x...) until all closed groups are done but the last kLeft, to which
//                                  none of `x`, arrays in registers, belongs
//   settle(x)                      the entries of an array in registers are computed by now, not
//                                  behind the next wait
// Before the wait nothing may read or write accumulators, nor write what operands are read from.
// A and B in shared memory are rows of 128 bytes, of which step i takes 32 from byte 32 i on; a row
// of B is a column of the product. Each eight rows begin at a multiple of 1024 bytes, and piece p
// (16 bytes) of row r is in place p ^ r % 8. Of A in registers and of d warp i has the rows from
// 16 i on, as gpu/device_float.h has it: entry 4 j + i of d is d[i] of the columns from 8 j on.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/cuda_thread.h"

// Operands of an instruction: four accumulators from entry i on.
#define KVLANE_WORDS(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define KVLANE_FLOATS(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KVLANE_FLOATS16(i) \
  KVLANE_FLOATS(i), KVLANE_FLOATS(i + 4), KVLANE_FLOATS(i + 8), KVLANE_FLOATS(i + 12)

namespace kvlane::gpu {

class HopperThread : public CudaThread {
 public:
  __device__ void publish() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }
  __device__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
  __device__ void close_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
  }
  template <int kLeft, class... Arrays>
  __device__ void wait_products_but(Arrays&... arrays) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kLeft) : "memory");
    (pin(arrays), ...);
  }
  template <class Array>
  __device__ void settle(Array& array) {
    pin(array);
  }

  template <bool kAdd>
  __device__ void multiply_s8s8(std::int32_t (&d)[32], const Words4& a, const Words4& b, int step) {
    asm volatile(
        "{.reg .pred add; setp.ne.b32 add, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
        " %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "
        " %28, %29, %30, %31}, "
        "%32, %33, add;}"
        : KVLANE_WORDS(0), KVLANE_WORDS(4), KVLANE_WORDS(8), KVLANE_WORDS(12), KVLANE_WORDS(16),
          KVLANE_WORDS(20), KVLANE_WORDS(24), KVLANE_WORDS(28)
        : "l"(rows_at(a, step)), "l"(rows_at(b, step)), "n"(kAdd ? 1 : 0)
        : "memory");
  }
  __device__ void multiply_fp16(float (&d)[36], const std::uint32_t (&a)[4], const Words4& b,
                                int step) {
    asm volatile(
        "{.reg .pred add; setp.ne.b32 add, %41, 0; "
        "wgmma.mma_async.sync.aligned.m64n72k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
        " %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "
        " %28, %29, %30, %31, %32, %33, %34, %35}, "
        "{%36, %37, %38, %39}, %40, add, 1, 1, 0;}"
        : KVLANE_FLOATS16(0), KVLANE_FLOATS16(16), KVLANE_FLOATS(32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows_at(b, step)), "n"(1)
        : "memory");
  }
  __device__ void multiply_fp16(float (&d)[68], const std::uint32_t (&a)[4], const Words4& b,
                                int step) {
    asm volatile(
        "{.reg .pred add; setp.ne.b32 add, %73, 0; "
        "wgmma.mma_async.sync.aligned.m64n136k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
        " %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "
        " %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, "
        " %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
        " %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67}, "
        "{%68, %69, %70, %71}, %72, add, 1, 1, 0;}"
        : KVLANE_FLOATS16(0), KVLANE_FLOATS16(16), KVLANE_FLOATS16(32), KVLANE_FLOATS16(48),
          KVLANE_FLOATS(64)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(rows_at(b, step)), "n"(1)
        : "memory");
  }

 private:
  // The compiler sees all entries change here, and reads none of them earlier.
  template <std::size_t kSize>
  __device__ static void pin(float (&x)[kSize]) {
    KVLANE_UNROLL
    for (float& entry : x) asm volatile("" : "+f"(entry) : : "memory");
  }
  template <class Word, std::size_t kSize>
  __device__ static void pin(Word (&x)[kSize]) {
    KVLANE_UNROLL
    for (Word& entry : x) asm volatile("" : "+r"(entry) : : "memory");
  }

  // What the matrix unit takes for rows: where they begin, in units of 16 bytes, that eight of them
  // are 1024 bytes from the next eight, and that pieces change places within 128 bytes.
  __device__ static std::uint64_t rows_at(const Words4& first, int step) {
    constexpr std::uint32_t kGroupBytes = 1024, kPlaces = 1U << 30, kUnused = 1U << 16;
    const std::uint32_t at = shared_address(first) / sizeof(Words4) + (kUnused + 2 * step);
    return std::uint64_t{kPlaces | kGroupBytes / sizeof(Words4)} << 32 | at;
  }
};

}  // namespace kvlane::gpu

#undef KVLANE_WORDS
#undef KVLANE_FLOATS
#undef KVLANE_FLOATS16
