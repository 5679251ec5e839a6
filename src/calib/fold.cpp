// Folding tile by tile: a tile is widened, multiplied and rounded by one thread.
// SPDX-License-Identifier: Apache-2.0
#include "calib/fold.h"

#include <Eigen/Core>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "base/bf16.h"
#include "cpu/parallel.h"
#include "model/widen.h"
#include "ops/gram.h"

namespace kvlane {
namespace {

// Columns of a tile of v_proj and rows of one of o_proj: some hundred KB in double precision.
constexpr std::int64_t kTileColumns = 512;
constexpr std::int64_t kTileRows = 64;

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::Map<const Matrix> matrix_of(std::span<const double> values, std::int64_t d) {
  return {values.data(), d, d};
}

// `count` elements of a tensor from element `first` on.
void read(const TensorView& tensor, std::size_t first, std::size_t count, double* out) {
  std::vector<float> wide(count);
  widen(tensor.type, tensor.bytes.data() + first * element_bytes(tensor.type), count, wide.data());
  std::copy(wide.begin(), wide.end(), out);
}

// Rounds elements into a tensor's bytes; false when one is beyond its type's range.
bool write(ElementType type, const double* values, std::size_t count, std::byte* out) {
  bool fits = true;
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(values[i]);
    if (type == ElementType::kF32) {
      std::memcpy(out + i * sizeof(value), &value, sizeof(value));
      fits = fits && std::isfinite(value);
    } else if (type == ElementType::kBf16) {
      const bf16 rounded = to_bf16(value);
      std::memcpy(out + i * sizeof(rounded), &rounded, sizeof(rounded));
      fits = fits && std::isfinite(to_float(rounded));
    } else {
      const fp16 rounded = to_fp16(value);
      std::memcpy(out + i * sizeof(rounded), &rounded, sizeof(rounded));
      fits = fits && std::isfinite(to_float(rounded));
    }
  }
  return fits;
}

Status does_not_fit(ElementType type) {
  return unsupported("a rotated weight is beyond the range of " +
                     std::string(safetensors_type_name(type)));
}

}  // namespace

std::string value_projection(int layer) {
  return "model.layers." + std::to_string(layer) + ".self_attn.v_proj.weight";
}

std::string output_projection(int layer) {
  return "model.layers." + std::to_string(layer) + ".self_attn.o_proj.weight";
}

std::vector<double> output_grams(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  const auto d = static_cast<std::size_t>(config.head_dim);
  const std::size_t group = std::size_t(config.heads) / config.kv_heads;
  std::vector<double> grams(std::size_t(config.layers) * config.kv_heads * d * d);
  for (int layer = 0; layer < config.layers; ++layer) {
    const TensorView& weights = checkpoint.tensors().at(output_projection(layer));
    parallel_for(config.kv_heads, [&](std::int64_t head) {
      GramSum sum(d, grams.data() + (std::size_t(layer) * config.kv_heads + head) * d * d);
      for (std::size_t row = 0; row < std::size_t(config.hidden); ++row) {
        for (std::size_t h = head * group; h < (head + 1) * group; ++h) {
          read(weights, (row * config.heads + h) * d, d, sum.next());
        }
      }
      sum.flush();
    });
    checkpoint.release(weights);
  }
  return grams;
}

std::vector<double> output_grams_of_layer(const Checkpoint& checkpoint, int layer) {
  const ModelConfig& config = checkpoint.config();
  const auto d = static_cast<std::size_t>(config.head_dim);
  const TensorView& weights = checkpoint.tensors().at(output_projection(layer));
  std::vector<double> grams(config.heads * d * d);
  parallel_for(config.heads, [&](std::int64_t head) {
    GramSum sum(d, grams.data() + head * d * d);
    for (std::size_t row = 0; row < std::size_t(config.hidden); ++row) {
      read(weights, (row * config.heads + head) * d, d, sum.next());
    }
    sum.flush();
  });
  checkpoint.release(weights);
  return grams;
}

Result<Bytes> fold_values(const ModelConfig& config, const TensorView& weights,
                          std::span<const Rotation> rotations) {
  const std::int64_t d = config.head_dim;
  const std::int64_t width = config.hidden;
  const std::int64_t tiles = (width + kTileColumns - 1) / kTileColumns;
  Bytes folded(weights.bytes.size());
  std::atomic<bool> fits = true;
  parallel_for(config.kv_heads * tiles, [&](std::int64_t task) {
    const std::int64_t head = task / tiles;
    const std::int64_t first = task % tiles * kTileColumns;
    const std::int64_t columns = std::min(kTileColumns, width - first);
    Matrix tile(d, columns);
    for (std::int64_t i = 0; i < d; ++i) {
      read(weights, (head * d + i) * width + first, columns, tile.row(i).data());
    }
    const Matrix product = matrix_of(rotations[head].matrix, d).transpose() * tile;
    for (std::int64_t i = 0; i < d; ++i) {
      const std::size_t at = ((head * d + i) * width + first) * element_bytes(weights.type);
      if (!write(weights.type, product.row(i).data(), columns, folded.data() + at)) fits = false;
    }
  });
  if (!fits) return does_not_fit(weights.type);
  return folded;
}

Result<Bytes> fold_outputs(const ModelConfig& config, const TensorView& weights,
                           std::span<const Rotation> rotations) {
  const std::int64_t d = config.head_dim;
  const std::int64_t width = config.heads * d;
  const std::int64_t group = config.heads / config.kv_heads;
  Bytes folded(weights.bytes.size());
  std::atomic<bool> fits = true;
  parallel_ranges(config.hidden, kTileRows, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t count = (last - first) * width;
    Matrix tile(last - first, width);
    read(weights, first * width, count, tile.data());
    Matrix product(last - first, width);
    for (std::int64_t h = 0; h < config.heads; ++h) {
      product.middleCols(h * d, d).noalias() =
          tile.middleCols(h * d, d) * matrix_of(rotations[h / group].for_second(), d);
    }
    const std::size_t at = first * width * element_bytes(weights.type);
    if (!write(weights.type, product.data(), count, folded.data() + at)) fits = false;
  });
  if (!fits) return does_not_fit(weights.type);
  return folded;
}

}  // namespace kvlane
