#!/usr/bin/env python3
"""Writes a checkpoint of train.py as a Hugging Face LlamaForCausalLM directory in bfloat16."""
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import pathlib
import shutil
import struct

import bpe
import torch
from network import NORM_EPS, ROPE_THETA, Shape


def hugging_face_tensors(weights, shape):
    """The fused projections taken apart, under the names that Hugging Face gives."""
    tensors = {
        "model.embed_tokens.weight": weights["embedding.weight"],
        "model.norm.weight": weights["norm.weight"],
    }
    for layer in range(shape.layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        rows = [heads * shape.head_dim for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
        q, k, v = weights[ours + "qkv.weight"].split(rows)
        gate, up = weights[ours + "gate_up.weight"].split(shape.ffn)
        tensors |= {
            theirs + "input_layernorm.weight": weights[ours + "attention_norm.weight"],
            theirs + "post_attention_layernorm.weight": weights[ours + "ffn_norm.weight"],
            theirs + "self_attn.q_proj.weight": q,
            theirs + "self_attn.k_proj.weight": k,
            theirs + "self_attn.v_proj.weight": v,
            theirs + "self_attn.o_proj.weight": weights[ours + "attention_output.weight"],
            theirs + "mlp.gate_proj.weight": gate,
            theirs + "mlp.up_proj.weight": up,
            theirs + "mlp.down_proj.weight": weights[ours + "down.weight"],
        }
    return tensors


def write_safetensors(path, tensors):
    header, end, buffers = {"__metadata__": {"format": "pt"}}, 0, []
    for name in sorted(tensors):
        tensor = tensors[name].detach().to(torch.bfloat16).contiguous()
        buffers.append(tensor.view(torch.int16).numpy().tobytes())
        begin, end = end, end + len(buffers[-1])
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(buffers))


def config_json(shape):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "bos_token_id": bpe.END_OF_TEXT_ID,
        "eos_token_id": bpe.END_OF_TEXT_ID,
        "hidden_act": "silu",
        "hidden_size": shape.width,
        "initializer_range": 0.02,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": shape.context,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": NORM_EPS,
        "rope_theta": ROPE_THETA,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocabulary,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=pathlib.Path, help="what train.py saved")
    parser.add_argument("tokenizer", type=pathlib.Path, help="tokenizer.json")
    parser.add_argument("directory", type=pathlib.Path, help="where the model goes")
    arguments = parser.parse_args()
    checkpoint = torch.load(arguments.checkpoint, map_location="cpu")
    shape = Shape(**checkpoint["shape"])

    arguments.directory.mkdir(parents=True, exist_ok=True)
    tensors = hugging_face_tensors(checkpoint["weights"], shape)
    write_safetensors(arguments.directory / "model.safetensors", tensors)
    special_tokens = {"bos_token": bpe.END_OF_TEXT, "eos_token": bpe.END_OF_TEXT}
    documents = {
        "config.json": config_json(shape),
        "generation_config.json": {"bos_token_id": bpe.END_OF_TEXT_ID, "eos_token_id": bpe.END_OF_TEXT_ID},
        "special_tokens_map.json": special_tokens,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}
        | special_tokens
        | {"model_max_length": shape.context, "clean_up_tokenization_spaces": False},
    }
    for name, document in documents.items():
        (arguments.directory / name).write_text(json.dumps(document, indent=2), encoding="utf-8")
    shutil.copy(arguments.tokenizer, arguments.directory / "tokenizer.json")
    print(f"{arguments.directory}: after {checkpoint['step']} steps")


if __name__ == "__main__":
    main()
