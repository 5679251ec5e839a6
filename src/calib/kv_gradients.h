// How much the probability of a text depends on each value of K and V: what KVQuant weights values
// by when it looks for signposts (NeurIPS 2024, section 3.2). By a backward pass through the model,
// of all families, in plain numbers and with nothing rounded to 16 bits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "calib/matrix.h"
#include "kvlane/status.h"
#include "model/model.h"

namespace kvlane {

// Real: float; double in tests, which compare with differences.
template <class Real>
class KvGradients {
 public:
  // K as attention reads it, behind RoPE, and V: [tokens][kv_heads * head_dim], or their gradients.
  using OnLayer =
      std::function<void(int layer, const Matrix<Real>& keys, const Matrix<Real>& values)>;

  struct Hooks {
    OnLayer on_gradients;  // from the last layer to the first
    // Both may be empty. Between a layer's K and V and its attention, from the first to the last:
    // may change them.
    std::function<void(int layer, Matrix<Real>& keys, Matrix<Real>& values)> on_rows;
    // Layers done of twice all of them.
    std::function<void(int done, int total)> progress;
  };

  // model: whole, on the CPU; outlives this.
  static Result<KvGradients> create(const Model& model);
  KvGradients(KvGradients&&) noexcept;
  ~KvGradients();

  // Of a sequence that begins with `tokens`, all inside the vocabulary: the sum of -log p of all
  // but the first, whose gradients the hook is told; without that hook nothing goes backward. Takes
  // some four times as long as computing a prompt, and memory for [layers][tokens][hidden] numbers,
  // the output projection and one layer. kInvalidArgument where that sum is not finite.
  Result<double> run(std::span<const std::int32_t> tokens, const Hooks& hooks) const;

 private:
  class Pass;
  struct Parts;
  explicit KvGradients(std::unique_ptr<const Parts> parts);

  std::unique_ptr<const Parts> parts_;
};

}  // namespace kvlane
