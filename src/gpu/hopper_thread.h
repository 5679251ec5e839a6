// The thread of a CUDA kernel for sm_90a, with what its warpgroup multiplies; in X_hopper.cu alone.
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
//   warpgroup()                    the number of this thread's, which the compiler knows to be one
//                                  for a warp
//   sync_warpgroup(which)          a barrier of warpgroup number `which`, the own one
//   take_registers<n>(), leave_registers<n>()
//                                  of all its threads: each has n from now on. A multiple of 8, and
//                                  no less (no more) than what a thread began with
// Warpgroups that wait for each other without a barrier that stops both have Arrivals in shared
// memory, in phases that a number of arrivals end:
//   init_arrivals(a, count)        by one thread, once, before a barrier of all that use it
//   arrive(a)                      one of `count`; what this thread has done before, and others
//                                  before a barrier with it, is there for those that wait
//   arrive_as_warp(a)              by a warp: kWarpArrivals of `count`, for what all of it has done
//   expect_bytes(a, bytes)         an arrival, and the phase does not end before so many bytes have
//                                  been copied with `a`
//   copy_bulk(to, from, bytes, a)  begins to copy a multiple of 16 bytes to shared memory, which is
//                                  seen by those that wait
//   wait_arrivals(a, parity)       until a phase of this parity has ended, if that is not so. Phase
//                                  0 is the first; one of parity 1 has ended before it
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

  __device__ int warpgroup() const { return __shfl_sync(~0U, index() / kWarpgroupThreads, 0); }
  // Barrier 0 is that of the block.
  __device__ void sync_warpgroup(int which) {
    asm volatile("bar.sync %0, %1;" : : "r"(1 + which), "n"(kWarpgroupThreads) : "memory");
  }
  __device__ void init_arrivals(Arrivals& arrivals, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :
                 : "r"(arrivals_address(arrivals)), "r"(count)
                 : "memory");
  }
  __device__ void arrive(Arrivals& arrivals) {
    asm volatile("{.reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0];}"
                 :
                 : "r"(arrivals_address(arrivals))
                 : "memory");
  }
  static constexpr int kWarpArrivals = 1;
  __device__ void arrive_as_warp(Arrivals& arrivals) {
    sync_warp();
    if (lane() == 0) arrive(arrivals);
  }
  __device__ void expect_bytes(Arrivals& arrivals, unsigned bytes) {
    asm volatile("{.reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;}"
                 :
                 : "r"(arrivals_address(arrivals)), "r"(bytes)
                 : "memory");
  }
  __device__ void copy_bulk(Words4& to, const std::byte* from, unsigned bytes, Arrivals& arrivals) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :
        : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(bytes),
          "r"(arrivals_address(arrivals))
        : "memory");
  }
  __device__ void wait_arrivals(Arrivals& arrivals, unsigned parity) {
    asm volatile(
        "{.reg .pred there;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
        "@!there bra again;}"
        :
        : "r"(arrivals_address(arrivals)), "r"(parity)
        : "memory");
  }
  template <int kRegisters>
  __device__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kRegisters));
  }
  template <int kRegisters>
  __device__ void leave_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kRegisters));
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
  __device__ static unsigned arrivals_address(const Arrivals& arrivals) {
    return static_cast<unsigned>(__cvta_generic_to_shared(&arrivals));
  }
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

// The same for compute-sanitizer's racecheck, which does not see that one lane speaks for what its
// warp has done: every thread arrives for itself. Slower.
class HopperThreadApart : public HopperThread {
 public:
  // cppcheck-suppress duplInheritedMember  // what arrives differs
  static constexpr int kWarpArrivals = kWarpThreads;
  __device__ void arrive_as_warp(Arrivals& arrivals) { arrive(arrivals); }
};

}  // namespace kvlane::gpu

#undef KVLANE_WORDS
#undef KVLANE_FLOATS
#undef KVLANE_FLOATS16
