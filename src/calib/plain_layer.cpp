// See calib/plain_layer.h.
// SPDX-License-Identifier: Apache-2.0
#include "calib/plain_layer.h"

#include <algorithm>
#include <vector>

#include "model/widen.h"

namespace kvlane {
namespace {

// Rows of a tensor, [rows][columns] of `to`.
template <class Real>
Status read_rows(const Checkpoint& checkpoint, const TensorRows& part,
                 const std::vector<std::int64_t>& shape, Real* to) {
  KVLANE_ASSIGN(const TensorView tensor, checkpoint.tensor(part.name, shape));
  const std::size_t columns = shape.size() == 1 ? 1 : static_cast<std::size_t>(shape[1]);
  const std::size_t row_bytes = columns * element_bytes(tensor.type);
  std::vector<float> row(columns);
  for (int i = 0; i < part.rows; ++i, to += columns) {
    widen(tensor.type, tensor.bytes.data() + std::size_t(part.first + i) * row_bytes, columns,
          row.data());
    std::copy(row.begin(), row.end(), to);
  }
  checkpoint.release(tensor);
  return {};
}

template <class Real>
Status read_product(const Checkpoint& checkpoint, const ProductLayout& layout, int inputs,
                    PlainProduct<Real>& product) {
  Eigen::Index outputs = 0;
  for (const TensorRows& part : layout.weights) outputs += part.rows;
  product.weights.resize(outputs, inputs);
  Eigen::Index at = 0;
  for (const TensorRows& part : layout.weights) {
    KVLANE_TRY(
        read_rows(checkpoint, part, {part.rows_all, inputs}, product.weights.row(at).data()));
    at += part.rows;
  }
  if (layout.bias.empty()) return {};
  product.bias.resize(outputs);
  at = 0;
  for (const TensorRows& part : layout.bias) {
    KVLANE_TRY(read_rows(checkpoint, part, {part.rows_all}, product.bias.data() + at));
    at += part.rows;
  }
  return {};
}

}  // namespace

template <class Real>
Matrix<Real> PlainProduct<Real>::apply(const ConstMatrixRef<Real>& x) const {
  Matrix<Real> y(x.rows(), weights.rows());
  multiply(Transpose::kNo, x, Transpose::kYes, weights, y);
  if (bias.size() > 0) y.rowwise() += bias;
  return y;
}

template <class Real>
Matrix<Real> PlainProduct<Real>::gradient(const ConstMatrixRef<Real>& of_y) const {
  Matrix<Real> of_x(of_y.rows(), weights.cols());
  multiply(Transpose::kNo, of_y, Transpose::kNo, weights, of_x);
  return of_x;
}

template <class Real>
Result<PlainLayer<Real>> read_plain_layer(const Model& model, const LayerLayout& layout) {
  const ModelConfig& config = model.config();
  const Checkpoint& checkpoint = model.checkpoint();
  PlainLayer<Real> layer;
  KVLANE_TRY(read_product(checkpoint, layout.qkv, config.hidden, layer.qkv));
  KVLANE_TRY(read_product(checkpoint, layout.attention_out, config.heads * config.head_dim,
                          layer.attention_out));
  KVLANE_TRY(read_product(checkpoint, layout.ffn_in, config.hidden, layer.ffn_in));
  KVLANE_TRY(read_product(checkpoint, layout.ffn_out, config.ffn, layer.ffn_out));
  return layer;
}

template <class Real>
Result<PlainProduct<Real>> read_plain_head(const Model& model, const ModelLayout& layout) {
  const ModelConfig& config = model.config();
  PlainProduct<Real> head;
  KVLANE_TRY(read_product(model.checkpoint(), {{TensorRows::all(layout.head, config.vocab)}, {}},
                          config.hidden, head));
  return head;
}

template struct PlainProduct<float>;
template struct PlainProduct<double>;
template Result<PlainLayer<float>> read_plain_layer(const Model&, const LayerLayout&);
template Result<PlainLayer<double>> read_plain_layer(const Model&, const LayerLayout&);
template Result<PlainProduct<float>> read_plain_head(const Model&, const ModelLayout&);
template Result<PlainProduct<double>> read_plain_head(const Model&, const ModelLayout&);

}  // namespace kvlane
