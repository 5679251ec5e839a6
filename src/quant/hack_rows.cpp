// Rows to floats and back in plain C++: the judge of all other tiers.
// SPDX-License-Identifier: Apache-2.0
#include "quant/hack_rows.h"

#include <algorithm>
#include <bit>

#include "base/bf16.h"
#include "format/shape.h"
#include "quant/hadamard.h"

namespace kvlane::hack {
namespace {

float widen(const std::uint16_t* rows, int head_dim, bool mix, float* values) {
  const int count = kBlockTokens * head_dim;
  for (int i = 0; i < count; ++i) values[i] = to_float(bf16{rows[i]});
  if (mix) mix_channels_scalar(values, kBlockTokens, head_dim);
  // Bits of magnitudes are in the order of magnitudes, those of NaN last.
  std::int32_t most = 0;
  for (int i = 0; i < count; ++i) {
    most = std::max(most, std::bit_cast<std::int32_t>(values[i]) & 0x7fffffff);
  }
  return std::bit_cast<float>(most);
}

void narrow(float* values, int head_dim, bool mix, std::uint16_t* rows) {
  if (mix) mix_channels_scalar(values, kBlockTokens, head_dim);
  for (int i = 0; i < kBlockTokens * head_dim; ++i) {
    rows[i] = values[i] == values[i] ? to_bf16(values[i]).bits : kNanBf16;
  }
}

}  // namespace

RowKernels row_kernels_scalar() { return {widen, narrow}; }

}  // namespace kvlane::hack
