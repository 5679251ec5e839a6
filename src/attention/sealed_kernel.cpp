// Pages that are opened once for all tiles, and pages that are computed on as they are.
// SPDX-License-Identifier: Apache-2.0
#include "attention/sealed_kernel.h"

#include <algorithm>
#include <functional>
#include <map>
#include <ranges>
#include <tuple>
#include <vector>

#include "attention/hack_complete_page.h"
#include "attention/hack_float_page.h"
#include "attention/narrow_page.h"
#include "base/bf16.h"
#include "base/clock.h"
#include "quant/hack_format.h"
#include "quant/hadamard.h"
#include "quant/zack.h"
#include "quant/zack_kvquant.h"

namespace kvlane {
namespace {

class OpeningKernel : public SealedKernel {
 public:
  OpeningKernel(const KvFormat& format, Isa isa)
      : format_(format), dims_(format.shape().widths()), kernel_(page_kernel(isa)) {}

  void prepare(int /*layer*/, int /*kv_head*/, int /*rows*/,
               SealedQuery& /*query*/) const override {}
  int value_dim(int /*layer*/, int /*kv_head*/) const override { return dims_.v; }

  double attend(std::span<const SealedItem> items) const override {
    double seconds = 0;
    alignas(64) std::uint16_t opened[2 * kBlockTokens * kTileHeadDimMax];
    const SealedItem* last = nullptr;
    for (const SealedItem& item : items) {
      if (last == nullptr || last->slab != item.slab || last->kv_head != item.kv_head) {
        const TimePoint start = SteadyClock::now();
        open(item, opened);
        seconds += seconds_since(start);
      }
      last = &item;
      PageQuery rows = item.query->rows;
      rows.key_dim = key_dim(item.place.layer, item.kv_head);
      rows.next = item.next;
      kernel_(rows, opened, *item.tile);
    }
    return seconds;
  }

 protected:
  // To K[64][key_dim], then V[64][value_dim].
  virtual void open(const SealedItem& item, std::uint16_t* page) const {
    format_.open_page(item.place, item.slab, item.kv_head, page);
  }
  virtual int key_dim(int /*layer*/, int /*kv_head*/) const { return dims_.k; }

 private:
  const KvFormat& format_;
  const HeadWidths dims_;
  const PageKernel kernel_;
};

// Nothing is added to the dimensions that were dropped.
void widen(StateTile& tile, int to) {
  const int from = tile.head_dim;
  for (int row = tile.rows - 1; row >= 0; --row) {
    std::copy_backward(tile.out + row * from, tile.out + (row + 1) * from,
                       tile.out + row * to + from);
    std::fill(tile.out + row * to + from, tile.out + (row + 1) * to, 0.0F);
  }
  tile.head_dim = to;
}

// Opened as far as dimensions are kept, each head its own.
class OpeningKeptKernel final : public OpeningKernel {
 public:
  OpeningKeptKernel(const ZackKvquant& format, Isa isa)
      : OpeningKernel(format, isa), format_(format) {}

  int value_dim(int layer, int kv_head) const override { return format_.widths(layer, kv_head).v; }
  bool in_own_basis() const override { return true; }
  void leave_own_basis(StateTile& tile) const override { widen(tile, format_.shape().head_dim); }

 private:
  void open(const SealedItem& item, std::uint16_t* page) const override {
    format_.open_kept(item.place, item.slab, item.kv_head, page);
  }
  int key_dim(int layer, int kv_head) const override { return format_.widths(layer, kv_head).k; }

  const ZackKvquant& format_;
};

class CodeKernel final : public SealedKernel {
 public:
  CodeKernel(const HackFormat& format, Isa isa)
      : shape_{format.options().k,        format.options().v,        format.layout(),
               format.shape().widths().k, format.shape().widths().v, format.options().mix},
        kernel_(kernel_of(format.options().compute, isa)),
        mix_(mix_kernel(isa)) {}

  void prepare(int /*layer*/, int /*kv_head*/, int rows, SealedQuery& query) const override {
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

  // On a core with AVX-512 and 2 bits, one row: two and four are up to 5 % slower than three, and
  // one by a quarter (AVX2: 4 %). Four rows: three are up to 5 % slower than one.
  int pages_ahead(int rows) const override { return rows < 4 ? 3 : 1; }
  bool in_own_basis() const override { return shape_.mix; }
  int value_dim(int /*layer*/, int /*kv_head*/) const override { return shape_.value_dim; }
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

// Rows of few channels, read where they are.
class NarrowPagesKernel final : public SealedKernel {
 public:
  NarrowPagesKernel(HeadWidths dims, Isa isa) : dims_(dims), kernel_(narrow_kernel(isa)) {}

  void prepare(int /*layer*/, int /*kv_head*/, int rows, SealedQuery& query) const override {
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < dims_.k; ++i) {
        float x = 0;
        for (int part = 0; part < query.rows.parts; ++part) {
          x += to_float(bf16{query.rows.q[row][part * query.rows.part_stride + i]});
        }
        query.hack.values[row][i] = x * query.rows.scale;
      }
    }
  }
  int value_dim(int /*layer*/, int /*kv_head*/) const override { return dims_.v; }

