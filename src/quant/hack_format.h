// KV formats that attention computes on as they are (spec/hack.md):
//
//   hack:k=2,v=2          bits of K and of V: 2, 4 or 8. A value is m + s * (code - middle), m of
//   its
//                         channel in the block, s of its token
//   hack:k=2,v=2,p=64     as HACK has it: m + s * code, m and s of a token's 32, 64 or 128 channels
//                         (K), of a channel's 32 or 64 tokens (V). "hack:paper" is short for it
//     round=rn|sr         with p: to the nearest code, or up or down by chance, right on average
//     mix=0|1             whether channels are mixed by a Hadamard transform; usual without p
//     meta=fp16|bf16      the type of minimum and scale
//     compute=int8        Q and P in 8 bits, products of integers
//     compute=bf16        Q and P as they are, products of floats with codes: more exact
//     compute=dequantise  each value is made in registers, in floats: for comparison
//     compute=complete    with p: the paper's own arithmetic, Q and P in 8 bits with a minimum
//     sums=stored         with compute=complete: sums of codes lie in slabs, but never travel
//     sums=computed       they are taken whenever they are needed
//     sink=n, recent=n    blocks that attention reads in 16 bits
//   and with p, as the paper or its ablations have a query's own block, which else is in 16 bits:
//     ktail=code          keys are coded at once, not when the block is complete
//     rqe=0               V, too: coded anew whenever a token comes
//     diag=int8           once it is complete, the own block is read as the slab it became
//
// As HACK (SPEC 1), except that a query reads its own block of 64 tokens in 16 bits: then nothing
// that was sealed holds later tokens, chunks and steps give the same bits, and blocks can be
// shared.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>

#include "quant/format_text.h"
#include "quant/hack_kernels.h"
#include "quant/hack_rows.h"
#include "quant/hack_sums.h"
#include "quant/kv_format.h"
#include "quant/packed_sections.h"

namespace kvlane {

class HackFormat final : public KvFormat {
 public:
  enum class Compute : std::uint8_t { kInt8, kBf16, kDequantise, kComplete };
  struct Options {
    hack::Plane k, v;
    bool mix;
    hack::Rounding rounding;
    Compute compute;
    bool sums = false;  // whether slabs have them
    // Of a query's own block: rows of K, rows of V as codes; the slab, once there is one.
    bool code_own_keys = false, code_own_values = false, seal_own = false;
  };

  // head_dim is a multiple of hack::kHeadDimStep, at most hack::kHeadDimMax; `isa` is supported by
  // this processor.
  HackFormat(std::string name, const KvShape& shape, const KvWindow& window, const Options& options,
             Isa isa, int kv_head_first = 0);

  // Refuses, besides what is not finite, magnitudes that minima cannot have.
  Status seal(SlabPlace place, const std::uint16_t* rows, std::byte* slab) const override;
  OwnBlock own_block() const override;
  void own_page(SlabPlace place, const std::uint16_t* rows, int kv_head, int tokens,
                std::uint16_t* page) const override;
  // Rounds to BF16. What has no finite minimum or scale reads as something not finite; every NaN is
  // hack::kNanBf16.
  void open_page(SlabPlace place, const std::byte* slab, int kv_head,
                 std::uint16_t* page) const override;
  // The same for every slab.
  std::size_t used_bytes(SlabPlace place, const std::byte* slab) const override;
  // The sections of a page without gaps, and without sums, page after page. Refuses any other
  // length.
  void pack(SlabPlace place, const std::byte* slab, std::byte* packed) const override;
  bool packs_as_it_lies(int layer) const override;
  Status unpack(SlabPlace place, ByteView packed, std::byte* slab) const override;

  const Options& options() const { return options_; }
  const hack::PageLayout& layout() const { return layout_; }

 private:
  std::array<SlabSection, 4> sections() const;
  Status seal_part(SlabPlace place, int kv_head, hack::Part part, const std::uint16_t* rows,
                   std::byte* page) const;
  void open_part(hack::Part part, const std::byte* from, std::uint16_t* rows) const;
  void add_sums(std::byte* page) const;

  const Options options_;
  const int kv_head_first_;  // of the model, the first head here
  const hack::PageLayout layout_;
  const hack::RowKernels rows_;
  const hack::SealKernel seal_k_, seal_v_;
  const hack::OpenKernel open_k_, open_v_;
  const hack::SumKernel sum_;
};

// The format of this family that `text` says. Errors name what is wrong.
Result<std::shared_ptr<const KvFormat>> make_hack_format(FormatText text,
                                                         const KvFormatContext& context);

}  // namespace kvlane
