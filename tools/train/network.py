"""A Llama network: RMSNorm, rotary embeddings, grouped KV heads, SwiGLU, tied embeddings.

SPDX-License-Identifier: Apache-2.0
"""
import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn

NORM_EPS = 1e-5
ROPE_THETA = 10000.0


@dataclasses.dataclass
class Shape:
    vocabulary: int = 4096
    width: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 64
    ffn: int = 704
    context: int = 512


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        x = x.float()
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPS))


def rotate(x, cos, sin):
    """Pairs the first half of a head with the second, as Hugging Face does."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape

        def linear(inputs, outputs):
            return nn.Linear(inputs, outputs, bias=False)

        self.attention_norm = RmsNorm(shape.width)
        self.ffn_norm = RmsNorm(shape.width)
        self.qkv = linear(shape.width, (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
        self.attention_output = linear(shape.heads * shape.head_dim, shape.width)
        self.gate_up = linear(shape.width, 2 * shape.ffn)
        self.down = linear(shape.ffn, shape.width)

    def attention(self, x, cos, sin, mask):
        """x [batch, tokens, width]; scores in the type of the matrix products, softmax in float32."""
        shape, (batch, tokens, _) = self.shape, x.shape
        qkv = self.qkv(x).view(batch, tokens, shape.heads + 2 * shape.kv_heads, shape.head_dim)
        q, k, v = qkv.transpose(1, 2).split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k = k.repeat_interleave(shape.heads // shape.kv_heads, 1)
        v = v.repeat_interleave(shape.heads // shape.kv_heads, 1)
        scores = (q.to(v.dtype) @ k.to(v.dtype).transpose(-1, -2)) * shape.head_dim**-0.5 + mask
        y = scores.float().softmax(-1).to(v.dtype) @ v
        return y.transpose(1, 2).reshape(batch, tokens, shape.heads * shape.head_dim)

    def forward(self, x, cos, sin, mask):
        x = x + self.attention_output(self.attention(self.attention_norm(x), cos, sin, mask))
        gate, up = self.gate_up(self.ffn_norm(x)).split(self.shape.ffn, -1)
        return x + self.down(F.silu(gate) * up)


class Network(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        # What is added to the residual stream is damped by its number of additions.
        for layer in self.layers:
            nn.init.normal_(layer.attention_output.weight, std=0.02 / math.sqrt(2 * shape.layers))
            nn.init.normal_(layer.down.weight, std=0.02 / math.sqrt(2 * shape.layers))
        frequencies = ROPE_THETA ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angles = torch.outer(torch.arange(shape.context).float(), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        future = torch.full((shape.context, shape.context), -1e9).triu(1)
        self.register_buffer("mask", future, persistent=False)

    def forward(self, ids):
        """ids [batch, tokens] -> logits [batch, tokens, vocabulary]"""
        x, tokens = self.embedding(ids), ids.shape[1]
        mask = self.mask[:tokens, :tokens].bfloat16()
        for layer in self.layers:
            x = layer(x, self.cos[:tokens], self.sin[:tokens], mask)
        return F.linear(self.norm(x), self.embedding.weight)


def grouped(weights, old, new):
    """The weights of a network of shape `old` for one with fewer KV heads: the K and V heads that
    become one are averaged. All else must be alike."""
    result, size = dict(weights), old.kv_heads // new.kv_heads
    for name, weight in weights.items():
        if not name.endswith("qkv.weight"):
            continue
        q, k, v = weight.split([n * old.head_dim for n in (old.heads, old.kv_heads, old.kv_heads)])

        def average(heads):
            heads = heads.view(new.kv_heads, size, old.head_dim, -1)
            return heads.mean(1).reshape(new.kv_heads * old.head_dim, -1)

        result[name] = torch.cat([q, average(k), average(v)])
    return result
