// Forward, with what enters each layer kept; then backward, with all else of a layer computed once
// more when its turn comes. Rows are shared out in runs of fixed length, so that bits do not depend
// on threads.
// SPDX-License-Identifier: Apache-2.0
#include "calib/kv_gradients.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calib/causal_attention.h"
#include "calib/plain_layer.h"
#include "calib/row_gradients.h"
#include "cpu/parallel.h"

namespace kvlane {
namespace {

constexpr Eigen::Index kRunRows = 64;
constexpr Eigen::Index kLogits = 1 << 22;  // at most so many at once, a thread

// Calls body(first row, rows) for runs of `length` rows, products on one thread each.
template <class Body>
void for_each_run(Eigen::Index rows, Eigen::Index length, const Body& body) {
  for_each_alone((rows + length - 1) / length, [&](std::int64_t run) {
    body(run * length, std::min(length, rows - run * length));
  });
}

// out = of(rows of all matrices), run by run.
template <class Real, class Of, class... In>
Matrix<Real> by_rows(Eigen::Index columns, const Of& of, const Matrix<Real>& first,
                     const In&... others) {
  Matrix<Real> out(first.rows(), columns);
  for_each_run(first.rows(), kRunRows, [&](Eigen::Index begin, Eigen::Index count) {
    out.middleRows(begin, count) =
        of(first.middleRows(begin, count), others.middleRows(begin, count)...);
  });
  return out;
}

}  // namespace

// What all sequences share.
template <class Real>
struct KvGradients<Real>::Parts {
  const Model& model;
  ModelLayout layout;
  PlainProduct<Real> head;
  RowNorm<Real> final_norm;
};

// One sequence.
template <class Real>
class KvGradients<Real>::Pass {
 public:
  using Rows = Matrix<Real>;
  using RowsRef = ConstMatrixRef<Real>;

  Pass(const Parts& parts, std::span<const std::int32_t> tokens, const Hooks& hooks)
      : parts_(parts),
        model_(parts.model),
        config_(model_.config()),
        tokens_(tokens),
        hooks_(hooks) {}

  Result<double> run() {
    std::vector<Rows> inputs = {embedded()};
    for (int i = 0; i < config_.layers; ++i) {
      KVLANE_TRY(enter(i));
      attend(inputs.back());
      inputs.push_back(feed_forward(inputs.back()));
      report(i + 1);
    }
    Rows gradient;
    const double loss = read_out(inputs.back(), gradient);
    if (!std::isfinite(loss)) {
      return invalid_argument("the model gives the text no probability that is a finite number");
    }
    if (!hooks_.on_gradients) return loss;
    for (int i = config_.layers; i-- > 0;) {
      inputs.pop_back();
      // What the last layer made is still there.
      if (layer_ != i) {
        KVLANE_TRY(enter(i));
        attend(inputs.back());
      }
      KVLANE_ASSIGN(gradient, backward(inputs.back(), gradient));
      report(2 * config_.layers - i);
    }
    return loss;
  }

 private:
  void report(int done) const {
    if (hooks_.progress) hooks_.progress(done, 2 * config_.layers);
  }

  Rows embedded() const {
    Rows rows(tokens_.size(), config_.hidden);
    std::vector<float> row(config_.hidden);
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      model_.embed(tokens_[i], static_cast<int>(i), row.data());
      std::copy(row.begin(), row.end(), rows.row(static_cast<Eigen::Index>(i)).data());
    }
    return rows;
  }

  RowNorm<Real> norm(const NormWeights& weights) const {
    return {config_.norm, config_.norm_eps, weights};
  }

  // Takes a layer's weights.
  Status enter(int layer) {
    products_ = {};
    KVLANE_ASSIGN(products_, read_plain_layer<Real>(model_, parts_.layout.layers[layer]));
    layer_ = layer;
    const LayerWeights& weights = model_.layer(layer);
    attention_norm_.emplace(norm(weights.attention_norm));
    ffn_norm_.emplace(norm(weights.ffn_norm));
    if (config_.qk_norm) {
      q_norm_.emplace(NormKind::kRms, config_.norm_eps, weights.q_norm);
      k_norm_.emplace(NormKind::kRms, config_.norm_eps, weights.k_norm);
    }
    return {};
  }

