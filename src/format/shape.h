// The shape of one worker's KV cache, and where its parts lie: block, slab, page.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "format/element.h"
#include "format/head_widths.h"

namespace kvlane {

// Tokens of a block: absolute positions 64*i ... 64*i+63. Part of every format and of block names.
inline constexpr int kBlockTokens = 64;

// SHA-256 over everything that makes KV of one model usable with another copy of it, and unusable
// with any other model: architecture parameters and weights. See model/checkpoint.h.
using ModelIdentity = std::array<std::byte, 32>;

// Layers and KV heads that this worker holds. A 16-bit page is K[64][head_dim], then
// V[64][value_dim]; a slab is kv_heads pages, one after another; a block is `layers` slabs.
struct KvShape {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  ElementType type = ElementType::kBf16;  // of open rows and 16-bit formats: kBf16 or kFp16
  // 0: head_dim, as in all models here. Formats that drop channels have others in them.
  int value_dim = 0;

  HeadWidths widths() const { return {head_dim, value_dim == 0 ? head_dim : value_dim}; }
  // Elements of K in one page, which is where V begins; and of V where it has as many channels.
  std::size_t page_plane_elements() const { return std::size_t{kBlockTokens} * head_dim; }
  std::size_t page_elements() const {
    return std::size_t{kBlockTokens} * (widths().k + widths().v);
  }
  std::size_t page_bytes() const { return page_elements() * element_bytes(type); }
  std::size_t slab_bytes() const { return page_bytes() * kv_heads; }
  std::size_t block_bytes() const { return slab_bytes() * layers; }

  friend bool operator==(const KvShape&, const KvShape&) = default;
};

// Blocks that hold `tokens` tokens.
constexpr int blocks_for(int tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

}  // namespace kvlane
