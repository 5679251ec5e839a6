// The instruction-set tier that kernels run on: chosen once, when a model is loaded.
//
// Within one tier the same input gives the same bits; between tiers results agree within rounding.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>

#include "kvlane/status.h"

namespace kvlane {

// Each can run what those before it can; what has no kernels for a tier runs those of the one
// before.
enum class Isa {
  kScalar,      // plain C++, the judge of all others
  kAvx2,        // AVX2, FMA and F16C
  kAvx512,      // AVX-512 F, BW, DQ and VL: floats, and products in F32
  kAvx512Bf16,  // and VBMI, VBMI2 and VNNI for codes, BF16 for products
};

// Whether this is a build for x86-64. For others the kernels of tiers but kScalar are not compiled:
// who chooses names them inside `if constexpr (kX86)`, where the linker does not miss them.
#ifdef __x86_64__
inline constexpr bool kX86 = true;
#else
inline constexpr bool kX86 = false;
#endif

inline constexpr std::array kAllIsas = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};

std::string_view isa_name(Isa isa);

// Whether this processor can run the tier.
bool isa_supported(Isa isa);

// The best tier this processor can run: what "auto" means.
Isa best_isa();

// The tier called `name` ("auto": best_isa()). Fails with kInvalidArgument for an
// unknown name and kUnsupported when the processor lacks it.
Result<Isa> select_isa(std::string_view name);

}  // namespace kvlane
