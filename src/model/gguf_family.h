// How llama.cpp writes a family: entries of metadata, names of tensors, the order of their rows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <string_view>

namespace kvlane {

class GgufConfigWriter;

// Rows of a tensor in the file, where the checkpoint may have them otherwise.
enum class GgufRows {
  kSame,
  kQueryPairs,  // the two halves of each query head in turns
  kKeyPairs,    // the same of key heads
  kStacked,     // all Q, all K, all V; the checkpoint has them by groups, one for each KV head
};

struct GgufName {
  std::string_view gguf;
  std::string_view checkpoint;
  GgufRows rows = GgufRows::kSame;
};

struct GgufForm {
  std::string_view architecture;  // as "general.architecture" names it
  // All that config.json says but for vocabulary and special tokens.
  void (*write)(GgufConfigWriter& writer);
  std::string_view layers;          // "blk." in the checkpoint: "model.layers."
  std::span<const GgufName> layer;  // what comes behind the number of a layer
  std::span<const GgufName> ends;   // tensors of no layer
};

// By the names of Llama and those who followed it.
inline constexpr std::string_view kPlainGgufLayers = "model.layers.";
inline constexpr std::array<GgufName, 3> kPlainGgufEnds = {{
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
}};
inline constexpr std::array<GgufName, 11> kPlainGgufLayer = {{
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

}  // namespace kvlane
