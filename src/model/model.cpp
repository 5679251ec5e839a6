// Loads a checkpoint: hashes and packs its weights, tensor by tensor.
// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <algorithm>
#include <utility>

#include "attention/partial_state.h"
#include "model/layer_tensors.h"
#include "model/layout.h"
#include "model/widen.h"
#include "ops/rows.h"

namespace kvlane {
// Builds one model.
class Model::Loader {
 public:
  Loader(Model& model, const ModelOptions& options)
      : model_(model),
        options_(options),
        config_(model.whole_config()),
        part_(model.part()),
        layout_(model_layout(config_)) {}

  Status run() {
    if (config_.head_dim > kTileHeadDimMax) {
      return unsupported("head_dim " + std::to_string(config_.head_dim) +
                         " is above the limit of " + std::to_string(kTileHeadDimMax));
    }
    KVLANE_TRY(set_context());
    model_.isa_ = options_.isa;
    model_.row_type_ = row_type();
    for (const auto& [name, tensor] : model_.checkpoint_.tensors())
      bytes_total_ += tensor.bytes.size();
    bytes_total_ *= 2;  // once for the identity, once for packing
    KVLANE_ASSIGN(model_.identity_, model_.checkpoint_.identity(
                                        [&](std::uint64_t done, std::uint64_t total) {
                                          bytes_done_ = done;
                                          bytes_total_ = 2 * total;
                                          report();
                                        },
                                        model_.context_));
    model_.rope_ = RopeTable(rope_inverse_frequencies(config_, model_.context_), model_.context_,
                             static_cast<float>(config_.rope_scaling.attention_factor));
    if (!options_.weights) return {};
    if (options_.device != nullptr) return load_on_device();
    KVLANE_TRY(load_ends());
    const Share layers = layers_of(config_, part_);
    for (int layer = 0; layer < layers.count; ++layer) {
      LayerWeights weights;
      KVLANE_TRY(load_layer(layers.first + layer, weights));
      model_.layers_.push_back(std::move(weights));
    }
    return {};
  }

 private:
  ElementType row_type() const {
    const auto& tensors = model_.checkpoint_.tensors();
    const auto all_bf16 = [&](const ProductLayout& product) {
      return std::ranges::all_of(product.weights, [&](const TensorRows& part) {
        return tensors.at(part.name).type == ElementType::kBf16;
      });
    };
    const bool bf16 = std::ranges::all_of(layout_.layers, [&](const LayerLayout& layer) {
      return all_bf16(layer.qkv) && all_bf16(layer.attention_out) && all_bf16(layer.ffn_in) &&
             all_bf16(layer.ffn_out);
    });
    return bf16 ? ElementType::kBf16 : ElementType::kF32;
  }

  Status set_context() {
    model_.context_ = options_.context_max > 0 ? options_.context_max : config_.context;
    if (model_.context_ > config_.context) {
      return invalid_argument("a model length of " + std::to_string(model_.context_) +
                              " is above the model's own context of " +
                              std::to_string(config_.context));
    }
    return {};
  }

  Status load_on_device() {
    const Checkpoint& checkpoint = model_.checkpoint_;
    // What was read before this tensor is not read again.
    std::optional<TensorView> last;
    const auto tensors = [&](const std::string& name,
                             const std::vector<std::int64_t>& shape) -> Result<TensorView> {
      if (last) checkpoint.release(*last);
      KVLANE_ASSIGN(last, checkpoint.tensor(name, shape));
      return *last;
    };
    const std::uint64_t hashed = bytes_done_;
    const auto progress = [&](std::uint64_t done, std::uint64_t total) {
      const double share = static_cast<double>(done) / static_cast<double>(total);
      bytes_done_ =
          hashed + static_cast<std::uint64_t>(share * static_cast<double>(bytes_total_ - hashed));
      report();
    };
    auto loaded = DeviceModel::load(config_, layout_, tensors, model_.rope_, model_.context_,
                                    *options_.device, progress);
    if (last) checkpoint.release(*last);
    if (!loaded.ok()) return loaded.status().with_context("loading the weights onto the device");
    model_.on_device_ = std::move(*loaded);
    model_.device_ = options_.device;
    model_.weight_bytes_ = model_.on_device_->bytes();
    return {};
  }

  // Embedding, final norm and output projection.
  Status load_ends() {
    const bool head_embeds = config_.tied_embeddings && part_.whole();
    if (part_.begins() && !head_embeds) {
      const std::vector<std::int64_t> table = {config_.vocab, config_.hidden};
      KVLANE_ASSIGN(model_.embedding_, model_.checkpoint_.tensor(layout_.embedding, table));
      model_.weight_bytes_ += model_.embedding_.bytes.size();
    }
    if (part_.begins()) KVLANE_TRY(load_positions());
    if (!part_.ends()) return {};
    KVLANE_TRY(load_norm(layout_.final_norm, config_.hidden, model_.final_norm_));
    const Share words = share_of(config_.vocab, part_.ranks, part_.rank);
    // The type of the other products is none of the head's business.
    KVLANE_ASSIGN(const TensorView head,
                  model_.checkpoint_.tensor(layout_.head, {config_.vocab, config_.hidden}));
    return pack({{{layout_.head, config_.vocab, words.first, words.count}}, {}}, config_.hidden,
                head.type, model_.head_);
  }

