// KV formats with linear codes: FP8, MX, int8, int4 and KIVI. One class; a format is the choice of
// codes, groups and metadata for K and for V (spec/slab_linear.md, section 6).
//
//   fp8_e4m3, fp8_e5m2              a power of two as scale of a head's K or V in a slab
//   mxfp8_e4m3, mxfp8_e5m2, mxfp6_e2m3, mxfp6_e3m2, mxfp4
//                                   OCP MX 1.0: blocks of 32 channels of a token
//   int8:sym=1, int4:sym=0          a scale for each token and head; sym=0 has a minimum, too. The
//                                   presets are what engines mean by the bare words: vLLM and
//                                   TensorRT-LLM have symmetric int8, LMDeploy asymmetric int4
//   kivi:bits=2,group=32            KIVI's: keys by channel in groups of tokens, values by token in
//                                   groups of channels; 2 or 4 bits, groups of 32 or 64
//
// All take sink=n and recent=n. How `kivi` differs from the public code: there the last tokens (up
// to 32 or 128, its residual) stay in 16 bits, keys and values by different rules, and a prompt is
// computed on unquantised K and V. Here every format follows one rule: a query reads its own block
// of 64 tokens in 16 bits, `recent` blocks before it if asked for, and all others sealed, in
// prompts too. So one pass over a text equals decoding it step by step, and a block can be shared
// by all who have its tokens; recent=1 or 2 comes closest to the residual of the code.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>

#include "quant/format_text.h"
#include "quant/kv_format.h"
#include "quant/linear_kernels.h"
#include "quant/packed_sections.h"

namespace kvlane {

class LinearFormat final : public KvFormat {
 public:
  // head_dim is at most linear::kHeadDimMax; `isa` is supported by this processor.
  LinearFormat(std::string name, const KvShape& shape, const KvWindow& window,
               const linear::Plane& k, const linear::Plane& v, Isa isa);

  // Refuses, besides what is not finite, magnitudes above 65504 in formats with fp16 metadata.
  Status seal(SlabPlace place, const std::uint16_t* rows, std::byte* slab) const override;
  // A group whose scale or minimum is not finite reads as NaN.
  void open_page(SlabPlace place, const std::byte* slab, int kv_head,
                 std::uint16_t* page) const override;
  // The same for every slab.
  std::size_t used_bytes(SlabPlace place, const std::byte* slab) const override;
  // The sections of a page without gaps, page after page. Refuses any other length.
  void pack(SlabPlace place, const std::byte* slab, std::byte* packed) const override;
  Status unpack(SlabPlace place, ByteView packed, std::byte* slab) const override;

  const linear::Plane& k() const { return k_; }
  const linear::Plane& v() const { return v_; }
  const linear::PageLayout& layout() const { return layout_; }

 private:
  std::array<SlabSection, 4> sections() const;

  const linear::Plane k_;
  const linear::Plane v_;
  const linear::PageLayout layout_;
  const linear::SealKernel seal_k_, seal_v_;
  const linear::OpenKernel open_k_, open_v_;
};

// The format of this family that `text` says. Errors name what is wrong.
Result<std::shared_ptr<const KvFormat>> make_linear_format(FormatText text,
                                                           const KvFormatContext& context);

}  // namespace kvlane
