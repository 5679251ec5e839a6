// Pages that are opened once for all tiles, and pages that are computed on as they are.
// SPDX-License-Identifier: Apache-2.0
#include "attention/sealed_kernel.h"

#include <algorithm>

#include "attention/hack_complete_page.h"
#include "attention/hack_float_page.h"
#include "base/clock.h"
#include "quant/hack_format.h"
#include "quant/hadamard.h"
#include "quant/zack.h"

namespace kvlane {
namespace {

class OpeningKernel final : public SealedKernel {
 public:
  OpeningKernel(const KvFormat& format, Isa isa) : format_(format), kernel_(page_kernel(isa)) {}

  void prepare(SealedQuery& /*query*/, int /*rows*/) const override {}
  int value_dim(int /*layer*/, int /*kv_head*/) const override { return format_.shape().head_dim; }

  double attend(std::span<const SealedItem> items) const override {
    double seconds = 0;
    alignas(64) std::uint16_t opened[2 * kBlockTokens * kTileHeadDimMax];
    const SealedItem* last = nullptr;
    for (const SealedItem& item : items) {
      if (last == nullptr || last->slab != item.slab || last->kv_head != item.kv_head) {
        const TimePoint start = SteadyClock::now();
        format_.open_page(item.place, item.slab, item.kv_head, opened);
        seconds += seconds_since(start);
      }
      last = &item;
      PageQuery rows = item.query->rows;
      rows.next = item.next;
      kernel_(rows, opened, *item.tile);
    }
    return seconds;
  }

 private:
  const KvFormat& format_;
  const PageKernel kernel_;
};

class CodeKernel final : public SealedKernel {
 public:
  CodeKernel(const HackFormat& format, Isa isa)
      : shape_{format.options().k, format.options().v, format.layout(), format.shape().head_dim,
               format.options().mix},
        kernel_(kernel_of(format.options().compute, isa)),
        mix_(mix_kernel(isa)) {}

  void prepare(SealedQuery& query, int rows) const override {
    kernel_.prepare(shape_, query.rows, rows, query.hack);
  }

  double attend(std::span<const SealedItem> items) const override {
    HackItem coded[kSealedItemsMax];
    for (std::size_t i = 0; i < items.size(); ++i) {
      coded[i] = {&items[i].query->hack, items[i].slab + shape_.layout.bytes * items[i].kv_head,
                  items[i].next, items[i].tile, items[i].visible};
    }
    kernel_.attend(shape_, {coded, items.size()});
    return 0;
  }

  bool in_own_basis() const override { return shape_.mix; }
  int value_dim(int /*layer*/, int /*kv_head*/) const override { return shape_.head_dim; }
  void leave_own_basis(StateTile& tile) const override {
    if (shape_.mix) mix_(tile.out, tile.rows, tile.head_dim);
  }

 private:
  static HackKernel kernel_of(HackFormat::Compute compute, Isa isa) {
    switch (compute) {
      case HackFormat::Compute::kBf16: return hack_float_kernel(HackOperand::kCodes, isa);
      case HackFormat::Compute::kDequantise: return hack_float_kernel(HackOperand::kValues, isa);
      case HackFormat::Compute::kComplete: return hack_complete_kernel(isa);
      default: return hack_kernel(isa);
    }
  }

  const HackShape shape_;
  const HackKernel kernel_;
  const MixKernel mix_;
};

// Narrow rows, read where they are.
class NarrowKernel final : public SealedKernel {
 public:
  NarrowKernel(const ZackFormat& format, Isa isa) : format_(format), kernel_(page_kernel(isa)) {}

  void prepare(SealedQuery& /*query*/, int /*rows*/) const override {}

  double attend(std::span<const SealedItem> items) const override {
    for (const SealedItem& item : items) {
      const int layer = item.place.layer;
      PageQuery rows = item.query->rows;
      rows.key_dim = format_.widths(layer, item.kv_head).k;
      rows.next = item.next;
      const std::byte* const page = item.slab + format_.page_place(layer, item.kv_head).offset;
      kernel_(rows, reinterpret_cast<const std::uint16_t*>(page), *item.tile);
    }
    return 0;
  }

  bool in_own_basis() const override { return true; }
  int value_dim(int layer, int kv_head) const override { return format_.widths(layer, kv_head).v; }

  // Nothing is added to the dimensions that were dropped.
  void leave_own_basis(StateTile& tile) const override {
    const int from = tile.head_dim;
    const int to = format_.shape().head_dim;
    for (int row = tile.rows - 1; row >= 0; --row) {
      std::copy_backward(tile.out + row * from, tile.out + (row + 1) * from,
                         tile.out + row * to + from);
      std::fill(tile.out + row * to + from, tile.out + (row + 1) * to, 0.0F);
    }
    tile.head_dim = to;
  }

 private:
  const ZackFormat& format_;
  const PageKernel kernel_;
};

}  // namespace

std::unique_ptr<const SealedKernel> sealed_kernel(const KvFormat& format, Isa isa) {
  const auto* const hack = dynamic_cast<const HackFormat*>(&format);
  if (hack != nullptr) return std::make_unique<const CodeKernel>(*hack, isa);
  const auto* const zack = dynamic_cast<const ZackFormat*>(&format);
  if (zack != nullptr) return std::make_unique<const NarrowKernel>(*zack, isa);
  return std::make_unique<const OpeningKernel>(format, isa);
}

}  // namespace kvlane
