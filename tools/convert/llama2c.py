#!/usr/bin/env python3
"""Converts a llama2.c checkpoint (.bin, version 0) into a Hugging Face directory that kvlane opens.

    llama2c.py stories260K.bin OUT       writes OUT/config.json and OUT/model.safetensors (float32)

The file has no magic: seven int32, then float32 tensors one after another. Its sizes must add up to the
size of the file, or it is refused. llama2.c's tokenizers are not byte-level BPE; none is converted.

llama2.c rotates neighbouring pairs of a head's elements (0 with 1, 2 with 3 ...), Hugging Face pairs
the first half with the second (0 with d/2, 1 with d/2 + 1 ...). So the rows of the query and key
projections change places here; scores, which sum over a head, stay the same.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import array
import json
import pathlib
import struct
import sys
from typing import NamedTuple

INT32, FLOAT32 = struct.calcsize("<i"), struct.calcsize("<f")
BOS, EOS = 1, 2  # of every llama2.c tokenizer
NORM_EPS = 1e-5  # llama2.c has these two in its code, not in the file
ROPE_THETA = 10000.0


class Shape(NamedTuple):
    dim: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int  # negative in the file when the output projection is not the embedding table
    context: int

    @property
    def head_dim(self):
        return self.dim // self.heads


class Weights:
    """The tensors behind the header, taken one after another as float32 arrays."""

    def __init__(self, data):
        self.values = array.array("f")
        self.values.frombytes(data)
        if sys.byteorder == "big":
            self.values.byteswap()
        self.at = 0

    def take(self, count):
        part = self.values[self.at : self.at + count]
        if len(part) != count:
            raise ValueError("the file is shorter than its header says")
        self.at += count
        return part


def halves_from_pairs(weight, rows, columns, head_dim):
    """The rows of a projection [rows, columns] in Hugging Face's order, head by head."""
    result = array.array("f")
    for head in range(0, rows, head_dim):
        for parity in (0, 1):
            for i in range(parity, head_dim, 2):
                row = (head + i) * columns
                result += weight[row : row + columns]
    return result


def read_header(data):
    if len(data) < len(Shape._fields) * INT32:
        raise ValueError("the file is too short for a header")
    values = Shape(*struct.unpack_from(f"<{len(Shape._fields)}i", data))
    tied = values.vocab > 0
    shape = values._replace(vocab=abs(values.vocab))
    # Also says so when this is one of llama2.c's later formats, which begin with a magic number.
    if min(shape) <= 0 or shape.dim % shape.heads or shape.heads % shape.kv_heads or shape.head_dim % 2:
        raise ValueError(f"{tuple(values)} is no header of a llama2.c checkpoint of version 0")
    return shape, tied


def read_tensors(data):
    """Returns shape, whether embeddings are tied, and {name: (dimensions, float32 array)}."""
    shape, tied = read_header(data)
    dim, ffn, layers = shape.dim, shape.ffn, shape.layers
    query, key = dim, shape.kv_heads * shape.head_dim
    weights = Weights(data[len(Shape._fields) * INT32 :])
    tensors = {"model.embed_tokens.weight": ((shape.vocab, dim), weights.take(shape.vocab * dim))}

    def per_layer(name, *dimensions, rotated=False):
        for layer in range(layers):
            weight = weights.take(dimensions[0] * (dimensions[1] if len(dimensions) > 1 else 1))
            if rotated:
                weight = halves_from_pairs(weight, *dimensions, shape.head_dim)
            tensors[f"model.layers.{layer}.{name}.weight"] = (dimensions, weight)

    # In the order of the file.
    per_layer("input_layernorm", dim)
    per_layer("self_attn.q_proj", query, dim, rotated=True)
    per_layer("self_attn.k_proj", key, dim, rotated=True)
    per_layer("self_attn.v_proj", key, dim)
    per_layer("self_attn.o_proj", dim, query)
    per_layer("post_attention_layernorm", dim)
    per_layer("mlp.gate_proj", ffn, dim)
    per_layer("mlp.down_proj", dim, ffn)
    per_layer("mlp.up_proj", ffn, dim)
    tensors["model.norm.weight"] = ((dim,), weights.take(dim))
    weights.take(shape.context * shape.head_dim)  # tables of cosines and sines, which follow from theta
    if not tied:
        tensors["lm_head.weight"] = ((shape.vocab, dim), weights.take(shape.vocab * dim))
    if weights.at != len(weights.values):
        raise ValueError("the file is longer than its header says")
    return shape, tied, tensors


def config_of(shape, tied):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.dim,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": shape.context,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": NORM_EPS,
        "rope_scaling": None,
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
        "vocab_size": shape.vocab,
    }


def write_safetensors(path, tensors):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, (dimensions, values) in tensors.items():
        begin, end = end, end + len(values) * FLOAT32
        header[name] = {"dtype": "F32", "shape": list(dimensions), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            if sys.byteorder == "big":
                values.byteswap()
            values.tofile(file)


def convert(source, directory):
    data = source.read_bytes()
    if len(data) % FLOAT32:
        raise ValueError("the file is no sequence of 4-byte values")
    shape, tied, tensors = read_tensors(data)
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory / "model.safetensors", tensors)
    (directory / "config.json").write_text(json.dumps(config_of(shape, tied), indent=2) + "\n")
    return shape


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=pathlib.Path, help="the .bin file")
    parser.add_argument("directory", type=pathlib.Path, help="where the checkpoint goes")
    arguments = parser.parse_args()
    try:
        shape = convert(arguments.source, arguments.directory)
    except (OSError, ValueError) as error:
        sys.exit(f"cannot convert {arguments.source}: {error}")
    print(f"{arguments.directory}: " + ", ".join(f"{k} {v}" for k, v in shape._asdict().items()))


if __name__ == "__main__":
    main()
