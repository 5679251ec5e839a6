// Pages that are opened once for all tiles, and pages that are computed on as they are.
// SPDX-License-Identifier: Apache-2.0
#include "attention/sealed_kernel.h"

#include "quant/hack_format.h"
#include "quant/hadamard.h"

namespace kvlane {
namespace {

class OpeningKernel final : public SealedKernel {
 public:
  OpeningKernel(const KvFormat& format, Isa isa) : format_(format), kernel_(page_kernel(isa)) {}

  void prepare(SealedQuery& /*query*/, int /*rows*/) const override {}

  void attend(const SealedPage& page, std::span<const SealedQuery> queries,
              std::span<StateTile> tiles) const override {
    alignas(64) std::uint16_t opened[2 * kBlockTokens * kTileHeadDimMax];
    format_.open_page(page.place, page.slab, page.kv_head, opened);
    for (std::size_t i = 0; i < queries.size(); ++i) {
      PageQuery rows = queries[i].rows;
      rows.next = page.next;
      kernel_(rows, opened, tiles[i]);
    }
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
        kernel_(hack_kernel(isa)) {}

  void prepare(SealedQuery& query, int rows) const override {
    kernel_.prepare(shape_, query.rows, rows, query.hack);
  }

  void attend(const SealedPage& page, std::span<const SealedQuery> queries,
              std::span<StateTile> tiles) const override {
    const std::byte* const codes = page.slab + shape_.layout.bytes * page.kv_head;
    for (std::size_t i = 0; i < queries.size(); ++i) {
      kernel_.attend(shape_, queries[i].hack, codes, page.next, tiles[i]);
    }
  }

  bool in_own_basis() const override { return shape_.mix; }
  void leave_own_basis(StateTile& tile) const override {
    if (shape_.mix) mix_channels(tile.out, tile.rows, tile.head_dim);
  }

 private:
  const HackShape shape_;
  const HackKernel kernel_;
};

}  // namespace

std::unique_ptr<const SealedKernel> sealed_kernel(const KvFormat& format, Isa isa) {
  const auto* const hack = dynamic_cast<const HackFormat*>(&format);
  if (hack != nullptr && hack->options().compute == HackFormat::Compute::kInt8) {
    return std::make_unique<const CodeKernel>(*hack, isa);
  }
  return std::make_unique<const OpeningKernel>(format, isa);
}

}  // namespace kvlane
