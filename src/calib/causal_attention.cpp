// Scores of 128 queries and some keys at a time. Gradients take two passes, one that shares out
// queries and one that shares out keys, so that nobody adds to what others add to.
// SPDX-License-Identifier: Apache-2.0
#include "calib/causal_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvlane {
namespace {

constexpr Eigen::Index kBlockRows = 128;

struct Range {
  Eigen::Index first, last;
  Eigen::Index count() const { return last - first; }
};

// Of a matrix whose heads lie beside each other.
template <class M>
auto head_rows(M& matrix, int head, int head_dim, Range rows) {
  return matrix.block(rows.first, Eigen::Index{head} * head_dim, rows.count(), head_dim);
}

// Works on one layer's heads. Real: float or double.
template <class Real>
class Heads {
 public:
  explicit Heads(const CausalAttention<Real>& attention)
      : attention_(attention),
        shape_(attention.shape),
        tokens_(attention.q.rows()),
        scale_(1 / std::sqrt(Real(shape_.head_dim))) {}

  Eigen::Index blocks() const { return (tokens_ + kBlockRows - 1) / kBlockRows; }
  Range block(Eigen::Index i) const {
    return {i * kBlockRows, std::min(tokens_, (i + 1) * kBlockRows)};
  }
  int kv_head(int head) const { return head / (shape_.heads / shape_.kv_heads); }

  // What these queries see, and what sees these keys.
  Range keys_of(Range queries) const {
    const Eigen::Index first = shape_.window > 0 ? queries.first - shape_.window + 1 : 0;
    return {std::max<Eigen::Index>(first, 0), queries.last};
  }
  Range queries_of(Range keys) const {
    const Eigen::Index last = shape_.window > 0 ? keys.last + shape_.window - 1 : tokens_;
    return {keys.first, std::min(last, tokens_)};
  }

  auto queries(int head, Range rows) const { return of(attention_.q, head, rows); }
  auto keys(int head, Range rows) const { return of(attention_.k, kv_head(head), rows); }
  auto values(int head, Range rows) const { return of(attention_.v, kv_head(head), rows); }
  auto of(const Matrix<Real>& matrix, int head, Range rows) const {
    return head_rows(matrix, head, shape_.head_dim, rows);
  }

  // -inf where a query does not see a key.
  Matrix<Real> scores(int head, Range rows, Range keys_range) const {
    Matrix<Real> scores(rows.count(), keys_range.count());
    multiply(Transpose::kNo, queries(head, rows), Transpose::kYes, keys(head, keys_range), scores);
    scores *= scale_;
    set_unseen(rows, keys_range, -std::numeric_limits<Real>::infinity(), scores);
    return scores;
  }

  // Where a query does not see a key.
  void set_unseen(Range rows, Range keys_range, Real value, Matrix<Real>& of_pairs) const {
    for (Eigen::Index i = 0; i < rows.count(); ++i) {
      const Eigen::Index own = rows.first + i - keys_range.first;  // the last that it sees
      const Eigen::Index last = std::clamp<Eigen::Index>(own + 1, 0, keys_range.count());
      of_pairs.row(i).tail(keys_range.count() - last).setConstant(value);
      if (shape_.window == 0) continue;
      of_pairs.row(i)
          .head(std::clamp<Eigen::Index>(own + 1 - shape_.window, 0, last))
          .setConstant(value);
    }
  }

  // Weights of keys, and gradients by scores before they were scaled, of queries whose output has
  // this gradient. by_output: sum of out * of_out of each token [heads][T].
  struct Block {
    Matrix<Real> weights, by_scores;
  };
  Block block_of(int head, Range rows, Range keys_range, const Matrix<Real>& of_out,
                 const Matrix<Real>& by_output) const {
    Block block;
    block.weights = scores(head, rows, keys_range);
    const auto column = [&](const Matrix<Real>& of_tokens) {
      return of_tokens.row(head).segment(rows.first, rows.count()).transpose();
    };
    block.weights.colwise() -= column(attention_.log_totals);
    block.weights = block.weights.array().exp();
    // Eigen's vectors make a tiny number of exp(-inf).
    set_unseen(rows, keys_range, 0, block.weights);
    block.by_scores.resize(rows.count(), keys_range.count());
    multiply(Transpose::kNo, of(of_out, head, rows), Transpose::kYes, values(head, keys_range),
             block.by_scores);
    block.by_scores.colwise() -= column(by_output);
    block.by_scores.array() *= block.weights.array() * scale_;
    return block;
  }

