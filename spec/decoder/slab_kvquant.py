"""Reader of sealed slabs of format `kvquant`, version 1, written from spec/slab_kvquant.md alone.

SPDX-License-Identifier: Apache-2.0
"""

import math
import struct

from binary32 import f32, from_bf16, is_finite_bf16, to_bf16
from refusal import corrupt

TOKENS = 64
GROUP = 16


def angles_of(frequencies, position):
    """cos and sin of the model's rotary angles at a position, rounded as the model's are."""
    angles = [f32(f32(position) * frequency) for frequency in frequencies]
    return [f32(math.cos(angle)) for angle in angles], [f32(math.sin(angle)) for angle in angles]


def rotate(row, cos, sin):
    half = len(row) // 2
    low = [f32(f32(row[i] * cos[i]) - f32(row[i + half] * sin[i])) for i in range(half)]
    high = [f32(f32(row[i + half] * cos[i]) + f32(row[i] * sin[i])) for i in range(half)]
    return low + high


def middle_and_reach(low, high):
    return f32(low / 2 + high / 2), f32(high / 2 - low / 2)


class Layout:
    """Section 1: where parts lie."""

    def __init__(self, parameters, shape):
        self.heads, self.dim, _ = shape
        self.bits = int(parameters["bits"])
        self.groups = -(-self.dim // GROUP)
        self.capacity = 256 * -(-self.heads * self.dim * int(parameters["outliers"]) // 200)
        self.limits = 4 + 8 * self.heads
        self.codes = self.limits + 4 * TOKENS
        self.plane_bytes = TOKENS * self.groups * self.bits * 2
        self.outliers = self.codes + 2 * self.heads * self.plane_bytes

    def ends(self, slab):
        ends = struct.unpack_from(f"<{2 * self.heads}I", slab, 4)
        return [0] + [min(end, self.capacity) for end in ends]


def _codes(slab, layout, plane, token):
    at = layout.codes + plane * layout.plane_bytes + token * layout.groups * layout.bits * 2
    words = struct.unpack_from(f"<{layout.groups * layout.bits}H", slab, at)
    return [
        sum((words[i // GROUP * layout.bits + bit] >> i % GROUP & 1) << bit for bit in range(layout.bits))
        for i in range(layout.dim)
    ]


def read_slab(slab, parameters, shape, layer, position, frequencies, tables):
    """[head][K, V][64][head_dim] BF16 bits. parameters: of the name; shape: (kv_heads, head_dim, layers)."""
    layout = Layout(parameters, shape)
    prefixes = [f"kvquant.layers.{layer}.{part}.o{parameters['outliers']}." for part in "kv"]
    levels = [tables[f"{prefix}b{layout.bits}.values"] for prefix in prefixes]
    of_channel = [
        middle_and_reach(low, high)
        for low, high in zip(tables[prefixes[0] + "low"], tables[prefixes[0] + "high"])
    ]
    stored = struct.unpack_from(f"<{2 * TOKENS}H", slab, layout.limits)
    of_token = []
    for low, high in zip(stored[:TOKENS], stored[TOKENS:]):
        finite = is_finite_bf16(low) and is_finite_bf16(high)
        of_token.append(middle_and_reach(from_bf16(low), from_bf16(high)) if finite else (0.0, 0.0))
    ends = layout.ends(slab)
    pages = []
    for head in range(layout.heads):
        page = []
        for part in range(2):
            plane = 2 * head + part
            kept = [
                struct.unpack_from("<HH", slab, layout.outliers + 4 * i)
                for i in range(ends[plane], ends[plane + 1])
            ]
            rows = []
            for token in range(TOKENS):
                row = []
                for i, code in enumerate(_codes(slab, layout, plane, token)):
                    middle, reach = of_token[token] if part else of_channel[head * layout.dim + i]
                    row.append(f32(f32(levels[part][code] * reach) + middle))
                while kept and kept[0][0] < (token + 1) * layout.dim:
                    place, value = kept.pop(0)
                    if place >= token * layout.dim and is_finite_bf16(value):
                        row[place - token * layout.dim] = from_bf16(value)
                if part == 0:
                    row = rotate(row, *angles_of(frequencies, position + token))
                rows.append([to_bf16(value) for value in row])
            page.append(rows)
        pages.append(page)
    return pages


def used_bytes(slab, shape, parameters):
    """Section 1: the bytes that count."""
    layout = Layout(parameters, shape)
    end = struct.unpack_from("<I", slab, 4 * 2 * layout.heads)[0]
    return layout.outliers + 4 * min(end, layout.capacity)


def unpack(packed, parameters, shape):
    """Section 5: the slab of a frame's body, without padding."""
    layout = Layout(parameters, shape)
    if len(packed) < layout.outliers:
        raise corrupt("the slab ends within its codes")
    first = 0
    for end in struct.unpack_from(f"<{2 * layout.heads}I", packed, 4):
        if not first <= end <= layout.capacity:
            raise corrupt(f"outliers from {first} to {end}, there is room for {layout.capacity}")
        first = end
    if len(packed) != layout.outliers + 4 * first:
        raise corrupt(f"a slab of {layout.outliers + 4 * first} bytes in {len(packed)}")
    return packed
