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
    // Both may be empty. Between a layer's K and V and its attention, on the way there and once
    // more on the way back: may change them, both times alike.
    std::function<void(int layer, Matrix<Real>& keys, Matrix<Real>& values)> on_rows;
    // Layers done of twice all of them.
    std::function<void(int done, int total)> progress;
  };

  // model: whole, on the CPU; outlives this.
  static Result<KvGradients> create(const Model& model);
  KvGradients(KvGradients&&) noexcept;
  ~KvGradients();

  // Of the sequence `tokens`, all inside the vocabulary and no more than the model's context: the
  // sum of -log p of all but the first, whose gradients the hook is told; without that hook nothing
  // goes backward. Takes some three times as many operations as computing it as a prompt, in F32,
  // and memory for [layers + 1][tokens][hidden] numbers, the output projection and one layer.
  // kInvalidArgument where that sum or a gradient is not finite.
  Result<double> run(std::span<const std::int32_t> tokens, const Hooks& hooks) const;

 private:
  class Pass;
  struct Parts;
  explicit KvGradients(std::unique_ptr<const Parts> parts);

  std::unique_ptr<const Parts> parts_;
};

}  // namespace kvlane
