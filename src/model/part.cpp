// Cuts a model by layers, heads and outputs.
// SPDX-License-Identifier: Apache-2.0
#include "model/part.h"

#include <initializer_list>
#include <string>
#include <utility>

namespace kvlane {
namespace {

ProductLayout cut(const ProductLayout& product, std::initializer_list<Share> shares) {
  ProductLayout own;
  for (const Share& share : shares) {
    for (TensorRows& rows : rows_of(product.weights, share.first, share.count)) {
      own.weights.push_back(std::move(rows));
    }
    for (TensorRows& rows : rows_of(product.bias, share.first, share.count)) {
      own.bias.push_back(std::move(rows));
    }
  }
  return own;
}

}  // namespace

Status check_part(const ModelConfig& whole, const ModelPart& part) {
  if (part.stages > whole.layers) {
    return invalid_argument(std::to_string(part.stages) + " pipeline stages are more than the " +
                            std::to_string(whole.layers) + " layers of the model");
  }
  if (part.ranks > whole.kv_heads) {
    return invalid_argument(std::to_string(part.ranks) +
                            " tensor-parallel ranks are more than the " +
                            std::to_string(whole.kv_heads) + " KV heads of the model");
  }
  return {};
}

ModelConfig config_of(const ModelConfig& whole, const ModelPart& part) {
  const Share layers = layers_of(whole, part);
  ModelConfig own = whole;
  own.layers = layers.count;
  own.kv_heads = kv_heads_of(whole, part).count;
  own.heads = own.kv_heads * (whole.heads / whole.kv_heads);
  return own;
}

LayerLayout layer_of(const ModelConfig& whole, const ModelPart& part, LayerLayout layer) {
  if (part.ranks == 1) return layer;
  const Share kv = kv_heads_of(whole, part);
  const int d = whole.head_dim;
  const int group = whole.heads / whole.kv_heads * d;
  const int keys = whole.heads * d;
  const int values = keys + whole.kv_heads * d;
  layer.qkv = cut(layer.qkv, {{kv.first * group, kv.count * group},
                              {keys + kv.first * d, kv.count * d},
                              {values + kv.first * d, kv.count * d}});
  const Share hidden = share_of(whole.hidden, part.ranks, part.rank);
  layer.attention_out = cut(layer.attention_out, {hidden});
  const Share ffn = share_of(whole.ffn, part.ranks, part.rank);
  layer.ffn_in = whole.activation == Activation::kSwiGlu
                     ? cut(layer.ffn_in, {ffn, {whole.ffn + ffn.first, ffn.count}})
                     : cut(layer.ffn_in, {ffn});
  layer.ffn_out = cut(layer.ffn_out, {hidden});
  return layer;
}

}  // namespace kvlane