  Status load_positions() {
    if (layout_.positions.empty()) return {};
    KVLANE_ASSIGN(
        const TensorView table,
        model_.checkpoint_.tensor(layout_.positions, {config_.learned_positions, config_.hidden}));
    const std::size_t count = std::size_t(model_.context_) * config_.hidden;
    const std::size_t skipped = std::size_t(config_.position_offset) * config_.hidden;
    model_.positions_.resize(count);
    widen(table.type, table.bytes.data() + skipped * element_bytes(table.type), count,
          model_.positions_.data());
    model_.weight_bytes_ += count * sizeof(float);
    return {};
  }

  Status load_layer(int index, LayerWeights& layer) {
    return for_each_part_of_layer(
        config_, layer_of(config_, part_, layout_.layers[index]), layer,
        [this](const NormLayout& norm, int n, NormWeights& part) {
          return load_norm(norm, n, part);
        },
        [this](const ProductLayout& product, int inputs, std::unique_ptr<Linear>& part) {
          return pack(product, inputs, model_.row_type_, part);
        });
  }

  Status load_norm(const NormLayout& norm, int n, NormWeights& out) {
    KVLANE_TRY(append_vector(TensorRows::all(norm.weight, n), out.weight));
    return norm.bias.empty() ? Status() : append_vector(TensorRows::all(norm.bias, n), out.bias);
  }

  Status append_vector(const TensorRows& part, std::vector<float>& out) {
    KVLANE_ASSIGN(const TensorView tensor, model_.checkpoint_.tensor(part.name, {part.rows_all}));
    const std::size_t before = out.size();
    out.resize(before + part.rows);
    widen(tensor.type, tensor.bytes.data() + part.first * element_bytes(tensor.type), part.rows,
          out.data() + before);
    return {};
  }

  // Stacks rows of matrices into one product whose own rows are in BF16 or, for any other
  // `row_type`, in F32.
  Status pack(const ProductLayout& product, int inputs, ElementType row_type,
              std::unique_ptr<Linear>& out) {
    std::vector<TensorView> tensors;
    std::vector<ByteView> parts;
    const std::string& name = product.weights[0].name;
    for (const TensorRows& part : product.weights) {
      KVLANE_ASSIGN(TensorView tensor,
                    model_.checkpoint_.tensor(part.name, {part.rows_all, inputs}));
      const std::size_t row_bytes = inputs * element_bytes(tensor.type);
      parts.push_back(tensor.bytes.subspan(part.first * row_bytes, part.rows * row_bytes));
      bytes_done_ += parts.back().size();
      tensors.push_back(std::move(tensor));
    }
    std::vector<float> bias;
    for (const TensorRows& part : product.bias) KVLANE_TRY(append_vector(part, bias));
    ElementType type = tensors[0].type;
    const bool mixed = std::ranges::any_of(tensors, [&](const TensorView& tensor) {
      return tensor.type != type || (tensor.type == ElementType::kBf16 && row_type != tensor.type);
    });
    std::vector<float> widened;
    if (mixed) {
      widened = widen_parts(tensors, parts);
      parts = {std::as_bytes(std::span(widened))};
      type = ElementType::kF32;
    }
    auto packed = Linear::pack(model_.isa_, {type, inputs, parts, std::move(bias)});
    if (!packed.ok()) return packed.status().with_context("packing " + name);
    out = std::move(*packed);
    model_.weight_bytes_ += out->packed_bytes();
    for (const TensorView& tensor : tensors) model_.checkpoint_.release(tensor);
    report();
    return {};
  }

  static std::vector<float> widen_parts(const std::vector<TensorView>& tensors,
                                        const std::vector<ByteView>& parts) {
    std::vector<float> values;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::size_t before = values.size();
      const std::size_t count = parts[i].size() / element_bytes(tensors[i].type);
      values.resize(before + count);
      widen(tensors[i].type, parts[i].data(), count, values.data() + before);
    }
    return values;
  }

  void report() const {
    if (options_.progress) options_.progress(std::min(bytes_done_, bytes_total_), bytes_total_);
  }

  Model& model_;
  const ModelOptions& options_;
  const ModelConfig& config_;  // of the whole model
  const ModelPart& part_;
  const ModelLayout layout_;
  std::uint64_t bytes_done_ = 0;
  std::uint64_t bytes_total_ = 0;
};

Result<std::unique_ptr<Model>> Model::load(const std::filesystem::path& directory,
                                           const ModelOptions& options) {
  KVLANE_ASSIGN(Checkpoint checkpoint, Checkpoint::open(directory));
  KVLANE_TRY(check_part(checkpoint.config(), options.part));
  std::unique_ptr<Model> model(new Model(std::move(checkpoint), options.part));
  KVLANE_TRY(Loader(*model, options).run());
  return model;
}

void Model::embed(std::int32_t token, int position, float* row) const {
  const int hidden = config().hidden;
  if (embedding_.bytes.empty()) {
    head_->weights_of(token, row);
  } else {
    const std::size_t row_bytes = hidden * element_bytes(embedding_.type);
    widen(embedding_.type, embedding_.bytes.data() + token * row_bytes, hidden, row);
  }
  if (!positions_.empty()) {
    add_row(row, positions_.data() + std::size_t(position) * hidden, hidden);
  }
}

void Model::norm(const NormWeights& weights, const float* x, int n, float* y) const {
  if (config().norm == NormKind::kLayer) {
    layer_norm(x, weights.weight.data(), weights.bias.data(), config().norm_eps, n, y);
  } else {
    rms_norm(x, weights.weight.data(), config().norm_eps, n, y);
  }
}

}  // namespace kvlane
