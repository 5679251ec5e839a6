// Chooses who computes a product.
// SPDX-License-Identifier: Apache-2.0
#include "ops/linear.h"

#include <limits>

namespace kvlane {

int LinearWeights::rows() const {
  const std::size_t row_bytes = std::size_t(k) * element_bytes(type);
  std::size_t total = 0;
  for (const ByteView part : parts) {
    if (row_bytes == 0 || part.size() % row_bytes != 0) return -1;
    total += part.size() / row_bytes;
  }
  return total > std::numeric_limits<int>::max() ? -1 : static_cast<int>(total);
}

Result<std::unique_ptr<Linear>> Linear::pack(Isa isa, const LinearWeights& weights) {
  const int n = weights.rows();
  if (n <= 0) {
    return invalid_argument("weights are not a whole number of rows of " +
                            std::to_string(weights.k) + " elements");
  }
  if (!weights.bias.empty() && weights.bias.size() != std::size_t(n)) {
    return invalid_argument("a bias of " + std::to_string(weights.bias.size()) +
                            " values is not one of " + std::to_string(n) + " outputs");
  }
  if (weights.type != ElementType::kBf16 && weights.type != ElementType::kFp16 &&
      weights.type != ElementType::kF32) {
    return unsupported(std::string("there is no product with weights of type ") +
                       element_name(weights.type));
  }
  return isa == Isa::kScalar ? pack_linear_scalar(weights, n) : pack_linear_onednn(isa, weights, n);
}

std::string linear_description(Isa isa) {
  return isa == Isa::kScalar ? "scalar loop" : onednn_description(isa);
}

}  // namespace kvlane
