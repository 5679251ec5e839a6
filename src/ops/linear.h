// Matrix products with fixed weights: y = x W^T (+ bias), the weights packed once.
//
// A row of y has the same bits whatever the number of rows and threads. On all tiers but the scalar
// one, which is a plain loop, the product is oneDNN's, with measures that keep this promise: its
// AMX kernels are switched off (their order of summation changes with the number of rows), and so,
// with AVX2, is its matmul; row counts are rounded up to a few sizes, which also bounds how many
// kernels are generated.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cpu/isa.h"
#include "format/element.h"
#include "kvlane/status.h"

namespace kvlane {

// The weights of one product before packing: row-major matrices [n_i][k], stacked to [n][k].
struct LinearWeights {
  ElementType type = ElementType::kBf16;
  int k = 0;
  std::span<const ByteView> parts;
  std::vector<float> bias{};  // [n], added to every row of y; empty: none

  // n, or -1 when a part is not a whole number of rows.
  int rows() const;
};

// Interface of the two implementations. Thread-safe.
class Linear {
 public:
  // BF16 weights take BF16 inputs; F32 and F16 weights (widened, exactly) take F32 inputs. The
  // avx2 tier computes in F32: BF16 is widened there, weights when packed, in twice the memory. The
  // bytes are not needed afterwards. kInvalidArgument when sizes do not match.
  static Result<std::unique_ptr<Linear>> pack(Isa isa, const LinearWeights& weights);

  virtual ~Linear() = default;

  int inputs() const { return k_; }
  int outputs() const { return n_; }
  ElementType input_type() const { return input_type_; }  // of x: kBf16 or kF32
  std::size_t packed_bytes() const { return packed_bytes_; }

  // y[rows][n] = x[rows][k] W^T + bias, in F32. Both buffers have room for rows_rounded(rows) rows:
  // the surplus rows of x are read and those of y written, their values do not matter.
  virtual Status apply(const void* x, float* y, int rows) const = 0;

  // The product with outputs `first` ... `first` + `count` - 1 alone, the same bits: over the
  // weights of this one, which outlives it. Null where packed weights cannot be cut there.
  virtual Result<std::unique_ptr<Linear>> part(int first, int count) const = 0;

  // The weights of one output, exactly, as F32 [k]: a table of embeddings that is the model's
  // output projection as well need not be in memory twice.
  virtual void weights_of(int output, float* row) const = 0;

  // Few exact sizes for decoding, then steps of 16.
  static constexpr int rows_rounded(int rows) { return rows <= 16 ? rows : (rows + 15) / 16 * 16; }

 protected:
  Linear(int n, int k, ElementType input_type, std::size_t packed_bytes, std::vector<float> bias)
      : n_(n),
        k_(k),
        input_type_(input_type),
        packed_bytes_(packed_bytes),
        bias_(std::move(bias)) {}

  // That of outputs `first` ... `first` + `count` - 1.
  std::vector<float> bias_part(int first, int count) const {
    if (bias_.empty()) return {};
    return {bias_.begin() + first, bias_.begin() + first + count};
  }

  const int n_;
  const int k_;
  const ElementType input_type_;
  const std::size_t packed_bytes_;
  const std::vector<float> bias_;  // [n] or empty
};

// What computes products on this tier, for people: "oneDNN 2.6.3, AVX2 in F32".
std::string linear_description(Isa isa);

// The implementations, by file: linear_onednn.cpp and linear_scalar.cpp.
Result<std::unique_ptr<Linear>> pack_linear_onednn(Isa isa, const LinearWeights& weights, int n);
Result<std::unique_ptr<Linear>> pack_linear_scalar(const LinearWeights& weights, int n);
std::string onednn_description(Isa isa);

}  // namespace kvlane
