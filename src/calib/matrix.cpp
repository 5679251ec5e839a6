// See calib/matrix.h.
// SPDX-License-Identifier: Apache-2.0
#include "calib/matrix.h"

#include <oneapi/dnnl/dnnl.h>

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
  const auto inner = of_a == Transpose::kNo ? a.cols() : a.rows();
  if (c.size() > 0 && inner > 0) {
    const auto letter = [](Transpose of) { return of == Transpose::kNo ? 'N' : 'T'; };
    const dnnl_status_t done = dnnl_sgemm(letter(of_a), letter(of_b), c.rows(), c.cols(), inner, 1,
                                          a.data(), a.outerStride(), b.data(), b.outerStride(),
                                          add ? 1 : 0, c.data(), c.outerStride());
    if (done == dnnl_success) return;
  }
  // It may lack memory, of which the other takes less.
  if (!add) c.setZero();
  multiply_by_eigen<float>(of_a, a, of_b, b, c);
}

void multiply(Transpose of_a, const ConstMatrixRef<double>& a, Transpose of_b,
              const ConstMatrixRef<double>& b, MatrixRef<double> c, bool add) {
  if (!add) c.setZero();
  multiply_by_eigen<double>(of_a, a, of_b, b, c);
}

}  // namespace kvlane