 private:
  const CausalAttention<Real>& attention_;
  const CausalShape& shape_;
  const Eigen::Index tokens_;
  const Real scale_;
};

template <class Real>
Matrix<Real> products_by_head(const CausalShape& shape, const Matrix<Real>& a,
                              const Matrix<Real>& b) {
  Matrix<Real> sums(shape.heads, a.rows());
  for (int head = 0; head < shape.heads; ++head) {
    const Range all{0, a.rows()};
    sums.row(head) = head_rows(a, head, shape.head_dim, all)
                         .cwiseProduct(head_rows(b, head, shape.head_dim, all))
                         .rowwise()
                         .sum()
                         .transpose();
  }
  return sums;
}

}  // namespace

template <class Real>
void CausalAttention<Real>::run() {
  out.setZero(q.rows(), q.cols());
  log_totals.resize(shape.heads, q.rows());
  const Heads<Real> heads(*this);
  for_each_alone(shape.heads * heads.blocks(), [&](std::int64_t task) {
    const int head = static_cast<int>(task / heads.blocks());
    const Range rows = heads.block(task % heads.blocks());
    const Range keys = heads.keys_of(rows);
    Matrix<Real> weights = heads.scores(head, rows, keys);
    for (Eigen::Index i = 0; i < rows.count(); ++i) {
      auto row = weights.row(i);
      const Real most = row.maxCoeff();
      row = (row.array() - most).exp();
      log_totals(head, rows.first + i) = most;
    }
    heads.set_unseen(rows, keys, 0, weights);
    for (Eigen::Index i = 0; i < rows.count(); ++i) {
      const Real total = weights.row(i).sum();
      weights.row(i) /= total;
      log_totals(head, rows.first + i) += std::log(total);
    }
    multiply(Transpose::kNo, weights, Transpose::kNo, heads.values(head, keys),
             head_rows(out, head, shape.head_dim, rows));
  });
}

template <class Real>
AttentionGradients<Real> attention_gradients(const CausalAttention<Real>& attention,
                                             const Matrix<Real>& of_out) {
  const CausalShape& shape = attention.shape;
  const Heads<Real> heads(attention);
  const Matrix<Real> by_output = products_by_head<Real>(shape, attention.out, of_out);
  AttentionGradients<Real> by;
  by.q.setZero(attention.q.rows(), attention.q.cols());
  by.k.setZero(attention.k.rows(), attention.k.cols());
  by.v.setZero(attention.v.rows(), attention.v.cols());
  for_each_alone(shape.heads * heads.blocks(), [&](std::int64_t task) {
    const int head = static_cast<int>(task / heads.blocks());
    const Range rows = heads.block(task % heads.blocks());
    const Range keys = heads.keys_of(rows);
    const auto block = heads.block_of(head, rows, keys, of_out, by_output);
    multiply(Transpose::kNo, block.by_scores, Transpose::kNo, heads.keys(head, keys),
             head_rows(by.q, head, shape.head_dim, rows));
  });
  const int group = shape.heads / shape.kv_heads;
  for_each_alone(shape.kv_heads * heads.blocks(), [&](std::int64_t task) {
    const int kv_head = static_cast<int>(task / heads.blocks());
    const Range keys = heads.block(task % heads.blocks());
    const Range all = heads.queries_of(keys);
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (Eigen::Index first = all.first; first < all.last; first += kBlockRows) {
        const Range rows{first, std::min(all.last, first + kBlockRows)};
        const auto block = heads.block_of(head, rows, keys, of_out, by_output);
        multiply(Transpose::kYes, block.weights, Transpose::kNo, heads.of(of_out, head, rows),
                 head_rows(by.v, kv_head, shape.head_dim, keys), true);
        multiply(Transpose::kYes, block.by_scores, Transpose::kNo, heads.queries(head, rows),
                 head_rows(by.k, kv_head, shape.head_dim, keys), true);
      }
    }
  });
  return by;
}

template struct CausalAttention<float>;
template struct CausalAttention<double>;
template AttentionGradients<float> attention_gradients(const CausalAttention<float>&,
                                                       const Matrix<float>&);
template AttentionGradients<double> attention_gradients(const CausalAttention<double>&,
                                                        const Matrix<double>&);

}  // namespace kvlane
