// Loads a checkpoint: hashes and packs its weights, tensor by tensor.
// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <algorithm>
#include <utility>

#include "attention/partial_state.h"
#include "model/layer_tensors.h"
#include "model/widen.h"

namespace kvlane {
// Builds one model; knows Hugging Face's tensor names.
class Model::Loader {
 public:
  Loader(Model& model, const ModelOptions& options)
      : model_(model), options_(options), config_(model.config()) {}

  Status run() {
    if (config_.head_dim > kTileHeadDimMax) {
      return unsupported("head_dim " + std::to_string(config_.head_dim) +
                         " is above the limit of " + std::to_string(kTileHeadDimMax));
    }
    KVLANE_TRY(set_context());
    model_.isa_ = options_.isa;
    for (const auto& [name, tensor] : model_.checkpoint_.tensors())
      bytes_total_ += tensor.bytes.size();
    bytes_total_ *= 2;  // once for the identity, once for packing
    KVLANE_ASSIGN(model_.identity_,
                  model_.checkpoint_.identity([&](std::uint64_t done, std::uint64_t total) {
                    bytes_done_ = done;
                    bytes_total_ = 2 * total;
                    report();
                  }));
    model_.rope_ = RopeTable(rope_inverse_frequencies(config_), model_.context_);
    if (options_.device != nullptr) return load_on_device();
    KVLANE_TRY(load_ends());
    for (int layer = 0; layer < config_.layers; ++layer) {
      LayerWeights weights;
      KVLANE_TRY(load_layer(layer, weights));
      model_.layers_.push_back(std::move(weights));
    }
    return {};
  }

 private:
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
    auto loaded = DeviceModel::load(config_, tensors, model_.rope_, model_.context_,
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
    const std::vector<std::int64_t> table = {config_.vocab, config_.hidden};
    KVLANE_ASSIGN(model_.embedding_, model_.checkpoint_.tensor("model.embed_tokens.weight", table));
    KVLANE_TRY(load_vector("model.norm.weight", config_.hidden, model_.final_norm_));
    if (!config_.tied_embeddings) model_.weight_bytes_ += model_.embedding_.bytes.size();
    return pack({config_.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight"},
                {config_.vocab}, config_.hidden, model_.head_);
  }

  Status load_layer(int index, LayerWeights& layer) {
    return for_each_tensor_of_layer(
        config_, index, layer,
        [this](const std::string& name, int n, auto& part) { return load_vector(name, n, part); },
        [this](const auto& names, const auto& rows, int k, auto& part) {
          return pack(names, rows, k, part);
        });
  }

  Status load_vector(const std::string& name, int n, std::vector<float>& out) {
    KVLANE_ASSIGN(const TensorView tensor, model_.checkpoint_.tensor(name, {n}));
    out.resize(n);
    widen(tensor.type, tensor.bytes.data(), n, out.data());
    return {};
  }

  // Stacks matrices [rows_i][k] into one product.
  Status pack(const std::vector<std::string>& names, const std::vector<int>& rows, int k,
              std::unique_ptr<Linear>& out) {
    std::vector<TensorView> tensors;
    std::vector<ByteView> parts;
    for (std::size_t i = 0; i < names.size(); ++i) {
      KVLANE_ASSIGN(TensorView tensor, model_.checkpoint_.tensor(names[i], {rows[i], k}));
      if (!tensors.empty() && tensor.type != tensors[0].type) {
        return unsupported(names[i] + " and " + names[0] + " have different element types");
      }
      parts.push_back(tensor.bytes);
      tensors.push_back(std::move(tensor));
    }
    auto packed = Linear::pack(model_.isa_, {tensors[0].type, k, parts});
    if (!packed.ok()) return packed.status().with_context("packing " + names[0]);
    out = std::move(*packed);
    model_.weight_bytes_ += out->packed_bytes();
    for (const TensorView& tensor : tensors) {
      bytes_done_ += tensor.bytes.size();
      model_.checkpoint_.release(tensor);
    }
    report();
    return {};
  }

  void report() const {
    if (options_.progress) options_.progress(std::min(bytes_done_, bytes_total_), bytes_total_);
  }

  Model& model_;
  const ModelOptions& options_;
  const ModelConfig& config_;
  std::uint64_t bytes_done_ = 0;
  std::uint64_t bytes_total_ = 0;
};

Result<std::unique_ptr<Model>> Model::load(const std::filesystem::path& directory,
                                           const ModelOptions& options) {
  KVLANE_ASSIGN(Checkpoint checkpoint, Checkpoint::open(directory));
  std::unique_ptr<Model> model(new Model(std::move(checkpoint)));
  KVLANE_TRY(Loader(*model, options).run());
  return model;
}

void Model::embed(std::int32_t token, float* row) const {
  const std::size_t hidden = config().hidden;
  const std::size_t row_bytes = hidden * element_bytes(embedding_.type);
  widen(embedding_.type, embedding_.bytes.data() + token * row_bytes, hidden, row);
}

}  // namespace kvlane