  // From a layer's input to `between_`.
  void attend(const Rows& x) {
    const auto& qkv = products_.qkv;
    const auto& attention_out = products_.attention_out;
    projected_ = by_rows(
        qkv.weights.rows(),
        [&](const RowsRef& rows) { return qkv.apply(attention_norm_->apply(rows)); }, x);
    split_heads();
    if (hooks_.on_rows) hooks_.on_rows(layer_, attention_.k, attention_.v);
    attention_.run();
    between_ = by_rows(
        config_.hidden,
        [&](const RowsRef& rows, const RowsRef& out) -> Rows {
          return rows + attention_out.apply(out);
        },
        x, attention_.out);
  }

  // From there to its output.
  Rows feed_forward(const Rows& x) const {
    const auto& ffn_in = products_.ffn_in;
    const auto& ffn_out = products_.ffn_out;
    return by_rows(
        config_.hidden,
        [&](const RowsRef& rows, const RowsRef& read) -> Rows {
          const Rows inner = ffn_in.apply(ffn_norm_->apply(read));
          return rows + ffn_out.apply(activate<Real>(config_.activation, inner));
        },
        between_, ffn_input(x));
  }

  // What the feed-forward network reads.
  const Rows& ffn_input(const Rows& x) const { return config_.parallel ? x : between_; }

  // From `projected_` to Q, K and V as attention reads them.
  void split_heads() {
    const int d = config_.head_dim;
    const Eigen::Index q_width = Eigen::Index{config_.heads} * d;
    const Eigen::Index kv_width = Eigen::Index{config_.kv_heads} * d;
    attention_.shape = {config_.heads, config_.kv_heads, d, config_.window_of(layer_)};
    attention_.q = projected_.leftCols(q_width);
    attention_.k = projected_.middleCols(q_width, kv_width);
    attention_.v = projected_.rightCols(kv_width);
    const auto turn = [&](Rows& rows, const std::optional<RowNorm<Real>>& head_norm) {
      parallel_ranges(rows.rows(), kRunRows, [&](std::int64_t begin, std::int64_t end) {
        for (Eigen::Index i = begin; i < end; ++i) {
          const RopeAngles angles = model_.rope().angles(static_cast<int>(i));
          for (Eigen::Index at = 0; at < rows.cols(); at += d) {
            auto head = rows.block(i, at, 1, d);
            if (head_norm) head = head_norm->apply(head);
            turn_row(&rows(i, at), angles, d);
          }
        }
      });
    };
    turn(attention_.q, q_norm_);
    turn(attention_.k, k_norm_);
  }

  // Gradients by `projected_`.
  Rows join_heads(AttentionGradients<Real>& by) const {
    const int d = config_.head_dim;
    Rows joined(projected_.rows(), projected_.cols());
    Eigen::Index first = 0;
    const auto turn = [&](Rows& rows, const std::optional<RowNorm<Real>>& head_norm) {
      parallel_ranges(rows.rows(), kRunRows, [&](std::int64_t begin, std::int64_t end) {
        for (Eigen::Index i = begin; i < end; ++i) {
          const RopeAngles angles = model_.rope().angles(static_cast<int>(i));
          for (Eigen::Index at = 0; at < rows.cols(); at += d) {
            turn_gradient_back(&rows(i, at), angles, d);
            auto head = rows.block(i, at, 1, d);
            if (head_norm) head = head_norm->gradient(projected_.block(i, first + at, 1, d), head);
          }
        }
      });
      joined.middleCols(first, rows.cols()) = rows;
      first += rows.cols();
    };
    turn(by.q, q_norm_);
    turn(by.k, k_norm_);
    joined.rightCols(by.v.cols()) = by.v;
    return joined;
  }

