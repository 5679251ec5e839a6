"""A Llama network: RMSNorm, rotary embeddings, grouped KV heads, SwiGLU, tied embeddings.

SPDX-License-Identifier: Apache-2.0
"""
import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn

NORM_EPS = 1e-5


@dataclasses.dataclass
class Shape:
    vocabulary: int = 4096
    width: int = 384
    layers: int = 6
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64
    ffn: int = 1024
    context: int = 4096
    rope_theta: float = 500000.0


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPS))


def rotate(x, cos, sin):
    """Pairs the first half of a head with the second, as Hugging Face does. x [batch, tokens, heads,
    head_dim], cos and sin [tokens, 1, head_dim / 2]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape

        def linear(inputs, outputs):
            return nn.Linear(inputs, outputs, bias=False)

        self.attention_norm = RmsNorm(shape.width)
        self.ffn_norm = RmsNorm(shape.width)
        self.q = linear(shape.width, shape.heads * shape.head_dim)
        self.k = linear(shape.width, shape.kv_heads * shape.head_dim)
        self.v = linear(shape.width, shape.kv_heads * shape.head_dim)
        self.attention_output = linear(shape.heads * shape.head_dim, shape.width)
        self.gate = linear(shape.width, shape.ffn)
        self.up = linear(shape.width, shape.ffn)
        self.down = linear(shape.ffn, shape.width)

    def attention(self, x, cos, sin):
        batch, tokens, _ = x.shape
        q, k, v = (f(x).view(batch, tokens, -1, self.shape.head_dim) for f in (self.q, self.k, self.v))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return y.transpose(1, 2).reshape(batch, tokens, -1)

    def forward(self, x, cos, sin):
        x = x + self.attention_output(self.attention(self.attention_norm(x), cos, sin))
        y = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Network(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
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
        frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angles = torch.outer(torch.arange(shape.context).float(), frequencies)[:, None]
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids):
        """ids [batch, tokens] -> logits [batch, tokens, vocabulary]"""
        x, tokens = self.embedding(ids), ids.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:tokens], self.sin[:tokens])
        return F.linear(self.norm(x), self.embedding.weight)

    def loss(self, ids, targets, weights):
        """Mean cross-entropy, each target counted by its weight; all three [batch, tokens]."""
        logits = self.forward(ids).float().flatten(0, 1)
        losses = F.cross_entropy(logits, targets.flatten(), reduction="none")
        return (losses * weights.flatten()).sum() / weights.sum()
