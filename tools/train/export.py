#!/usr/bin/env python3
"""Writes a checkpoint of train.py as a Hugging Face LlamaForCausalLM directory in bfloat16."""
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import pathlib
import shutil

import bpe
import torch
from network import NORM_EPS, Shape
from weights import hugging_face_names, write_safetensors


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
        "rope_theta": shape.rope_theta,
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
    names = hugging_face_names(shape.layers)
    tensors = {theirs: checkpoint["weights"][ours] for ours, theirs in names.items()}
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
