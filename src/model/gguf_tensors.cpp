// Names by table, rows one by one.
// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_tensors.h"

#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "base/bf16.h"
#include "model/gguf_config.h"

namespace kvlane {
namespace {

using Names = std::pair<std::string_view, std::string_view>;
constexpr std::array<Names, 3> kEnds = {{
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
}};
constexpr std::array<Names, 11> kOfLayers = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
}};

template <std::size_t N>
std::optional<std::string> find_name(const std::array<Names, N>& names, std::string_view name) {
  for (const auto& [ours, theirs] : names) {
    if (ours == name) return std::string(theirs);
  }
  return std::nullopt;
}

// "blk.0.attn_q.weight" as "model.layers.0.self_attn.q_proj.weight"; nullopt for an unknown name.
std::optional<std::string> checkpoint_name(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view kind = name.substr(dot);
  if (kind != ".weight" && kind != ".bias") return std::nullopt;
  std::string_view module = name.substr(0, dot);
  std::string prefix;
  std::optional<std::string> found;
  if (module.starts_with("blk.")) {
    module.remove_prefix(4);
    const std::size_t end = module.find('.');
    int layer = -1;
    const auto digits = module.substr(0, end);
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
    if (end == std::string_view::npos || error != std::errc() || layer < 0 ||
        stop != digits.data() + digits.size()) {
      return std::nullopt;
    }
    prefix = "model.layers." + std::to_string(layer) + ".";
    found = find_name(kOfLayers, module.substr(end + 1));
  } else {
    found = find_name(kEnds, module);
  }
  if (!found) return std::nullopt;
  return prefix + *found + std::string(kind);
}

ElementType element_type(GgufType type) {
  switch (type) {
    case GgufType::kF32: return ElementType::kF32;
    case GgufType::kBf16: return ElementType::kBf16;
    case GgufType::kF16:
    case GgufType::kQ8_0: break;
  }
  return ElementType::kFp16;
}

// Of a tensor whose rows belong to `heads` heads in pairs (0: they do not), the row that is row
// `row` of the checkpoint.
std::size_t source_row(std::size_t row, std::size_t rows, int heads) {
  if (heads == 0) return row;
  const std::size_t head_rows = rows / static_cast<std::size_t>(heads);
  const std::size_t half = head_rows / 2;
  const std::size_t in_head = row % head_rows;
  return row - in_head + 2 * (in_head % half) + in_head / half;
}

// A copy, row by row.
Bytes convert(const GgufTensor& tensor, int heads) {
  const auto rows = static_cast<std::size_t>(tensor.shape[0]);
  const std::size_t columns =
      tensor.shape.size() == 1 ? 1 : static_cast<std::size_t>(tensor.shape[1]);
  const std::size_t row_bytes = columns * element_bytes(element_type(tensor.type));
  Bytes converted(rows * row_bytes);
  std::vector<float> wide(columns);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t from = source_row(row, rows, heads);
    std::byte* const to = converted.data() + row * row_bytes;
    if (tensor.type != GgufType::kQ8_0) {
      std::memcpy(to, tensor.bytes.data() + from * row_bytes, row_bytes);
      continue;
    }
    dequantise(tensor, from * columns, columns, wide.data());
    for (std::size_t column = 0; column < columns; ++column) {
      const fp16 narrow = to_fp16(wide[column]);
      std::memcpy(to + 2 * column, &narrow, 2);
    }
  }
  return converted;
}

// How many heads the rows of this tensor are paired in; 0: they are as in the checkpoint.
int paired_heads(std::string_view name, bool llama, const ModelConfig& config) {
  if (!llama) return 0;
  if (name.find(".self_attn.q_proj.") != std::string_view::npos) return config.heads;
  return name.find(".self_attn.k_proj.") != std::string_view::npos ? config.kv_heads : 0;
}

}  // namespace

Result<GgufTensors> gguf_tensors(const GgufFile& file, const ModelConfig& config) {
  const auto* const architecture = find_entry<std::string_view>(file, "general.architecture");
  const bool llama = architecture != nullptr && *architecture == "llama";
  GgufTensors tensors;
  for (const auto& [name, tensor] : file.tensors) {
    if (name == kRopeDivisors) continue;
    const std::optional<std::string> ours = checkpoint_name(name);
    if (!ours) return unsupported("it has tensor '" + name + "', which kvlane does not know");
    const std::size_t dimensions = tensor.shape.size();
    const int heads = paired_heads(*ours, llama, config);
    if (dimensions < 1 || dimensions > 2 ||
        (heads > 0 && tensor.shape[0] != std::int64_t{heads} * config.head_dim) ||
        (dimensions == 1 && tensor.type == GgufType::kQ8_0)) {
      return corrupt("tensor '" + name + "' has the shape " + shape_text(tensor.shape));
    }
    ByteView bytes = tensor.bytes;
    if (heads > 0 || tensor.type == GgufType::kQ8_0) {
      tensors.converted.push_back(convert(tensor, heads));
      bytes = tensors.converted.back();
    }
    tensors.views[*ours] = {element_type(tensor.type), tensor.shape, bytes};
  }
  return tensors;
}

}  // namespace kvlane