  double attend(std::span<const SealedItem> items) const override {
    for (const SealedItem& item : items) {
      kernel_({item.query->hack.values, dims_, reinterpret_cast<const std::uint16_t*>(item.slab),
               item.next, item.tile});
    }
    return 0;
  }

 private:
  const HeadWidths dims_;
  const NarrowKernel kernel_;
};

// Pages of heads with widths, and perhaps codes, of their own: for each kind a kernel, to which a
// page is a slab of one head.
class HeadsKernel final : public SealedKernel {
 public:
  HeadsKernel(const ZackFormat& format, Isa isa)
      : format_(format), overlaps_(format.codes(0, 0) != nullptr) {
    const KvShape& shape = format.shape();
    // Heads of the same codes share their format.
    std::map<std::tuple<int, int, const KvFormat*>, const SealedKernel*> made;
    for (int layer = 0; layer < shape.layers; ++layer) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        const HeadWidths widths = format.widths(layer, head);
        const SealedKernel*& kernel = made[{widths.k, widths.v, format.codes(layer, head)}];
        if (kernel == nullptr) {
          kernels_.push_back(make(format.codes(layer, head), widths, isa));
          kernel = kernels_.back().get();
        }
        of_heads_.push_back(kernel);
      }
    }
  }

  void prepare(int layer, int kv_head, int rows, SealedQuery& query) const override {
    kernel(layer, kv_head).prepare(layer, 0, rows, query);
  }
  int value_dim(int layer, int kv_head) const override { return format_.widths(layer, kv_head).v; }

  double attend(std::span<const SealedItem> items) const override {
    SealedItem pages[kSealedItemsMax];
    const std::span<SealedItem> all(pages, items.size());
    std::ranges::transform(items, pages, [this](const SealedItem& item) { return page_of(item); });
    if (overlaps_) put_together(items, all);
    double seconds = 0;
    for (std::size_t i = 0, end = 0; i < all.size(); i = end) {
      const SealedKernel& same = kernel(all[i].place);
      while (end < all.size() && &kernel(all[end].place) == &same) ++end;
      seconds += same.attend(all.subspan(i, end - i));
    }
    return seconds;
  }

  int pages_ahead(int rows) const override {
    return kernels_.front()->pages_ahead(rows);  // all are of a kind
  }
  bool in_own_basis() const override { return true; }

  void leave_own_basis(StateTile& tile) const override {
    // In all of them alike: mixing knows the number of channels from the tile.
    kernels_.front()->leave_own_basis(tile);
    widen(tile, format_.shape().head_dim);
  }

 private:
  static std::unique_ptr<const SealedKernel> make(const KvFormat* codes, HeadWidths widths,
                                                  Isa isa) {
    if (codes != nullptr) return sealed_kernel(*codes, isa);
    return std::make_unique<const NarrowPagesKernel>(widths, isa);
  }
  const SealedKernel& kernel(int layer, int kv_head) const {
    return *of_heads_[std::size_t(layer) * format_.shape().kv_heads + kv_head];
  }
  const SealedKernel& kernel(SlabPlace page) const { return kernel(page.layer, page.kv_head); }

  // A slab of one head, as the head's kernel takes it.
  SealedItem page_of(const SealedItem& item) const {
    SealedItem page = item;
    page.place.kv_head = item.kv_head;
    page.slab += format_.page_place(item.place.layer, item.kv_head).offset;
    page.kv_head = 0;
    return page;
  }

  // The pages of a kernel one after another, which it may overlap; those of a tile stay in order.
  // So other pages are read later: the item so many after it, which may be of the same page.
  void put_together(std::span<const SealedItem> items, std::span<SealedItem> pages) const {
    const std::less<const SealedKernel*> before;
    std::ranges::stable_sort(pages, [&](const SealedItem& a, const SealedItem& b) {
      return before(&kernel(a.place), &kernel(b.place));
    });
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const auto ahead = static_cast<std::size_t>(pages_ahead(pages[i].tile->rows));
      if (i + ahead >= pages.size()) {
        pages[i].next = items[i].next;
        continue;
      }
      const SealedItem& next = pages[i + ahead];
      pages[i].next = {next.slab, format_.page_place(next.place.layer, next.place.kv_head).bytes};
    }
  }

  const ZackFormat& format_;
  const bool overlaps_;  // kernels of codes do, those of rows do not
  std::vector<std::unique_ptr<const SealedKernel>> kernels_;
  std::vector<const SealedKernel*> of_heads_;  // [layers][kv_heads]
};

}  // namespace

std::unique_ptr<const SealedKernel> sealed_kernel(const KvFormat& format, Isa isa) {
  const auto* const hack = dynamic_cast<const HackFormat*>(&format);
  if (hack != nullptr) return std::make_unique<const CodeKernel>(*hack, isa);
  const auto* const zack = dynamic_cast<const ZackFormat*>(&format);
  if (zack != nullptr) return std::make_unique<const HeadsKernel>(*zack, isa);
  const auto* const kvquant = dynamic_cast<const ZackKvquant*>(&format);
  if (kvquant != nullptr) return std::make_unique<const OpeningKeptKernel>(*kvquant, isa);
  return std::make_unique<const OpeningKernel>(format, isa);
}

}  // namespace kvlane
