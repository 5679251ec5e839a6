// See calib/matrix.h.
// SPDX-License-Identifier: Apache-2.0
#include "calib/matrix.h"

#include <dnnl.hpp>

#include "cpu/parallel.h"

namespace kvlane {
namespace {

template <class Real>
void multiply_by_eigen(Transpose of_a, const ConstMatrixRef<Real>& a, Transpose of_b,
                       const ConstMatrixRef<Real>& b, MatrixRef<Real> c) {
  if (of_a == Transpose::kNo && of_b == Transpose::kNo) c.noalias() += a * b;
  if (of_a == Transpose::kNo && of_b == Transpose::kYes) c.noalias() += a * b.transpose();
  if (of_a == Transpose::kYes && of_b == Transpose::kNo) c.noalias() += a.transpose() * b;
}

}  // namespace

void multiply(Transpose of_a, const ConstMatrixRef<float>& a, Transpose of_b,
              const ConstMatrixRef<float>& b, MatrixRef<float> c, bool add) {
  const ParallelScope alone(1);
  const auto letter = [](Transpose of) { return of == Transpose::kNo ? 'N' : 'T'; };
  const auto inner = of_a == Transpose::kNo ? a.cols() : a.rows();
  const auto done = dnnl::sgemm(letter(of_a), letter(of_b), c.rows(), c.cols(), inner, 1.0F,
                                a.data(), a.outerStride(), b.data(), b.outerStride(),
                                add ? 1.0F : 0.0F, c.data(), c.outerStride());
  if (done == dnnl::status::success) return;
  if (!add) c.setZero();
  multiply_by_eigen<float>(of_a, a, of_b, b, c);
}

void multiply(Transpose of_a, const ConstMatrixRef<double>& a, Transpose of_b,
              const ConstMatrixRef<double>& b, MatrixRef<double> c, bool add) {
  if (!add) c.setZero();
  multiply_by_eigen<double>(of_a, a, of_b, b, c);
}

}  // namespace kvlane
