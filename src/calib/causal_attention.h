// Attention over a whole sequence, and its gradients, in plain numbers: for calibration. Forward
// passes have kernels of their own (attention/attention.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "calib/matrix.h"

namespace kvlane {

// Of one layer. T tokens; heads are a multiple of kv_heads.
struct CausalShape {
  int heads, kv_heads, head_dim;
  int window;  // tokens that a query sees, its own included; 0: all before it
};

// Q, K, V and what attention makes of them: [T][heads * head_dim] and [T][kv_heads * head_dim].
template <class Real>
struct CausalAttention {
  CausalShape shape;
  Matrix<Real> q, k, v;
  Matrix<Real> out;         // [T][heads * head_dim]
  Matrix<Real> log_totals;  // [heads][T]: log of the sum of exp(scores)

  // From q, k and v: softmax(q k / sqrt(head_dim)) v.
  void run();
};

// Of some number by q, k and v.
template <class Real>
struct AttentionGradients {
  Matrix<Real> q, k, v;
};

// From its gradient by `attention.out`, where run() was called.
template <class Real>
AttentionGradients<Real> attention_gradients(const CausalAttention<Real>& attention,
                                             const Matrix<Real>& of_out);

}  // namespace kvlane
