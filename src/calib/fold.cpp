// Folding tile by tile: a tile is widened, multiplied and rounded by one thread.
// SPDX-License-Identifier: Apache-2.0
#include "calib/fold.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "base/bf16.h"
#include "calib/matrix.h"
#include "cpu/parallel.h"
#include "model/family.h"
#include "model/layout.h"
#include "model/widen.h"
#include "ops/gram.h"

namespace kvlane {
namespace {

// Columns of a tile of V's projection and rows of one of the output's: some hundred KB in double
// precision.
constexpr std::int64_t kTileColumns = 512;
constexpr std::int64_t kTileRows = 64;

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

bool folds_keys(const ModelConfig& config) {
  return config.learned_positions > 0 && !config.qk_norm;
}

std::map<std::string, TensorFold> tensor_folds(const ModelConfig& config) {
  std::map<std::string, TensorFold> folds;
  const ModelLayout layout = model_layout(config);
  const int d = config.head_dim;
  const int group = config.heads / config.kv_heads;
  // Rows of `qkv`: of all query heads, then of K's, then of V's.
  const int first = folds_keys(config) ? 0 : config.heads + config.kv_heads;
  for (int layer = 0; layer < config.layers; ++layer) {
    const LayerLayout& tensors = layout.layers[layer];
    for (int head = first; head < config.heads + 2 * config.kv_heads; ++head) {
      TensorFold::Head fold{.layer = layer, .kv_head = head / group, .row = 0};
      if (head < config.heads) {
        fold.of = TensorFold::Of::kQuery;
      } else {
        const int of_kv = head - config.heads;
        fold.kv_head = of_kv % config.kv_heads;
        fold.of = of_kv < config.kv_heads ? TensorFold::Of::kKey : TensorFold::Of::kValue;
      }
      for (const StackedRows& stacked : {tensors.qkv.weights, tensors.qkv.bias}) {
        for (const TensorRows& part : rows_of(stacked, head * d, d)) {
          fold.row = part.first;
          folds[part.name].heads.push_back(fold);
        }
      }
    }
    folds[tensors.attention_out.weights[0].name].outputs_of = layer;
  }
  return folds;
}

std::string output_projection(const ModelConfig& config, int layer) {
  return family_of(config).layer(config, layer).attention_out.weights[0].name;
}

std::vector<double> output_grams(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  const auto d = static_cast<std::size_t>(config.head_dim);
  const std::size_t group = std::size_t(config.heads) / config.kv_heads;
  std::vector<double> grams(std::size_t(config.layers) * config.kv_heads * d * d);
  for (int layer = 0; layer < config.layers; ++layer) {
    const TensorView& weights = checkpoint.tensors().at(output_projection(config, layer));
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
  const TensorView& weights = checkpoint.tensors().at(output_projection(config, layer));
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

namespace {

std::span<const double> matrix_for(const TensorFold::Head& head, const ModelConfig& config,
                                   const ZackRotations& rotations) {
  const std::size_t index = std::size_t(head.layer) * config.kv_heads + head.kv_head;
  switch (head.of) {
    case TensorFold::Of::kQuery: return rotations.qk[index].for_second();
    case TensorFold::Of::kKey: return rotations.qk[index].matrix;
    case TensorFold::Of::kValue: break;
  }
  return rotations.vw[index].matrix;
}

// Rows of heads, of a matrix [rows][width], or of a bias with width 1; the others stay.
bool fold_heads(const ModelConfig& config, const TensorView& tensor,
                const std::vector<TensorFold::Head>& heads, const ZackRotations& rotations,
                std::byte* folded) {
  const std::int64_t d = config.head_dim;
  const std::int64_t width = tensor.shape.size() == 1 ? 1 : tensor.shape[1];
  const std::int64_t tiles = (width + kTileColumns - 1) / kTileColumns;
  std::atomic<bool> fits = true;
  parallel_for(static_cast<std::int64_t>(heads.size()) * tiles, [&](std::int64_t task) {
    const TensorFold::Head& head = heads[task / tiles];
    const std::int64_t first = task % tiles * kTileColumns;
    const std::int64_t columns = std::min(kTileColumns, width - first);
    Matrix<double> tile(d, columns);
    for (std::int64_t i = 0; i < d; ++i) {
      read(tensor, (head.row + i) * width + first, columns, tile.row(i).data());
    }
    const Matrix<double> product =
        matrix_of(matrix_for(head, config, rotations), d).transpose() * tile;
    for (std::int64_t i = 0; i < d; ++i) {
      const std::size_t at = ((head.row + i) * width + first) * element_bytes(tensor.type);
      if (!write(tensor.type, product.row(i).data(), columns, folded + at)) fits = false;
    }
  });
  return fits;
}

// Columns of each query head, by the rotation of the KV head it reads.
bool fold_outputs(const ModelConfig& config, const TensorView& tensor,
                  std::span<const Rotation> rotations, std::byte* folded) {
  const std::int64_t d = config.head_dim;
  const std::int64_t width = config.heads * d;
  const std::int64_t group = config.heads / config.kv_heads;
  std::atomic<bool> fits = true;
  parallel_ranges(config.hidden, kTileRows, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t count = (last - first) * width;
    Matrix<double> tile(last - first, width);
    read(tensor, first * width, count, tile.data());
    Matrix<double> product(last - first, width);
    for (std::int64_t h = 0; h < config.heads; ++h) {
      product.middleCols(h * d, d).noalias() =
          tile.middleCols(h * d, d) * matrix_of(rotations[h / group].for_second(), d);
    }
    const std::size_t at = first * width * element_bytes(tensor.type);
    if (!write(tensor.type, product.data(), count, folded + at)) fits = false;
  });
  return fits;
}

}  // namespace

Result<Bytes> fold(const ModelConfig& config, const TensorView& tensor, const TensorFold& how,
                   const ZackRotations& rotations) {
  Bytes folded(tensor.bytes.begin(), tensor.bytes.end());
  bool fits = fold_heads(config, tensor, how.heads, rotations, folded.data());
  if (how.outputs_of >= 0) {
    const std::span<const Rotation> all = rotations.vw;
    fits &= fold_outputs(
        config, tensor,
        all.subspan(std::size_t(how.outputs_of) * config.kv_heads, std::size_t(config.kv_heads)),
        folded.data());
  }
  if (!fits) return does_not_fit(tensor.type);
  return folded;
}

}  // namespace kvlane
