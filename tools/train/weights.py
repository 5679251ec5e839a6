"""Weights of our network from and to Hugging Face LlamaForCausalLM directories.

SPDX-License-Identifier: Apache-2.0
"""
import json
import math
import pathlib
import struct

import torch
from network import Shape

MODEL_NAMES = {"embedding": "model.embed_tokens", "norm": "model.norm"}
LAYER_NAMES = {
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "attention_output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def hugging_face_names(layers):
    """Our name of each tensor -> its name in a Hugging Face checkpoint."""
    names = dict(MODEL_NAMES)
    for layer in range(layers):
        for ours, theirs in LAYER_NAMES.items():
            names[f"layers.{layer}.{ours}"] = f"model.layers.{layer}.{theirs}"
    return {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in names.items()}


def read_safetensors(path):
    """BF16 tensors by name, as float32."""
    data = bytearray(pathlib.Path(path).read_bytes())
    length = struct.unpack_from("<Q", data)[0]
    header, tensors = json.loads(data[8 : 8 + length]), {}
    header.pop("__metadata__", None)
    for name, entry in header.items():
        assert entry["dtype"] == "BF16", f"{name} is {entry['dtype']}, not BF16"
        values = torch.frombuffer(
            data, dtype=torch.bfloat16, count=math.prod(entry["shape"]), offset=8 + length + entry["data_offsets"][0]
        )
        tensors[name] = values.view(entry["shape"]).float()
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
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(buffers))


def read_directory(directory):
    """Shape and weights of a Hugging Face directory as export.py writes it."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    shape = Shape(
        vocabulary=config["vocab_size"],
        width=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        ffn=config["intermediate_size"],
        context=config["max_position_embeddings"],
        rope_theta=config["rope_theta"],
    )
    tensors = read_safetensors(directory / "model.safetensors")
    names = hugging_face_names(shape.layers)
    return shape, {ours: tensors[theirs] for ours, theirs in names.items()}
