"""Puts the weights of a small network into a larger one that computes almost the same at first.

The residual stream gets more channels, attention more query heads, the FFN more neurons, the network
more layers. What is new starts at random where it reads and at zero where it writes to the old channels.

SPDX-License-Identifier: Apache-2.0
"""
import math

import torch
from network import Network

READERS = ("q", "k", "v", "gate", "up")
WRITERS = ("attention_output", "down")


def head_rows(old, new):
    """Where the rows of each old query head go: a KV head keeps its query heads, new ones follow them."""
    assert old.kv_heads == new.kv_heads and old.head_dim == new.head_dim
    old_group, new_group = old.heads // old.kv_heads, new.heads // new.kv_heads
    heads = [head // old_group * new_group + head % old_group for head in range(old.heads)]
    return torch.cat([torch.arange(head * old.head_dim, (head + 1) * old.head_dim) for head in heads])


def grow_layer(weights, prefix, fresh, old, new):
    """`fresh`: the new layer's parameters by name, changed in place."""
    heads = head_rows(old, new)
    rows = {"q": heads, "k": slice(None), "v": slice(None), "gate": slice(old.ffn), "up": slice(old.ffn)}
    for name in READERS:
        fresh[f"{name}.weight"][rows[name], : old.width] = weights[f"{prefix}{name}.weight"]
    for name, columns in (("attention_output", heads), ("down", slice(old.ffn))):
        fresh[f"{name}.weight"][: old.width] = 0
        fresh[f"{name}.weight"][: old.width, columns] = weights[f"{prefix}{name}.weight"]
    for name in ("attention_norm", "ffn_norm"):
        grow_norm(fresh[f"{name}.weight"], weights[f"{prefix}{name}.weight"])


def grow_norm(fresh, old):
    """The new channels are small, so the mean square falls by the ratio of the widths; the weight makes up
    for it."""
    scale = math.sqrt(len(old) / len(fresh))
    fresh[:] = old.mean() * scale
    fresh[: len(old)] = old * scale


@torch.no_grad()
def grown(weights, old, new):
    """A network of shape `new` from the weights of shape `old`."""
    network = Network(new)
    network.embedding.weight[:, : old.width] = weights["embedding.weight"]
    grow_norm(network.norm.weight, weights["norm.weight"])
    for index, layer in enumerate(network.layers):
        if index < old.layers:
            grow_layer(weights, f"layers.{index}.", dict(layer.named_parameters()), old, new)
        else:
            for name in WRITERS:
                getattr(layer, name).weight.zero_()
    return network
