// Floats in device code: their bits, powers of two, pairs of bfloat16, and tiles of the matrix
// unit.
//
// A thread that multiplies matrices has besides what gpu/device_code.h names
//   mma_bf16(d, a, b0, b1)    d += A B for a tile of 16 x 8, with 16 products a sum, by the warp
//   mma_fp16(d, a, b0, b1)    the same of binary16
//   mma_fp16(d, a, b)         the same with 8 products a sum: the first half of A and B
//   mma_u8s8(d, a, b0, b1)    the same of 8-bit integers, with 32 products a sum; A is unsigned, B
//                             signed, d four std::int32_t
//   mma_u8u8(d, a, b0, b1)    the same, and B is unsigned
//   mma_s8s8(d, a, b0, b1)    the same, and both are signed
//   transposed(pair)          the warp's 8 x 8 matrix of 16-bit values, transposed
//   load_matrices(own, m)     four 8 x 8 matrices of 16-bit values from shared memory: `own` is row
//                             i % 8 of matrix i / 8 for lane i, and m[j] becomes its part of matrix
//                             j
//   load_transposed(own, m)   the same, and each matrix is transposed
// Of all these matrices a lane has parts that its number names: row = lane / 4, column = lane % 4.
//   A [16][16], 16 bits       a[0] is A[row][2 column, +1], a[1] A[row + 8][2 column, +1],
//                             a[2] A[row][2 column + 8, +9], a[3] A[row + 8][2 column + 8, +9]
//   B [16][8], 16 bits        b0 is B[2 column, +1][row], b1 B[2 column + 8, +9][row]
//   A [16][32], 8 bits        a[0] is A[row][4 column ... +3], a[1] A[row + 8][the same],
//                             a[2] A[row][16 + 4 column ... +3], a[3] A[row + 8][the same]
//   B [32][8], 8 bits         b0 is B[4 column ... +3][row], b1 B[16 + 4 column ... +3][row]
//   D [16][8], 32 bits        d[0], d[1] are D[row][2 column, +1], d[2], d[3] D[row + 8][the same]
//   8 x 8                     M[row][2 column, +1]
// The first of two 16-bit values is the low half of its word, the first of four bytes the lowest.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>

#include "base/bf16.h"
#include "gpu/device_code.h"

