// Which pages of codes decode attention on a GPU has kernels for, and what its work is cut by.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "attention/hack_decode_gpu.h"

namespace kvlane {
namespace {

std::string text_of(const HackKind& kind) {
  return "k=" + std::to_string(kind.key_bits) + ",v=" + std::to_string(kind.value_bits) +
         (kind.partition == 0 ? "" : ",p=" + std::to_string(kind.partition));
}

bool known(const HackKind& kind) {
  return std::find(kHackKinds.begin(), kHackKinds.end(), kind) != kHackKinds.end();
}

Status no_kernel(const HackKind& kind) {
  std::string there;
  for (const HackKind& other : kHackKinds) there += (there.empty() ? "" : "; ") + text_of(other);
  return invalid_argument("no attention on codes on a GPU for " + text_of(kind) + ", but for " +
                          there);
}

}  // namespace

Status check_hack_kind(const HackKind& kind) { return known(kind) ? Status() : no_kernel(kind); }

Result<HackKind> hack_kind(const HackShape& shape) {
  const bool both = shape.k.axis == hack::Axis::kBoth;
  const HackKind kind{shape.k.bits, shape.v.bits, both ? 0 : shape.k.partition};
  if (shape.k.meta != hack::Meta::kFp16 || shape.v.meta != hack::Meta::kFp16) {
    return invalid_argument("attention on codes on a GPU needs metadata in fp16");
  }
  if ((shape.v.axis == hack::Axis::kBoth) != both ||
      (!both && shape.v.partition != std::min(kind.partition, kBlockTokens)) || !known(kind)) {
    return no_kernel(kind);
  }
  return kind;
}

Result<DecodeShape> hack_decode_shape(const HackKind& kind, int heads, int kv_heads, int head_dim,
                                      int multiprocessors) {
  if (kv_heads < 1 || heads < 1 || heads % kv_heads != 0 || multiprocessors < 1) {
    return invalid_argument("no attention of " + std::to_string(heads) + " heads over " +
                            std::to_string(kv_heads) + " KV heads on " +
                            std::to_string(multiprocessors) + " multiprocessors");
  }
  KVLANE_TRY(check_hack_kind(kind));
  if (head_dim < hack::kHeadDimStep || head_dim > hack_head_dim_max(kind) ||
      head_dim % hack::kHeadDimStep != 0) {
    return invalid_argument("attention on codes on a GPU with " + text_of(kind) +
                            " needs a head_dim that is a multiple of 16 up to " +
                            std::to_string(hack_head_dim_max(kind)) + ", not " +
                            std::to_string(head_dim));
  }
  // A sequence alone keeps every fourth place of the device busy: units four times as long begin
  // and end less often.
  const int places = multiprocessors * hack_decode_blocks(kind, hack_decode_dim(head_dim));
  return DecodeShape{.heads = heads,
                     .kv_heads = kv_heads,
                     .queries = kDecodeColumns,
                     .units = std::max(1, places / 4),
                     .step = kDecodeWarps,
                     .most = kDecodeWarps * kHackWarpPages};
}

}  // namespace kvlane
