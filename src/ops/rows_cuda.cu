// Kernels of row operations. All but `turned` wait for memory; bytes that a row moves, of n values
// (of hidden, ffn, or the product of Q, K and V):
//   embed   2 n read, 4 n written
//   norm    4 n read, 4 n more with `add`; 2 n written, 4 n more with `add`; weights, 4 n, are in
//           the second-level cache after the first rows. With `add` and norm 14 n
//   qkv     4 n read, 2 n written; 4 head_dim of angles from the caches
//   turned  the same and 4 head_dim^2 / 32 a head of matrices from the caches
//   silu    8 n read, 2 n written
// Bytes of loads on their way, of a multiprocessor as full as registers allow: 16 KB in embed,
// whose reads are a third of what it moves, 64 in silu and qkv; with `add` 64 KB in norm of up to
// 1024 values, 96 up to 4096, 128 beyond, half of that without. An H200 needs 40 KB at 0.8 us of
// latency. Exponential and division make silu some 30 instructions a value, half of what fits into
// the time of its 10 bytes.
//
// With a matrix behind the embedding (`turned`) a head takes 2 head_dim^2 operations, which bound
// it: at head_dim 128, 32 + 8 heads and 8192 rows 10.7 GFLOP a layer, 0.2 ms of what an H200 does
// in F32 at best, beside 0.15 ms for the 0.67 GB of matrices at 4.5 TB/s; the products of such a
// layer take 5 ms or more. A thread has 64 operations for eight loads of 16 bytes, half of which
// lanes share.
//
// A row has one block in norm, and one a 1024 values, or 4 to 128 heads, in the others: one row,
// as in decoding, is spread as well.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda_status.h"
#include "gpu/cuda_thread.h"
#include "ops/rotated_qkv_device.h"
#include "ops/rows_device.h"
#include "ops/rows_gpu.h"

namespace kvlane {

namespace {

constexpr int kThreads = 256;
constexpr int kBlockValues = kThreads * kRowValues;
// Fewer, so that the heads of one row are several blocks.
constexpr int kQkvThreads = 128;

__global__ void __launch_bounds__(kThreads) embed_rows(const EmbedRows embed) {
  gpu::CudaThread thread;
  embed_values(thread, embed, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
}

template <int kParts>
__global__ void __launch_bounds__(norm_threads_max(kParts)) norm_rows(const NormRows norm) {
  __shared__ NormShared shared;
  gpu::CudaThread thread;
  norm_row<kParts>(thread, norm, static_cast<int>(blockIdx.x), shared);
}

__global__ void __launch_bounds__(kQkvThreads)
    write_qkv_rows(const QkvRows qkv, const int lanes_log2) {
  gpu::CudaThread thread;
  write_heads(thread, qkv, static_cast<int>(blockIdx.x),
              static_cast<int>(blockIdx.y) * (kQkvThreads >> lanes_log2), lanes_log2);
}

__global__ void __launch_bounds__(kTurnedThreads)
    write_turned_rows(const QkvRows qkv, const int lanes_log2) {
  __shared__ TurnedHeads shared;
  gpu::CudaThread thread;
  write_turned_heads(thread, qkv, static_cast<int>(blockIdx.y),
                     static_cast<int>(blockIdx.x) * kTurnedHeads, lanes_log2, shared);
}

__global__ void __launch_bounds__(kThreads) silu_rows(const SiluRows silu) {
  gpu::CudaThread thread;
  silu_values(thread, silu, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
}

cudaStream_t handle_of(const gpu::Stream& stream) {
  return static_cast<cudaStream_t>(stream.handle());
}

// Blocks for each of `rows` rows of `length`, `block` of it each.
dim3 grid_of(int rows, int length, int block) {
  return {static_cast<unsigned>(rows), static_cast<unsigned>((length - 1) / block + 1)};
}

using NormKernel = void (*)(const NormRows);

NormKernel norm_kernel(int parts) {
  switch (parts) {
    case 1: return norm_rows<1>;
    case 2: return norm_rows<2>;
    default: return norm_rows<4>;
  }
}

}  // namespace

Status embed_on_gpu(const EmbedRows& embed, const gpu::Stream& stream) {
  KVLANE_TRY(check_rows(embed));
  if (embed.rows == 0) return {};
  KVLANE_TRY(gpu::use_device(stream.device()));
  embed_rows<<<grid_of(embed.rows, embed.hidden, kBlockValues), kThreads, 0, handle_of(stream)>>>(
      embed);
  return gpu::launched("embedding");
}

Status norm_on_gpu(const NormRows& norm, const gpu::Stream& stream) {
  KVLANE_TRY(check_rows(norm));
  if (norm.rows == 0) return {};
  KVLANE_TRY(gpu::use_device(stream.device()));
  const NormKernel kernel = norm_kernel(norm_parts(norm.n));
  kernel<<<static_cast<unsigned>(norm.rows), static_cast<unsigned>(norm_threads(norm.n)), 0,
           handle_of(stream)>>>(norm);
  return gpu::launched("norm");
}

Status write_qkv_on_gpu(const QkvRows& qkv, const gpu::Stream& stream) {
  KVLANE_TRY(check_rows(qkv));
  if (qkv.rows == 0) return {};
  KVLANE_TRY(gpu::use_device(stream.device()));
  const int lanes_log2 = qkv_lanes_log2(qkv.head_dim);
  if (qkv.rotations != nullptr) {
    const int heads = qkv.rows * (qkv.heads / qkv.kv_heads + 1);
    const dim3 blocks(static_cast<unsigned>((heads - 1) / kTurnedHeads + 1),
                      static_cast<unsigned>(qkv.kv_heads));
    write_turned_rows<<<blocks, kTurnedThreads, 0, handle_of(stream)>>>(qkv, lanes_log2);
    return gpu::launched("norms, rotation and change of basis of heads");
  }
  const dim3 grid = grid_of(qkv.rows, qkv.heads + 2 * qkv.kv_heads, kQkvThreads >> lanes_log2);
  write_qkv_rows<<<grid, kQkvThreads, 0, handle_of(stream)>>>(qkv, lanes_log2);
  return gpu::launched("norms and rotation of heads");
}

Status silu_on_gpu(const SiluRows& silu, const gpu::Stream& stream) {
  KVLANE_TRY(check_rows(silu));
  if (silu.rows == 0) return {};
  KVLANE_TRY(gpu::use_device(stream.device()));
  silu_rows<<<grid_of(silu.rows, silu.ffn, kBlockValues), kThreads, 0, handle_of(stream)>>>(silu);
  return gpu::launched("activation");
}

}  // namespace kvlane
