// The products of a model's layer as plain matrices, in numbers of one type: for calibration, which
// also multiplies by their transposes. Forward passes have packed ones (ops/linear.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "calib/matrix.h"
#include "kvlane/status.h"
#include "model/layout.h"
#include "model/model.h"

namespace kvlane {

template <class Real>
struct PlainProduct {
  Matrix<Real> weights;  // [outputs][inputs]
  RowVector<Real> bias;  // [outputs], or empty

  // y = x W^T + bias of some rows, and x's gradient from that of y.
  Matrix<Real> apply(const ConstMatrixRef<Real>& x) const;
  Matrix<Real> gradient(const ConstMatrixRef<Real>& of_y) const;
};

template <class Real>
struct PlainLayer {
  PlainProduct<Real> qkv, attention_out, ffn_in, ffn_out;
};

// Reads them from the model's checkpoint, and lets its pages go.
template <class Real>
Result<PlainLayer<Real>> read_plain_layer(const Model& model, const LayerLayout& layout);

// The output projection, [vocab][hidden].
template <class Real>
Result<PlainProduct<Real>> read_plain_head(const Model& model, const ModelLayout& layout);

}  // namespace kvlane
