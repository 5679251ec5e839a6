"""Reader of sealed slabs of format `kvquant`, version 1, written from spec/slab_kvquant.md alone.

Heads have widths of their own, which are all head_dim here, and others in slab_zack_kvquant.py.

SPDX-License-Identifier: Apache-2.0
"""

import itertools
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
    """Section 1: where parts lie. widths: (of K, of V) of each head."""

    def __init__(self, parameters, widths):
        self.heads = len(widths)
        self.planes = [width for pair in widths for width in pair]
        self.bits = int(parameters["bits"])
        channels = [sum(of_part) for of_part in zip(*widths)]
        self.capacity = sum(2 * TOKENS * -(-c * int(parameters["outliers"]) // 200) for c in channels)
        self.limits = 4 + 8 * self.heads
        self.codes = self.limits + 4 * TOKENS
        sizes = [TOKENS * self.row_bytes(plane) for plane in range(len(self.planes))]
        ends = list(itertools.accumulate(sizes, initial=self.codes))
        self.plane_at, self.outliers = ends[:-1], ends[-1]

    def row_bytes(self, plane):
        return -(-self.planes[plane] // GROUP) * self.bits * 2

    def ends(self, slab):
        ends = struct.unpack_from(f"<{2 * self.heads}I", slab, 4)
        return [0] + [min(end, self.capacity) for end in ends]


def _codes(slab, layout, plane, token):
    size = layout.row_bytes(plane)
    words = struct.unpack_from(f"<{size // 2}H", slab, layout.plane_at[plane] + token * size)
    return [
        sum((words[i // GROUP * layout.bits + bit] >> i % GROUP & 1) << bit for bit in range(layout.bits))
        for i in range(layout.planes[plane])
    ]


def widths_of(shape):
    """(kv_heads, head_dim, layers)"""
    return [(shape[1], shape[1])] * shape[0]


def read_slab(slab, parameters, shape, layer, position, frequencies, tables):
    """[head][K, V][64][head_dim] BF16 bits. parameters: of the name; shape: (kv_heads, head_dim, layers)."""
    turns = [angles_of(frequencies, position + token) for token in range(TOKENS)]
    return read_planes(slab, parameters, widths_of(shape), f"kvquant.layers.{layer}", tables, turns)


def read_planes(slab, parameters, widths, tables_name, tables, turns=None):
    """[head][K, V][64][width] BF16 bits. turns: cos and sin by which K of each token is rotated, or None."""
    layout = Layout(parameters, widths)
    prefixes = [f"{tables_name}.{part}.o{parameters['outliers']}." for part in "kv"]
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
    pages, first = [], 0
    for head in range(layout.heads):
        page = []
        for part in range(2):
            plane = 2 * head + part
            dim = layout.planes[plane]
            kept = [
                struct.unpack_from("<HH", slab, layout.outliers + 4 * i)
                for i in range(ends[plane], ends[plane + 1])
            ]
            rows = []
            for token in range(TOKENS):
                row = []
                for i, code in enumerate(_codes(slab, layout, plane, token)):
                    middle, reach = of_token[token] if part else of_channel[first + i]
                    row.append(f32(f32(levels[part][code] * reach) + middle))
                while kept and kept[0][0] < (token + 1) * dim:
                    place, value = kept.pop(0)
                    if place >= token * dim and is_finite_bf16(value):
                        row[place - token * dim] = from_bf16(value)
                if part == 0 and turns:
                    row = rotate(row, *turns[token])
                rows.append([to_bf16(value) for value in row])
            page.append(rows)
        pages.append(page)
        first += widths[head][0]
    return pages


def used_bytes(slab, shape, parameters):
    """Section 1: the bytes that count."""
    return used_bytes_of(slab, parameters, widths_of(shape))


def used_bytes_of(slab, parameters, widths):
    layout = Layout(parameters, widths)
    end = struct.unpack_from("<I", slab, 4 * 2 * layout.heads)[0]
    return layout.outliers + 4 * min(end, layout.capacity)


def unpack(packed, parameters, shape):
    """Section 5: the slab of a frame's body, without padding."""
    return unpack_planes(packed, parameters, widths_of(shape))


def unpack_planes(packed, parameters, widths):
    layout = Layout(parameters, widths)
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
