// Pages of `kvquant` in plain C++.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "base/bf16.h"
#include "quant/kvquant_slab.h"
#include "quant/slab_rows.h"

namespace kvlane::kvquant {
namespace {

// The outliers of a plane, token after token.
class OutlierCursor {
 public:
  explicit OutlierCursor(const Plane& plane) : plane_(plane) {}

  // Puts those of the next token into its row. Places that go back, and values that are not finite,
  // come from no encoder and are passed over.
  void apply(float* row) {
    const std::uint32_t first = token_ * static_cast<std::uint32_t>(plane_.head_dim);
    const std::uint32_t end = first + static_cast<std::uint32_t>(plane_.head_dim);
    for (; at_ < plane_.outlier_count; ++at_) {
      std::uint16_t entry[2];
      std::memcpy(entry, plane_.outliers + kOutlierBytes * at_, kOutlierBytes);
      if (entry[0] >= end) break;
      if (entry[0] >= first && is_finite_bf16(entry[1]))
        row[entry[0] - first] = to_float(bf16{entry[1]});
    }
    ++token_;
  }

 private:
  const Plane& plane_;
  std::size_t at_ = 0;
  std::uint32_t token_ = 0;
};

int code_of(const Plane& plane, int token, int channel) {
  std::uint16_t words[4];
  const std::size_t word_bytes = std::size_t(plane.bits) * sizeof(std::uint16_t);
  std::memcpy(
      words,
      plane.codes + token * row_bytes(plane.head_dim, plane.bits) + channel / kGroup * word_bytes,
      word_bytes);
  int code = 0;
  for (int bit = 0; bit < plane.bits; ++bit) code |= (words[bit] >> channel % kGroup & 1) << bit;
  return code;
}

void store_bf16(const float* row, const Plane& plane, int token) {
  std::uint16_t* const out = plane.rows + std::size_t(token) * plane.head_dim;
  for (int i = 0; i < plane.head_dim; ++i) out[i] = to_bf16(row[i]).bits;
}

}  // namespace

void open_keys_scalar(const Plane& plane, const float* middle, const float* reach,
                      const RopeAngles* angles) {
  OutlierCursor outliers(plane);
  float row[kHeadDimMax];
  for (int token = 0; token < kBlockTokens; ++token) {
    for (int i = 0; i < plane.head_dim; ++i) {
      row[i] = plane.values[code_of(plane, token, i)] * reach[i] + middle[i];
    }
    outliers.apply(row);
    if (angles != nullptr) rope(row, angles[token], plane.head_dim);
    store_bf16(row, plane, token);
  }
}

void open_values_scalar(const Plane& plane, const float* middle, const float* reach) {
  OutlierCursor outliers(plane);
  float row[kHeadDimMax];
  for (int token = 0; token < kBlockTokens; ++token) {
    for (int i = 0; i < plane.head_dim; ++i) {
      row[i] = plane.values[code_of(plane, token, i)] * reach[token] + middle[token];
    }
    outliers.apply(row);
    store_bf16(row, plane, token);
  }
}

}  // namespace kvlane::kvquant
