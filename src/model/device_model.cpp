// Lays weights out in one buffer of the device and copies them there, a tensor after the other.
// SPDX-License-Identifier: Apache-2.0
#include "model/device_model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "attention/decode_gpu.h"
#include "model/alignment.h"
#include "model/layer_tensors.h"
#include "model/widen.h"
#include "ops/rows_batch.h"

namespace kvlane {
namespace {

// Kernels are those of Llama's layers.
Status check_layers(const ModelConfig& config) {
  const auto refuse = [&](bool has, const char* what) -> Status {
    if (!has) return {};
    return unsupported("a model with " + std::string(what) + " runs on the CPU alone, not on GPUs");
  };
  KVLANE_TRY(refuse(config.norm == NormKind::kLayer, "layer norms"));
  KVLANE_TRY(refuse(config.activation != Activation::kSwiGlu, "another activation than silu"));
  KVLANE_TRY(refuse(config.parallel, "attention and feed-forward side by side"));
  KVLANE_TRY(refuse(config.learned_positions > 0, "learned positions"));
  return refuse(config.qkv_bias || config.attention_out_bias || config.ffn_bias, "biases");
}

Status check_shape(const ModelConfig& config) {
  const auto check = [](const char* name, int value, int most) -> Status {
    if (value % 8 == 0 && value <= most) return {};
    return unsupported(std::string("on GPUs ") + name + " is a multiple of 8 up to " +
                       std::to_string(most) + ", not " + std::to_string(value));
  };
  KVLANE_TRY(check("hidden_size", config.hidden, kNormValuesMax));
  KVLANE_TRY(check("intermediate_size", config.ffn, kFfnMax));
  KVLANE_TRY(check("vocab_size", config.vocab, kVocabMax));
  return check("head_dim", config.head_dim, kDecodeHeadDimMax);
}

}  // namespace

// Runs twice over the same list of parts: to add their sizes up, then to copy them.
class DeviceModel::Loader {
 public:
  Loader(DeviceModel& model, const ModelLayout& layout, const TensorSource& tensors,
         const RopeTable& rope, Accelerator& device,
         const std::function<void(std::uint64_t, std::uint64_t)>& progress)
      : model_(model),
        layout_(layout),
        tensors_(tensors),
        rope_(rope),
        device_(device),
        progress_(progress) {}

  Status run() {
    KVLANE_TRY(check_layers(model_.config_));
    KVLANE_TRY(check_shape(model_.config_));
    if (model_.config_.window > 0 && model_.config_.window < model_.positions_) {
      return unsupported("on GPUs sequences are no longer than the model's sliding window, " +
                         std::to_string(model_.config_.window) + " tokens, and not " +
                         std::to_string(model_.positions_));
    }
    KVLANE_TRY(visit());
    model_.bytes_ = at_;
    KVLANE_ASSIGN(model_.memory_, device_.allocate(model_.bytes_));
    at_ = 0;
    copying_ = true;
    KVLANE_TRY(visit());
    return device_.finish();
  }

 private:
  Status visit() {
    const ModelConfig& c = model_.config_;
    model_.layers_.assign(c.layers, {});
    KVLANE_TRY(
        matrices({TensorRows::all(layout_.embedding, c.vocab)}, c.hidden, model_.embedding_));
    for (int layer = 0; layer < c.layers; ++layer) {
      KVLANE_TRY(visit_layer(layer, model_.layers_[layer]));
    }
    KVLANE_TRY(vector(layout_.final_norm.weight, c.hidden, model_.final_norm_));
    model_.head_ = model_.embedding_;
    if (!c.tied_embeddings) {
      KVLANE_TRY(matrices({TensorRows::all(layout_.head, c.vocab)}, c.hidden, model_.head_));
    }
    const std::size_t angles = std::size_t(model_.positions_) * c.head_dim;
    return place(model_.angles_, angles * sizeof(float), [&](std::byte* to) {
      return device_.copy(to, reinterpret_cast<const std::byte*>(rope_.angles(0).cos),
                          angles * sizeof(float));
    });
  }

  Status visit_layer(int index, DeviceLayer& layer) {
    return for_each_part_of_layer(
        model_.config_, layout_.layers[index], layer,
        [this](const NormLayout& norm, int n, const float*& part) {
          return vector(norm.weight, n, part);
        },
        [this](const ProductLayout& product, int inputs, const std::byte*& part) {
          return matrices(product.weights, inputs, part);
        });
  }

  // Gives a part its place; the second time, fill(place) puts it there.
  template <class T, class Fill>
  Status place(const T*& part, std::size_t bytes, const Fill& fill) {
    const std::size_t begin = std::exchange(at_, at_ + device_aligned(bytes));
    if (!copying_) return {};
    std::byte* const to = model_.memory_.get() + begin;
    part = reinterpret_cast<const T*>(to);
    KVLANE_TRY(fill(to));
    if (progress_) progress_(std::min(at_, model_.bytes_), model_.bytes_);
    return {};
  }

  Status vector(const std::string& name, int n, const float*& part) {
    return place(part, n * sizeof(float), [&](std::byte* to) -> Status {
      KVLANE_ASSIGN(const TensorView tensor, tensors_(name, {n}));
      std::vector<float> values(n);
      widen(tensor.type, tensor.bytes.data(), n, values.data());
      KVLANE_TRY(
          device_.copy(to, reinterpret_cast<const std::byte*>(values.data()), n * sizeof(float)));
      return device_.finish();  // the values end here
    });
  }

  // Rows of matrices [rows_i][inputs] one behind the other.
  Status matrices(const StackedRows& stacked, int inputs, const std::byte*& part) {
    const std::size_t row_bytes = inputs * element_bytes(ElementType::kBf16);
    std::size_t bytes = 0;
    for (const TensorRows& each : stacked) bytes += each.rows * row_bytes;
    return place(part, bytes, [&](std::byte* to) -> Status {
      for (const TensorRows& each : stacked) {
        KVLANE_ASSIGN(const TensorView tensor, tensors_(each.name, {each.rows_all, inputs}));
        if (tensor.type != ElementType::kBf16) {
          return unsupported(each.name + " is " + element_name(tensor.type) +
                             "; on GPUs matrices are bf16");
        }
        KVLANE_TRY(
            device_.copy(to, tensor.bytes.data() + each.first * row_bytes, each.rows * row_bytes));
        KVLANE_TRY(device_.finish());
        to += each.rows * row_bytes;
      }
      return {};
    });
  }

  DeviceModel& model_;
  const ModelLayout& layout_;
  const TensorSource& tensors_;
  const RopeTable& rope_;
  Accelerator& device_;
  const std::function<void(std::uint64_t, std::uint64_t)>& progress_;
  bool copying_ = false;
  std::size_t at_ = 0;
};

Result<DeviceModel> DeviceModel::load(
    const ModelConfig& config, const ModelLayout& layout, const TensorSource& tensors,
    const RopeTable& rope, int positions, Accelerator& device,
    const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  DeviceModel model;
  model.config_ = config;
  model.positions_ = positions;
  KVLANE_TRY(Loader(model, layout, tensors, rope, device, progress).run());
  return model;
}

}  // namespace kvlane