namespace kvlane::gpu {

KVLANE_DEVICE std::uint32_t bits_of(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  return std::bit_cast<std::uint32_t>(x);
#endif
}
KVLANE_DEVICE float float_of(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

KVLANE_DEVICE float minus_infinity() { return float_of(0xFF800000); }

// Of numbers that are not NaN.
KVLANE_DEVICE float larger(float a, float b) {
#ifdef __CUDA_ARCH__
  return fmaxf(a, b);
#else
  return a > b ? a : b;
#endif
}

// 2^x within 2^-22 of itself; 0 below 2^-126, also for minus infinity.
KVLANE_DEVICE float power_of_two(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

// Rounded half to even.
KVLANE_DEVICE std::uint32_t pack_bf16(float low, float high) {
#ifdef __CUDA_ARCH__
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return std::uint32_t{to_bf16(high).bits} << 16 | to_bf16(low).bits;
#endif
}

// The same of binary16.
KVLANE_DEVICE std::uint32_t pack_fp16(float low, float high) {
#ifdef __CUDA_ARCH__
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return std::uint32_t{to_fp16(high).bits} << 16 | to_fp16(low).bits;
#endif
}
// Exact. Of the low half of a word, whatever the other is; and of the high one.
KVLANE_DEVICE float low_fp16(std::uint32_t pair) {
#ifdef __CUDA_ARCH__
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<std::uint16_t>(pair)));
  return x;
#else
  return to_float(fp16{static_cast<std::uint16_t>(pair)});
#endif
}
KVLANE_DEVICE float high_fp16(std::uint32_t pair) { return low_fp16(pair >> 16); }
// a b + c of pairs of binary16, each rounded once.
KVLANE_DEVICE std::uint32_t fused_fp16(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
#ifdef __CUDA_ARCH__
  std::uint32_t result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
#else
  const auto one = [](float x, float y, float z) {
    // Rounded to odd between: so the second rounding sees what the first one cut off.
    const double exact = double{x} * y + z;
    auto nearest = static_cast<float>(exact);
    if (nearest != exact && (std::bit_cast<std::uint32_t>(nearest) & 1) == 0) {
      nearest = std::nextafter(nearest, exact > nearest ? HUGE_VALF : -HUGE_VALF);
    }
    return nearest;
  };
  return pack_fp16(one(low_fp16(a), low_fp16(b), low_fp16(c)),
                   one(high_fp16(a), high_fp16(b), high_fp16(c)));
#endif
}
// Both products of two pairs.
KVLANE_DEVICE std::uint32_t times_fp16(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  std::uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
#else
  return pack_fp16(low_fp16(a) * low_fp16(b), high_fp16(a) * high_fp16(b));
#endif
}
// The smaller ones of two pairs; of a number and none, the number.
KVLANE_DEVICE std::uint32_t smaller_fp16(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  std::uint32_t result;
  asm("min.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
#else
  return pack_fp16(std::fmin(low_fp16(a), low_fp16(b)), std::fmin(high_fp16(a), high_fp16(b)));
#endif
}
// Both sums of two pairs.
KVLANE_DEVICE std::uint32_t add_fp16(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  std::uint32_t sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
#else
  return pack_fp16(low_fp16(a) + low_fp16(b), high_fp16(a) + high_fp16(b));
#endif
}

// a b + c, rounded once.
KVLANE_DEVICE float fused(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

// 1 / x within 2^-22 of itself, of numbers from 2^-126 to 2^126.
KVLANE_DEVICE float about_one_over(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0F / x;
#endif
}

// Rounded by itself. What `*` gives may become part of a fused multiply-add, on a GPU, and then a
// sum of it has other bits than on a CPU.
KVLANE_DEVICE float times(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

// Over the lanes whose numbers differ in their last bits alone: `width` of them, a power of two.
// Lanes add up by pairs, so all of them have the same bits.
template <class Thread>
KVLANE_DEVICE float sum_of_lanes(Thread& t, float x, int width = kWarpThreads) {
  KVLANE_UNROLL
  for (int by = 1; by < kWarpThreads; by *= 2) {
    if (by < width) x += float_of(t.shuffle(bits_of(x), t.lane() ^ by));
  }
  return x;
}

// The largest, over the whole warp.
template <class Thread>
KVLANE_DEVICE float max_of_lanes(Thread& t, float x) {
  KVLANE_UNROLL
  for (int by = 1; by < kWarpThreads; by *= 2) {
    x = larger(x, float_of(t.shuffle(bits_of(x), t.lane() ^ by)));
  }
  return x;
}

// Four floats at a multiple of 16 bytes.
struct alignas(16) Floats4 {
  float x[4];
};
KVLANE_DEVICE Floats4 load_floats(const float* at) {
#ifdef __CUDA_ARCH__
  const float4 v = *reinterpret_cast<const float4*>(at);
  return {{v.x, v.y, v.z, v.w}};
#else
  Floats4 v;
  std::memcpy(&v, at, sizeof(v));
  return v;
#endif
}
// Of memory that is read once, as load_once() has it.
KVLANE_DEVICE Floats4 load_floats_once(const float* at) {
#ifdef __CUDA_ARCH__
  const float4 v = __ldcs(reinterpret_cast<const float4*>(at));
  return {{v.x, v.y, v.z, v.w}};
#else
  return load_floats(at);
#endif
}
KVLANE_DEVICE void store_floats(float* at, const Floats4& v) {
#ifdef __CUDA_ARCH__
  *reinterpret_cast<float4*>(at) = make_float4(v.x[0], v.x[1], v.x[2], v.x[3]);
#else
  std::memcpy(at, &v, sizeof(v));
#endif
}

// Four bfloat16 at a multiple of 8 bytes: read once, and rounded half to even to be read soon.
KVLANE_DEVICE Floats4 load_bf16_once(const std::byte* at) {
  const Words2 pairs = load_pair(at);
  return {{float_of(pairs.w[0] << 16), float_of(pairs.w[0] & 0xFFFF0000U),
           float_of(pairs.w[1] << 16), float_of(pairs.w[1] & 0xFFFF0000U)}};
}
KVLANE_DEVICE void store_bf16(std::byte* at, const Floats4& v) {
  const std::uint32_t words[] = {pack_bf16(v.x[0], v.x[1]), pack_bf16(v.x[2], v.x[3])};
#ifdef __CUDA_ARCH__
  *reinterpret_cast<uint2*>(at) = make_uint2(words[0], words[1]);
#else
  std::memcpy(at, words, sizeof(words));
#endif
}

}  // namespace kvlane::gpu
