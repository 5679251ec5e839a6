// A task for each KV head: its choices one after another, attention block by block.
// SPDX-License-Identifier: Apache-2.0
#include "calib/zack_errors.h"

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "base/bf16.h"
#include "calib/fold.h"
#include "calib/matrix.h"
#include "cpu/parallel.h"
#include "quant/kv_format.h"
#include "quant/zack_bits.h"
#include "quant/zack_ranks.h"

namespace kvlane {
namespace {

using Eigen::Index;

using FloatMatrix = Matrix<float>;
using View = ConstMatrixRef<float>;
using Formats = std::vector<std::shared_ptr<const KvFormat>>;

// One KV head of a layer: its rows in the rotated bases, as they would be cached.
struct Head {
  FloatMatrix k;                     // [tokens][d]
  FloatMatrix v;                     // [tokens][d]
  std::vector<FloatMatrix> queries;  // of each query head [tokens][d], scaled
  // Of each query head: behind the output projection the energy of y is y G y^T.
  std::span<const FloatMatrix> energies;
};

FloatMatrix rounded(const FloatMatrix& x) {
  return x.unaryExpr([](float value) { return to_float(to_bf16(value)); });
}

// What K or V becomes by a rotation, and what queries or the output projection become.
struct Bases {
  explicit Bases(const Rotation& rotation)
      : first(to_matrix(rotation.matrix)), second(to_matrix(rotation.for_second())) {}

  FloatMatrix first, second;

 private:
  static FloatMatrix to_matrix(std::span<const double> values) {
    const auto d = static_cast<Index>(std::lround(std::sqrt(static_cast<double>(values.size()))));
    return matrix_of(values, d).cast<float>();
  }
};

// Formats of pages of one choice each, in the order of ZackErrors: K and V alike.
Result<Formats> formats_of(int head_dim, Isa isa) {
  Formats formats;
  for (const int bits : zack::kCodeBits) {
    const std::string b = std::to_string(bits);
    for (int width = zack::kWidthStep; width <= head_dim; width += zack::kWidthStep) {
      KvFormatContext context;
      context.shape = {1, 1, width, ElementType::kBf16};
      context.isa = isa;
      KVLANE_ASSIGN(auto format, make_kv_format("hack:k=" + b + ",v=" + b, context));
      formats.push_back(std::move(format));
    }
  }
  return formats;
}

// The first `width` dimensions of K and V as codes stand for them; false where they have none.
bool code(const KvFormat& format, Index width, const Head& head, FloatMatrix& k, FloatMatrix& v) {
  std::vector<std::uint16_t> rows(2 * kBlockTokens * width);
  std::vector<std::byte> room(format.slab_bytes() + 64);
  alignas(64) std::array<std::uint16_t, 2 * kBlockTokens * zack::kHeadDimMax> opened;
  std::byte* const slab =
      room.data() + (64 - reinterpret_cast<std::uintptr_t>(room.data()) % 64) % 64;
  k.resize(head.k.rows(), width);
  v.resize(head.v.rows(), width);
  for (Index first = 0; first < head.k.rows(); first += kBlockTokens) {
    std::uint16_t* to = rows.data();
    for (const FloatMatrix* plane : {&head.k, &head.v}) {
      for (Index t = 0; t < kBlockTokens; ++t) {
        for (Index i = 0; i < width; ++i) *to++ = to_bf16((*plane)(first + t, i)).bits;
      }
    }
    const SlabPlace place{0, static_cast<int>(first)};
    if (!format.seal(place, rows.data(), slab).ok()) return false;
    format.open_page(place, slab, 0, opened.data());
    const std::uint16_t* from = opened.data();
    for (FloatMatrix* const plane : {&k, &v}) {
      for (Index t = 0; t < kBlockTokens; ++t) {
        for (Index i = 0; i < width; ++i) (*plane)(first + t, i) = to_float(bf16{*from++});
      }
    }
  }
  return true;
}

// Rows of a block's weights: of all tokens up to its end.
void softmax(FloatMatrix& scores, Index first) {
  for (Index row = 0; row < scores.rows(); ++row) {
    const Index seen = first + row + 1;
    auto own = scores.row(row).head(seen);
    own = (own.array() - own.maxCoeff()).exp().matrix();
    own /= own.sum();
    scores.row(row).tail(scores.cols() - seen).setZero();
  }
}

double energy(const FloatMatrix& y, const FloatMatrix& gram) {
  FloatMatrix product(y.rows(), gram.cols());
  multiply(Transpose::kNo, y, Transpose::kNo, gram, product);
  return product.cwiseProduct(y).cast<double>().sum();
}

// What is lost of one block of one query head when its earlier tokens are coded so.
struct Block {
  const Head& head;
  std::size_t query;    // head of the group
  Index first;          // token
  FloatMatrix scores;   // exact, before softmax, [64][first + 64]
  FloatMatrix weights;  // after it
  FloatMatrix out;      // [64][d]

