// Decode attention on codes on a GPU: queries are prepared, then units of sealed pages leave
// partial states, which attention/decode_gpu.h merges together with those of rows. Device code is
// in attention/hack_decode_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <utility>

#include "attention/decode_batch.h"
#include "attention/hack_decode_batch.h"
#include "attention/hack_kind.h"
#include "attention/hack_page.h"
#include "gpu/device.h"
#include "plan/decode_units.h"

namespace kvlane {

// What kernels there are: each kind in each width, head_dim up to it, as far as registers suffice.
inline constexpr std::array<int, 3> kHackDecodeDims = {64, 128, 256};
inline constexpr std::array<HackKind, 6> kHackKinds = {
    {{2, 2, 0}, {4, 4, 0}, {2, 2, 64}, {4, 4, 64}, {2, 2, 32}, {2, 2, 128}}};

constexpr int hack_head_dim_max(const HackKind& kind) {
  return kind.key_bits == 2 && kind.partition != 32 ? 256 : 128;
}

// Blocks of threads that a multiprocessor takes, as many as registers and shared memory allow on
// sm_90; before it sometimes less.
constexpr int hack_decode_blocks(const HackKind& kind, int dim) {
  if (dim == 64) return 4;
  if (dim == 256 || kind.partition == 32) return 2;
  if (kind.partition == 0) return kind.key_bits == 2 ? 4 : 2;
  return kind.key_bits == 2 ? 3 : 2;
}

// The narrowest that head_dim fits into.
constexpr int hack_decode_dim(int head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}

// What a kernel is compiled for. By both there are kernels of heads as wide as they are, and of
// these some for groups of up to four query heads.
template <int kDimension, int kKey, int kValue, int kPart, bool kAll, int kHeadsOfLane>
struct HackDecodeKernel {
  static constexpr int kDim = kDimension;
  static constexpr int kKeyBits = kKey;
  static constexpr int kValueBits = kValue;
  static constexpr int kPartition = kPart;
  static constexpr bool kWhole = kAll;
  static constexpr int kHeads = kHeadsOfLane;
};

// Calls body(HackDecodeKernel<...>{}) if that is the index-th kernel's kind and width.
template <std::size_t kIndex, class Body>
void with_hack_decode_kernel_at(const HackKind& kind, int head_dim, int group, const Body& body) {
  constexpr HackKind kKind = kHackKinds[kIndex / kHackDecodeDims.size()];
  constexpr int kDim = kHackDecodeDims[kIndex % kHackDecodeDims.size()];
  if constexpr (kDim <= hack_head_dim_max(kKind)) {
    if (kKind != kind || kDim != hack_decode_dim(head_dim)) return;
    constexpr int kKey = kKind.key_bits, kValue = kKind.value_bits, kPart = kKind.partition;
    if constexpr (kPart == 0) {
      if (head_dim == kDim && group <= kDecodeColumns / 2) {
        return body(HackDecodeKernel<kDim, kKey, kValue, kPart, true, 1>{});
      }
      if (head_dim == kDim) return body(HackDecodeKernel<kDim, kKey, kValue, kPart, true, 2>{});
    }
    body(HackDecodeKernel<kDim, kKey, kValue, kPart, false, 2>{});
  }
}
template <class Body, std::size_t... kIndices>
void with_hack_decode_kernel_of(const HackKind& kind, int head_dim, int group, const Body& body,
                                std::index_sequence<kIndices...> /*all*/) {
  (with_hack_decode_kernel_at<kIndices>(kind, head_dim, group, body), ...);
}

// Calls body(HackDecodeKernel<...>{}) for the kernel of this kind, width and number of query heads
// a KV head, if there is one.
template <class Body>
void with_hack_decode_kernel(const HackKind& kind, int head_dim, int group, const Body& body) {
  with_hack_decode_kernel_of(
      kind, head_dim, group, body,
      std::make_index_sequence<kHackKinds.size() * kHackDecodeDims.size()>());
}

// The kind of a format's pages. kInvalidArgument, with those that there are, where it has no
// kernel.
Result<HackKind> hack_kind(const HackShape& shape);

// kInvalidArgument, with those that there are, for a kind without a kernel.
Status check_hack_kind(const HackKind& kind);

// For plan_decode(). kInvalidArgument for shapes that have no kernel.
Result<DecodeShape> hack_decode_shape(const HackKind& kind, int heads, int kv_heads, int head_dim,
                                      int multiprocessors);

// What `prepare` points to lies in memory that the stream's device can reach, until the stream has
// done the launch. Returns when the launch is in the stream. kInvalidArgument for a head_dim that
// is not a multiple of 16 up to 256 and for addresses that are not multiples of 16. Never launched
// early: when it begins, what attention behind it reads before it ends is there.
Status prepare_hack_on_gpu(const HackPrepare& prepare, const gpu::Stream& stream);

// The same. `units` is [count], from plan_decode() with the shape above, of sequences in whole
// blocks. Slabs begin at multiples of 64. The launch may begin before the one in front of it has
// ended (gpu/early_launch.h): that may make the queries, but neither units, tables nor slabs.
Status attend_hack_on_gpu(const HackKind& kind, const HackDecodeBatch& batch,
                          const DecodeUnit* units, std::size_t count, const gpu::Stream& stream);

}  // namespace kvlane
