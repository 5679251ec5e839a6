// See calib/row_gradients.h.
// SPDX-License-Identifier: Apache-2.0
#include "calib/row_gradients.h"

#include <cmath>
#include <numbers>
#include <vector>

namespace kvlane {
namespace {

template <class Real>
RowVector<Real> vector_of(const std::vector<float>& values) {
  using Floats = Eigen::Map<const Eigen::RowVectorXf>;
  return Floats(values.data(), static_cast<Eigen::Index>(values.size())).template cast<Real>();
}

}  // namespace

template <class Real>
RowNorm<Real>::RowNorm(NormKind kind, float eps, const NormWeights& weights)
    : kind_(kind),
      eps_(eps),
      weight_(vector_of<Real>(weights.weight)),
      bias_(vector_of<Real>(weights.bias)) {}

template <class Real>
Matrix<Real> RowNorm<Real>::apply(const ConstMatrixRef<Real>& x) const {
  Matrix<Real> y = x;
  for (auto row : y.rowwise()) {
    if (kind_ == NormKind::kLayer) row.array() -= row.mean();
    row *= 1 / std::sqrt(row.squaredNorm() / Real(row.size()) + eps_);
    row.array() *= weight_.array();
    if (kind_ == NormKind::kLayer) row += bias_;
  }
  return y;
}

template <class Real>
Matrix<Real> RowNorm<Real>::gradient(const ConstMatrixRef<Real>& x,
                                     const ConstMatrixRef<Real>& of_y) const {
  Matrix<Real> of_x(x.rows(), x.cols());
  const auto n = Real(x.cols());
  for (Eigen::Index i = 0; i < x.rows(); ++i) {
    RowVector<Real> unit = x.row(i);
    if (kind_ == NormKind::kLayer) unit.array() -= unit.mean();
    const Real factor = 1 / std::sqrt(unit.squaredNorm() / n + eps_);
    unit *= factor;
    const RowVector<Real> weighted = of_y.row(i).cwiseProduct(weight_);
    RowVector<Real> by = weighted - unit * (weighted.dot(unit) / n);
    if (kind_ == NormKind::kLayer) by.array() -= weighted.mean();
    of_x.row(i) = by * factor;
  }
  return of_x;
}

template <class Real>
void turn_row(Real* head, RopeAngles angles, int head_dim) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const Real a = head[i], b = head[half + i];
    head[i] = a * Real(angles.cos[i]) - b * Real(angles.sin[i]);
    head[half + i] = b * Real(angles.cos[i]) + a * Real(angles.sin[i]);
  }
}

template <class Real>
void turn_gradient_back(Real* head, RopeAngles angles, int head_dim) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const Real a = head[i], b = head[half + i];
    head[i] = a * Real(angles.cos[i]) + b * Real(angles.sin[i]);
    head[half + i] = b * Real(angles.cos[i]) - a * Real(angles.sin[i]);
  }
}

template <class Real>
Matrix<Real> activate(Activation activation, const Matrix<Real>& x) {
  if (activation == Activation::kRelu) return x.cwiseMax(Real(0));
  if (activation == Activation::kGelu) {
    const Real unit = 1 / std::numbers::sqrt2_v<Real>;
    return x.unaryExpr([unit](Real v) { return v / 2 * (1 + std::erf(v * unit)); });
  }
  const Eigen::Index n = x.cols() / 2;
  const auto gate = x.leftCols(n).array();
  return (gate / (1 + (-gate).exp()) * x.rightCols(n).array()).matrix();
}

template <class Real>
Matrix<Real> activation_gradient(Activation activation, const Matrix<Real>& x,
                                 const Matrix<Real>& of_y) {
  if (activation == Activation::kRelu) {
    return (x.array() > Real(0)).select(of_y.array(), Real(0)).matrix();
  }
  if (activation == Activation::kGelu) {
    const Real unit = 1 / std::numbers::sqrt2_v<Real>;
    const Real density = std::numbers::inv_sqrtpi_v<Real> * unit;
    return x
        .unaryExpr([=](Real v) {
          return (1 + std::erf(v * unit)) / 2 + v * density * std::exp(-v * v / 2);
        })
        .cwiseProduct(of_y);
  }
  const Eigen::Index n = x.cols() / 2;
  const auto gate = x.leftCols(n).array();
  const auto up = x.rightCols(n).array();
  Matrix<Real> of_x(x.rows(), x.cols());
  const Matrix<Real> share = (1 / (1 + (-gate).exp())).matrix();
  of_x.leftCols(n) =
      (of_y.array() * up * share.array() * (1 + gate * (1 - share.array()))).matrix();
  of_x.rightCols(n) = (of_y.array() * gate * share.array()).matrix();
  return of_x;
}

template class RowNorm<float>;
template class RowNorm<double>;
template void turn_row(float*, RopeAngles, int);
template void turn_row(double*, RopeAngles, int);
template void turn_gradient_back(float*, RopeAngles, int);
template void turn_gradient_back(double*, RopeAngles, int);
template Matrix<float> activate(Activation, const Matrix<float>&);
template Matrix<double> activate(Activation, const Matrix<double>&);
template Matrix<float> activation_gradient(Activation, const Matrix<float>&, const Matrix<float>&);
template Matrix<double> activation_gradient(Activation, const Matrix<double>&,
                                            const Matrix<double>&);

}  // namespace kvlane
