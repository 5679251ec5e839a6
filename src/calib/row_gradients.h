// What a layer does to rows between its products, and the gradients of that: norms, rotary
// positions, activations, as ops/rows.h computes them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "calib/matrix.h"
#include "model/config.h"
#include "model/model.h"
#include "ops/rows.h"

namespace kvlane {

// Norms of rows of n values. Rows of matrices: [rows][n].
template <class Real>
class RowNorm {
 public:
  RowNorm(NormKind kind, float eps, const NormWeights& weights);

  Matrix<Real> apply(const ConstMatrixRef<Real>& x) const;
  // By x, from that by y.
  Matrix<Real> gradient(const ConstMatrixRef<Real>& x, const ConstMatrixRef<Real>& of_y) const;

 private:
  const NormKind kind_;
  const Real eps_;
  RowVector<Real> weight_, bias_;
};

// Turns a head's row of `head_dim` values by its position, or, the transpose, gradients behind that
// to those before it. In place.
template <class Real>
void turn_row(Real* head, RopeAngles angles, int head_dim);
template <class Real>
void turn_gradient_back(Real* head, RopeAngles angles, int head_dim);

// Between the products of the feed-forward network: [rows][outputs of the first] to
// [rows][inputs of the second].
template <class Real>
Matrix<Real> activate(Activation activation, const Matrix<Real>& x);
template <class Real>
Matrix<Real> activation_gradient(Activation activation, const Matrix<Real>& x,
                                 const Matrix<Real>& of_y);

}  // namespace kvlane