  Block(const Head& of, std::size_t index, Index from) : head(of), query(index), first(from) {
    const Index seen = first + kBlockTokens;
    scores.resize(kBlockTokens, seen);
    multiply(Transpose::kNo, rows(), Transpose::kYes, head.k.topRows(seen), scores);
    weights = scores;
    softmax(weights, first);
    out.resize(kBlockTokens, head.v.cols());
    multiply(Transpose::kNo, weights, Transpose::kNo, head.v.topRows(seen), out);
  }

  View rows() const { return head.queries[query].middleRows(first, kBlockTokens); }
  const FloatMatrix& gram() const { return head.energies[query]; }

  double lost_by_k(const FloatMatrix& k) const {
    FloatMatrix coded = scores;
    multiply(Transpose::kNo, rows().leftCols(k.cols()), Transpose::kYes, k.topRows(first),
             coded.leftCols(first));
    softmax(coded, first);
    FloatMatrix changed(out.rows(), out.cols());
    multiply(Transpose::kNo, coded, Transpose::kNo, head.v.topRows(first + kBlockTokens), changed);
    changed -= out;
    return energy(changed, gram());
  }
  // error: of V, [tokens][d].
  double lost_by_v(const FloatMatrix& error) const {
    FloatMatrix lost(out.rows(), out.cols());
    multiply(Transpose::kNo, weights.leftCols(first), Transpose::kNo, error.topRows(first), lost);
    return energy(lost, gram());
  }
};

// Sums over sequences, in double precision.
struct Sums {
  std::vector<double> k;  // [heads][choices]
  std::vector<double> v;
  std::vector<double> all;  // energy of each head
};

// Adds what one head loses by each choice.
void add_head(const Head& head, const Formats& formats, std::size_t index, Sums& sums) {
  // Sums must not depend on how many threads there are.
  const ParallelScope one(1);
  std::vector<Block> blocks;
  for (std::size_t query = 0; query < head.queries.size(); ++query) {
    for (Index first = 0; first < head.k.rows(); first += kBlockTokens) {
      blocks.emplace_back(head, query, first);
      sums.all[index] += energy(blocks.back().out, blocks.back().gram());
    }
  }
  FloatMatrix k;
  FloatMatrix v;
  for (std::size_t choice = 0; choice < formats.size(); ++choice) {
    const Index width = formats[choice]->shape().head_dim;
    double& lost_k = sums.k[index * formats.size() + choice];
    double& lost_v = sums.v[index * formats.size() + choice];
    if (!code(*formats[choice], width, head, k, v)) {
      // No codes for such rows: as if nothing was kept.
      k.setZero();
      v.setZero();
    }
    FloatMatrix error = -head.v;
    error.leftCols(width) += v;
    for (const Block& block : blocks) {
      lost_k += block.lost_by_k(k);
      lost_v += block.lost_by_v(error);
    }
  }
}

// One head's rows of `all`, [tokens][heads][parts][d], parts added up.
FloatMatrix rows_of(const std::vector<std::uint16_t>& all, int tokens, int heads, int head,
                    int parts, Index d) {
  FloatMatrix rows = FloatMatrix::Zero(tokens, d);
  for (Index t = 0; t < tokens; ++t) {
    const std::uint16_t* const from = all.data() + (t * heads + head) * parts * d;
    for (Index i = 0; i < parts * d; ++i) rows(t, i % d) += to_float(bf16{from[i]});
  }
  return rows;
}

// What measuring needs of the model, and the sums.
class Measuring {
 public:
  Measuring(const Checkpoint& checkpoint, const ZackRotations& rotations, Formats formats)
      : checkpoint_(checkpoint), rotations_(rotations), formats_(std::move(formats)) {
    const ModelConfig& config = checkpoint.config();
    const std::size_t heads = std::size_t(config.layers) * config.kv_heads;
    sums_ = {std::vector<double>(heads * formats_.size()),
             std::vector<double>(heads * formats_.size()), std::vector<double>(heads)};
  }

