// See calib/matrix.h.
// SPDX-License-Identifier: Apache-2.0
#include "calib/matrix.h"

#include <dnnl.hpp>

#include "cpu/parallel.h"

namespace kvlane {
namespace {

template <class Real>
void multiply_by_eigen(Turn turn_a, const ConstMatrixRef<Real>& a, Turn turn_b,
                       const ConstMatrixRef<Real>& b, MatrixRef<Real> c) {
  if (turn_a == Turn::kNo && turn_b == Turn::kNo) c.noalias() += a * b;
  if (turn_a == Turn::kNo && turn_b == Turn::kYes) c.noalias() += a * b.transpose();
  if (turn_a == Turn::kYes && turn_b == Turn::kNo) c.noalias() += a.transpose() * b;
  if (turn_a == Turn::kYes && turn_b == Turn::kYes) c.noalias() += a.transpose() * b.transpose();
}

}  // namespace

void multiply(Turn turn_a, const ConstMatrixRef<float>& a, Turn turn_b,
              const ConstMatrixRef<float>& b, MatrixRef<float> c, bool add) {
  const ParallelScope alone(1);
  const auto letter = [](Turn turn) { return turn == Turn::kNo ? 'N' : 'T'; };
  const auto inner = turn_a == Turn::kNo ? a.cols() : a.rows();
  const auto done = dnnl::sgemm(letter(turn_a), letter(turn_b), c.rows(), c.cols(), inner, 1.0F,
                                a.data(), a.outerStride(), b.data(), b.outerStride(),
                                add ? 1.0F : 0.0F, c.data(), c.outerStride());
  if (done == dnnl::status::success) return;
  if (!add) c.setZero();
  multiply_by_eigen<float>(turn_a, a, turn_b, b, c);
}

void multiply(Turn turn_a, const ConstMatrixRef<double>& a, Turn turn_b,
              const ConstMatrixRef<double>& b, MatrixRef<double> c, bool add) {
  if (!add) c.setZero();
  multiply_by_eigen<double>(turn_a, a, turn_b, b, c);
}

}  // namespace kvlane
