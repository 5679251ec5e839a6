// The product as a plain loop: slow, portable, and the judge of the fast one.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "base/bf16.h"
#include "cpu/memory.h"
#include "cpu/parallel.h"
#include "ops/linear.h"

namespace kvlane {
namespace {

// Eight partial sums in a fixed order: the compiler may use its vectors, the result never changes.
constexpr int kLanes = 8;

template <class Input, class Weight>
float dot(const Input* x, const Weight* w, int k) {
  float sum[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      sum[lane] += to_float(x[i + lane]) * to_float(w[i + lane]);
    }
  }
  for (int lane = 0; i < k; ++i, ++lane) sum[lane] += to_float(x[i]) * to_float(w[i]);
  return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

// Lets float pass through the same template as the 16-bit types.
struct Float32 {
  float value;
};
float to_float(Float32 x) { return x.value; }

template <class Input, class Weight>
class ScalarLinear final : public Linear {
 public:
  ScalarLinear(int n, int k, ElementType input_type, PageBuffer memory, std::vector<float> bias)
      : Linear(n, k, input_type, memory.bytes(), std::move(bias)),
        memory_(std::move(memory)),
        weights_(memory_.as<Weight>()) {}
  // Over those of another.
  ScalarLinear(int n, int k, ElementType input_type, const Weight* weights, std::vector<float> bias)
      : Linear(n, k, input_type, std::size_t(n) * k * sizeof(Weight), std::move(bias)),
        weights_(weights) {}

  Status apply(const void* x, float* y, int rows) const override {
    const auto* inputs = static_cast<const Input*>(x);
    // A few weight rows at a time stay in the cache while all input rows pass.
    parallel_ranges(n_, 16, [&](std::int64_t first, std::int64_t last) {
      for (int row = 0; row < rows; ++row) {
        for (std::int64_t out = first; out < last; ++out) {
          const float sum = dot(inputs + std::size_t(row) * k_, weights_ + out * k_, k_);
          y[std::size_t(row) * n_ + out] = bias_.empty() ? sum : sum + bias_[out];
        }
      }
    });
    return {};
  }

  Result<std::unique_ptr<Linear>> part(int first, int count) const override {
    return std::unique_ptr<Linear>(std::make_unique<ScalarLinear>(
        count, k_, input_type_, weights_ + std::size_t(first) * k_, bias_part(first, count)));
  }

  void weights_of(int output, float* row) const override {
    const Weight* const weights = weights_ + std::size_t(output) * k_;
    for (int i = 0; i < k_; ++i) row[i] = to_float(weights[i]);
  }

 private:
  PageBuffer memory_;      // empty over the weights of another
  const Weight* weights_;  // [n][k], as in the checkpoint
};

}  // namespace

Result<std::unique_ptr<Linear>> pack_linear_scalar(const LinearWeights& weights, int n) {
  std::size_t bytes = 0;
  for (const ByteView part : weights.parts) bytes += part.size();
  KVLANE_ASSIGN(PageBuffer copy, PageBuffer::allocate(bytes));
  std::size_t at = 0;
  for (const ByteView part : weights.parts) {
    std::memcpy(copy.data() + at, part.data(), part.size());
    at += part.size();
  }
  std::unique_ptr<Linear> linear;
  switch (weights.type) {
    case ElementType::kBf16:
      linear = std::make_unique<ScalarLinear<bf16, bf16>>(n, weights.k, ElementType::kBf16,
                                                          std::move(copy), weights.bias);
      break;
    case ElementType::kFp16:
      linear = std::make_unique<ScalarLinear<Float32, fp16>>(n, weights.k, ElementType::kF32,
                                                             std::move(copy), weights.bias);
      break;
    default:  // kF32: Linear::pack() lets no other type through
      linear = std::make_unique<ScalarLinear<Float32, Float32>>(n, weights.k, ElementType::kF32,
                                                                std::move(copy), weights.bias);
      break;
  }
  return linear;
}

}  // namespace kvlane