  // By a layer's input, from the gradient by its output; behind attend() to that input.
  Result<Rows> backward(const Rows& x, const Rows& of_out) {
    const auto& qkv = products_.qkv;
    const auto& attention_out = products_.attention_out;
    const auto& ffn_in = products_.ffn_in;
    const auto& ffn_out = products_.ffn_out;
    const Rows by_ffn_input = by_rows(
        config_.hidden,
        [&](const RowsRef& read, const RowsRef& of) -> Rows {
          const Rows inner = ffn_in.apply(ffn_norm_->apply(read));
          const Rows by_inner =
              activation_gradient<Real>(config_.activation, inner, ffn_out.gradient(of));
          return ffn_norm_->gradient(read, ffn_in.gradient(by_inner));
        },
        ffn_input(x), of_out);
    const Rows by_between = config_.parallel ? of_out : Rows(of_out + by_ffn_input);
    const Rows by_attended = by_rows(
        attention_.out.cols(), [&](const RowsRef& of) { return attention_out.gradient(of); },
        by_between);
    AttentionGradients<Real> by = attention_gradients(attention_, by_attended);
    if (!by.k.allFinite() || !by.v.allFinite()) {
      return invalid_argument("the model's layer " + std::to_string(layer_) +
                              " has gradients that are not finite numbers");
    }
    hooks_.on_gradients(layer_, by.k, by.v);
    Rows by_x = by_rows(
        config_.hidden,
        [&](const RowsRef& rows, const RowsRef& of) {
          return attention_norm_->gradient(rows, qkv.gradient(of));
        },
        x, join_heads(by));
    by_x += by_between;
    if (config_.parallel) by_x += by_ffn_input;
    return by_x;
  }

  // The sum of -log p, and its gradient by what the last layer left.
  double read_out(const Rows& x, Rows& gradient) const {
    std::vector<double> losses(tokens_.size());
    gradient.setZero(x.rows(), x.cols());
    const auto rows_at_once = std::clamp<Eigen::Index>(kLogits / config_.vocab, 1, kRunRows);
    for_each_run(x.rows() - 1, rows_at_once, [&](Eigen::Index begin, Eigen::Index count) {
      const RowsRef rows = x.middleRows(begin, count);
      Rows logits = parts_.head.apply(parts_.final_norm.apply(rows));
      for (Eigen::Index i = 0; i < logits.rows(); ++i) {
        const std::int32_t next = tokens_[static_cast<std::size_t>(begin + i + 1)];
        auto row = logits.row(i);
        const Real most = row.maxCoeff();
        const Real of_next = row(next) - most;
        row = (row.array() - most).exp();
        const Real total = row.sum();
        losses[static_cast<std::size_t>(begin + i)] = std::log(total) - of_next;
        row /= total;
        row(next) -= 1;
      }
      gradient.middleRows(begin, count) =
          parts_.final_norm.gradient(rows, parts_.head.gradient(logits));
    });
    double sum = 0;
    for (const double loss : losses) sum += loss;
    return sum;
  }

  const Parts& parts_;
  const Model& model_;
  const ModelConfig& config_;
  const std::span<const std::int32_t> tokens_;
  const Hooks& hooks_;
  // Of the layer that was entered last.
  int layer_ = -1;
  PlainLayer<Real> products_;
  std::optional<RowNorm<Real>> attention_norm_, ffn_norm_, q_norm_, k_norm_;
  Rows projected_;                     // [tokens][q, k, v of all heads]
  CausalAttention<Real> attention_{};  // behind norms of heads and RoPE
  Rows between_;                       // [tokens][hidden], attention added
};

template <class Real>
Result<KvGradients<Real>> KvGradients<Real>::create(const Model& model) {
  if (!model.part().whole() || model.device() != nullptr) {
    return internal_error("gradients are of whole models on a CPU");
  }
  ModelLayout layout = model_layout(model.config());
  KVLANE_ASSIGN(PlainProduct<Real> head, read_plain_head<Real>(model, layout));
  RowNorm<Real> norm(model.config().norm, model.config().norm_eps, model.final_norm());
  return KvGradients(std::unique_ptr<const Parts>(
      new Parts{model, std::move(layout), std::move(head), std::move(norm)}));
}

template <class Real>
KvGradients<Real>::KvGradients(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
template <class Real>
KvGradients<Real>::KvGradients(KvGradients&&) noexcept = default;
template <class Real>
KvGradients<Real>::~KvGradients() = default;

template <class Real>
Result<double> KvGradients<Real>::run(std::span<const std::int32_t> tokens,
                                      const Hooks& hooks) const {
  const auto context = static_cast<std::size_t>(parts_->model.context());
  if (tokens.empty() || tokens.size() > context) {
    return invalid_argument("gradients are of sequences of 1 to " + std::to_string(context) +
                            " tokens, not " + std::to_string(tokens.size()));
  }
  return Pass(*parts_, tokens, hooks).run();
}

template class KvGradients<float>;
template class KvGradients<double>;

}  // namespace kvlane