  // The output projection is read once for all sequences.
  void add_layer(int layer, std::span<const ZackSample::Rows> sequences) {
    const ModelConfig& config = checkpoint_.config();
    const std::size_t group = std::size_t(config.heads) / config.kv_heads;
    const std::vector<double> grams = output_grams_of_layer(checkpoint_, layer);
    parallel_for(config.kv_heads, [&](std::int64_t kv_head) {
      const std::size_t index = std::size_t(layer) * config.kv_heads + kv_head;
      const Bases v(rotations_.vw[index]);
      std::vector<FloatMatrix> energies;
      for (std::size_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        energies.push_back(energy_in_basis(grams, h, v.second));
      }
      for (const ZackSample::Rows& sequence : sequences) {
        if (sequence.tokens <= kBlockTokens) continue;
        Head head = head_of(sequence, layer, static_cast<int>(kv_head), v.first);
        head.energies = energies;
        add_head(head, formats_, index, sums_);
      }
    });
  }

  ZackErrors errors() const {
    const auto heads = static_cast<std::size_t>(checkpoint_.config().kv_heads);
    ZackErrors errors{std::vector<float>(sums_.k.size()), std::vector<float>(sums_.v.size())};
    for (std::size_t i = 0; i < sums_.k.size(); ++i) {
      const std::size_t layer = i / formats_.size() / heads;
      double all = 0;
      for (std::size_t head = 0; head < heads; ++head) all += sums_.all[layer * heads + head];
      if (all > 0) errors.k[i] = static_cast<float>(sums_.k[i] / all);
      if (all > 0) errors.v[i] = static_cast<float>(sums_.v[i] / all);
    }
    return errors;
  }

 private:
  // The Gram matrix of a query head's slice of the output projection, in V's basis.
  FloatMatrix energy_in_basis(std::span<const double> grams, std::size_t query_head,
                              const FloatMatrix& basis) const {
    const Index d = basis.rows();
    const Eigen::Map<const Eigen::MatrixXd> gram(grams.data() + query_head * d * d, d, d);
    const Eigen::MatrixXf whole =
        Eigen::MatrixXd(gram.selfadjointView<Eigen::Lower>()).cast<float>();
    return basis.transpose() * whole * basis;
  }

  Head head_of(const ZackSample::Rows& sequence, int layer, int kv_head,
               const FloatMatrix& basis_of_v) const {
    const ModelConfig& config = checkpoint_.config();
    const Index d = config.head_dim;
    const std::size_t index = std::size_t(layer) * config.kv_heads + kv_head;
    const int group = config.heads / config.kv_heads;
    const Bases k(rotations_.qk[index]);
    const auto cached = [&](const std::vector<std::uint16_t>& plane) {
      return rows_of(plane, sequence.tokens, config.kv_heads, kv_head, 1, d);
    };
    Head head;
    head.k = rounded(cached(sequence.k[layer]) * k.first);
    head.v = rounded(cached(sequence.v[layer]) * basis_of_v);
    for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      const FloatMatrix rows = rows_of(sequence.queries[layer], sequence.tokens, config.heads, h,
                                       sequence.query_parts, d);
      head.queries.emplace_back(rows * k.second / std::sqrt(static_cast<float>(d)));
    }
    return head;
  }

  const Checkpoint& checkpoint_;
  const ZackRotations& rotations_;
  const Formats formats_;
  Sums sums_;
};

}  // namespace

Result<ZackErrors> measure_zack_errors(const Checkpoint& checkpoint, Isa isa,
                                       const ZackSample& sample, const ZackRotations& rotations,
                                       const OnCalibrated& progress) {
  const int d = checkpoint.config().head_dim;
  if (d % zack::kWidthStep != 0 || d > zack::kHeadDimMax) return ZackErrors{};
  KVLANE_ASSIGN(Formats formats, formats_of(d, isa));
  Measuring measuring(checkpoint, rotations, std::move(formats));
  const int layers = checkpoint.config().layers;
  for (int layer = 0; layer < layers; ++layer) {
    measuring.add_layer(layer, sample.sequences());
    if (progress) progress(layer + 1, layers);
  }
  return measuring.errors();
}

}  // namespace kvlane
