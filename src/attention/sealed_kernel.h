// How attention reads sealed pages of a format: opened to rows, or as they are.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>

#include "attention/hack_page.h"
#include "quant/kv_format.h"

namespace kvlane {

// A tile's rows, and what a kernel has made of them.
struct SealedQuery {
  PageQuery rows;  // of head_dim channels
  HackQuery hack;
};

// A page of one KV head for one tile.
struct SealedItem {
  SlabPlace place;
  const std::byte* slab;
  int kv_head;
  std::span<const std::byte> next;  // the memory of a later page, see pages_ahead(), or nothing
  const SealedQuery* query;
  StateTile* tile;
  // As in HackItem. Only pages of formats that say own_block().sealed come with some.
  const int* visible = nullptr;
};

// Items that kernels are given at once.
inline constexpr int kSealedItemsMax = 128;

// Immutable, thread-safe. A row's arithmetic is the same whatever else is computed with it.
class SealedKernel {
 public:
  virtual ~SealedKernel() = default;
  SealedKernel() = default;
  SealedKernel(const SealedKernel&) = delete;
  SealedKernel& operator=(const SealedKernel&) = delete;

  // Makes of query.rows, which stay as they are, what attend() needs for pages of this layer and KV
  // head; the tile will have `rows` rows.
  virtual void prepare(int layer, int kv_head, int rows, SealedQuery& query) const = 0;
  // Adds pages to the states of tiles, in this order. Items of one page are neighbours. Gives the
  // seconds that went into opening pages.
  virtual double attend(std::span<const SealedItem> items) const = 0;

  // An item's `next` is the page that is read so many pages after it, for a tile of `rows` rows.
  // With few rows a page is done before another one has come from memory.
  virtual int pages_ahead(int /*rows*/) const { return 1; }

  // Whether attend() gives outputs in a basis of its own, which must not meet those of rows before
  // leave_own_basis() was called.
  virtual bool in_own_basis() const { return false; }
  // Channels of outputs in that basis.
  virtual int value_dim(int layer, int kv_head) const = 0;
  // To outputs of head_dim channels.
  virtual void leave_own_basis(StateTile& /*tile*/) const {}
};

// The kernel for a format, which outlives it.
std::unique_ptr<const SealedKernel> sealed_kernel(const KvFormat& format, Isa isa);

}  // namespace kvlane
