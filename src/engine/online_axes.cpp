// A block's rows at a time, which stay in cache between widening, product and rounding.
// SPDX-License-Identifier: Apache-2.0
#include "engine/online_axes.h"

#include <algorithm>
#include <cmath>

#include "base/bf16.h"
#include "cpu/parallel.h"
#include "ops/eigenvectors.h"
#include "ops/gram.h"
#include "quant/zack_ranks.h"

namespace kvlane {
namespace {

constexpr int kHeadDimMax = 256;  // as in ops/rotation.h
using BlockRows = float[kBlockTokens * kHeadDimMax];

template <class Number>
void widen(const std::uint16_t* from, int count, Number* to) {
  for (int i = 0; i < count; ++i) to[i] = to_float(bf16{from[i]});
}

void narrow(const float* from, int count, std::uint16_t* to) {
  for (int i = 0; i < count; ++i) to[i] = to_bf16(from[i]).bits;
}

int width_of(double keep, int head_dim) {
  const int steps = static_cast<int>(std::ceil(keep * head_dim / zack::kWidthStep));
  return std::min(steps * zack::kWidthStep, head_dim);
}

}  // namespace

OnlineAxes::OnlineAxes(const KvShape& shape, int tokens, int width, Isa isa)
    : shape_(shape),
      tokens_(tokens),
      width_(width),
      multiply_(rotation_kernel(isa)),
      planes_(std::size_t(shape.layers) * shape.kv_heads * 2) {}

Result<OnlineAxes> OnlineAxes::decompose(const BlockTable& table, double keep, Isa isa) {
  const KvShape& shape = table.pool().shape();
  OnlineAxes axes(shape, table.tokens(), width_of(keep, shape.head_dim), isa);
  std::vector<Status> found(axes.planes_.size());
  parallel_for(static_cast<std::int64_t>(found.size()), [&](std::int64_t plane) {
    found[plane] = axes.find(table, static_cast<int>(plane));
  });
  for (const Status& status : found) KVLANE_TRY(status);
  return axes;
}

int OnlineAxes::rows_of(int block) const {
  return std::min(tokens_ - block * kBlockTokens, kBlockTokens);
}

std::uint16_t* OnlineAxes::rows(const BlockTable& table, int plane, int block) const {
  const int head = plane / 2;
  std::uint16_t* const page = table.page(block, head / shape_.kv_heads, head % shape_.kv_heads);
  return page + plane % 2 * shape_.page_plane_elements();
}

Status OnlineAxes::find(const BlockTable& table, int plane) {
  const int d = shape_.head_dim;
  std::vector<double> gram(std::size_t(d) * d);
  GramSum sum(static_cast<std::size_t>(d), gram.data());
  for (int block = 0; block < blocks_for(tokens_); ++block) {
    const std::uint16_t* const from = rows(table, plane, block);
    for (int row = 0; row < rows_of(block); ++row) widen(from + row * d, d, sum.next());
  }
  sum.flush();
  KVLANE_ASSIGN(const Eigenvectors found, eigenvectors_of(gram, static_cast<std::size_t>(d)));

  auto& [axes, coefficients] = planes_[plane];
  axes.resize(std::size_t(width_) * d);
  std::vector<float> columns(axes.size());  // [head_dim][width]
  for (int axis = 0; axis < width_; ++axis) {
    for (int i = 0; i < d; ++i) {
      axes[axis * d + i] = columns[i * width_ + axis] =
          static_cast<float>(found.vectors[i * d + axis]);
    }
  }
  coefficients.resize(std::size_t(tokens_) * width_);
  alignas(64) BlockRows wide, kept;
  for (int block = 0; block < blocks_for(tokens_); ++block) {
    const int count = rows_of(block);
    widen(rows(table, plane, block), count * d, wide);
    multiply_(wide, count, columns.data(), d, width_, kept);
    narrow(kept, count * width_, &coefficients[std::size_t(block) * kBlockTokens * width_]);
  }
  return {};
}

void OnlineAxes::restore_rows(const BlockTable& table, int layer) const {
  const int d = shape_.head_dim;
  const int blocks = blocks_for(tokens_);
  const int planes = 2 * shape_.kv_heads;
  parallel_for(std::int64_t(planes) * blocks, [&](std::int64_t i) {
    const int plane = layer * planes + static_cast<int>(i / blocks);
    const int block = static_cast<int>(i % blocks);
    const auto& [axes, coefficients] = planes_[plane];
    const int count = rows_of(block);
    alignas(64) BlockRows kept, wide;
    widen(&coefficients[std::size_t(block) * kBlockTokens * width_], count * width_, kept);
    multiply_(kept, count, axes.data(), width_, d, wide);
    narrow(wide, count * d, rows(table, plane, block));
  });
}

}  // namespace kvlane
