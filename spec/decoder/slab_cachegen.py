"""Reader of sealed slabs of format `cachegen`, version 1, written from spec/slab_cachegen.md alone.

SPDX-License-Identifier: Apache-2.0
"""

import struct

from binary32 import f32, from_bf16, is_finite_bf16, to_bf16
from refusal import corrupt

TOKENS = 64
ANCHOR_EVERY = 10
LANES = 16
SCALE_LEAST = 2.0**-100
BINS = {
    1: ((16, 16, 12), (16, 12)),
    2: ((32, 16, 16), (32, 16)),
    3: ((32, 32, 32), (32, 32)),
}


def bins_of(level, is_key, layer, layers):
    """Section 2: how many bins a layer's K or V has."""
    if layers >= 80:
        borders = [(a * layers + 40) // 80 for a in ((40, 60) if is_key else (20,))]
    else:
        borders = [max(1, (a * layers + 16) // 32) for a in ((10, 20) if is_key else (2,))]
    return BINS[level][0 if is_key else 1][sum(layer >= border for border in borders)]


def firsts_of(counts):
    """Section 3: where each symbol's slots begin, and 65536."""
    counts = [int(count) for count in counts]
    n, total, below, firsts = len(counts), sum(counts), 0, []
    for i, count in enumerate(counts):
        firsts.append(((65536 - n) * below // total if total else (65536 - n) * i // n) + i)
        below += count
    return [*firsts, 65536]


class Lanes:
    """Section 4: a run."""

    def __init__(self, data):
        self.states = list(struct.unpack("<16I", data[:64].ljust(64, b"\0")))
        self.words = data[64:]
        self.at = 0

    def read(self, lane, firsts):
        slot = self.states[lane] % 65536
        symbol = max(i for i in range(len(firsts) - 1) if firsts[i] <= slot)
        self._advance(lane, slot - firsts[symbol], firsts[symbol + 1] - firsts[symbol])
        return symbol

    def read_bits(self, lane, bits):
        slot, count = self.states[lane] % 65536, 65536 >> bits
        self._advance(lane, slot % count, count)
        return slot // count

    def _advance(self, lane, rest, count):
        state = count * (self.states[lane] // 65536) + rest
        if state < 65536:
            word = 0
            if self.at + 2 <= len(self.words):
                word = struct.unpack_from("<H", self.words, self.at)[0]
                self.at += 2
            state = 65536 * state + word
        self.states[lane] = state


class Tensor:
    """K or V of one layer: its rule and its models."""

    def __init__(self, parameters, shape, layer, is_key, tables):
        self.paper = parameters["form"] == "paper"
        self.heads, self.dim, layers = shape
        prefix = f"cachegen.layers.{layer}.{'k' if is_key else 'v'}."
        if self.paper:
            width = 0.5 * (1 + 3 * layer // layers)
            self.steps = [f32(deviation * width) for deviation in tables[prefix + "deviation"]]
            self.models = self._models(tables[prefix + "delta"], 63)
            self.anchor_models = self._models(tables[prefix + "anchor"], 32)
            self.symbols = 63
        else:
            bins = bins_of(int(parameters["level"]), is_key, layer, layers)
            self.middle = bins // 2 - 1
            self.symbols = 2 * self.middle + 1
            self.models = self._models(tables[f"{prefix}bins{bins}"], self.symbols)

    @staticmethod
    def _models(counts, symbols):
        return [firsts_of(counts[i : i + symbols]) for i in range(0, len(counts), symbols)]

    def is_anchor(self, token):
        return self.paper and token % ANCHOR_EVERY == 0

    def raw_bits(self, token):
        return 8 if self.is_anchor(token) else (self.symbols - 1).bit_length()

    def raw_bytes(self):
        return -(-sum(self.raw_bits(token) for token in range(TOKENS)) * self.dim // 16) * 2

    def read_raw(self, data):
        number, at, symbols = int.from_bytes(data, "little"), 0, []
        for token in range(TOKENS):
            bits = self.raw_bits(token)
            last = 255 if self.is_anchor(token) else self.symbols - 1
            row = []
            for _ in range(self.dim):
                row.append(min(number >> at & ((1 << bits) - 1), last))
                at += bits
            symbols.append(row)
        return symbols

    def read_lanes(self, head, lanes):
        symbols = [[0] * self.dim for _ in range(TOKENS)]
        for group in range(0, self.dim, LANES):
            channels = range(group, min(group + LANES, self.dim))
            for token in range(TOKENS):
                anchor = self.is_anchor(token)
                models = self.anchor_models if anchor else self.models
                for i in channels:
                    symbols[token][i] = lanes.read(i - group, models[head * self.dim + i])
                for i in channels if anchor else ():
                    symbols[token][i] = 8 * symbols[token][i] + lanes.read_bits(i - group, 3)
        return symbols

    def values(self, head, symbols, scales):
        rows = []
        for token in range(TOKENS):
            row = []
            for i in range(self.dim):
                if self.paper:
                    anchor = symbols[token - token % ANCHOR_EVERY][i]
                    value = f32(f32((anchor - 127) / 127) * scales[token // ANCHOR_EVERY])
                    if not self.is_anchor(token):
                        step = self.steps[head * self.dim + i]
                        value = f32(value + f32((symbols[token][i] - 31) * step))
                else:
                    value = f32(f32((symbols[token][i] - self.middle) / self.middle) * scales[token])
                row.append(to_bf16(value))
            rows.append(row)
        return rows


def read_slab(slab, parameters, shape, layer, tables):
    """[head][K, V][64][head_dim] BF16 bits. parameters: of the name; shape: (kv_heads, head_dim, layers)."""
    heads = shape[0]
    tensors = [Tensor(parameters, shape, layer, is_key, tables) for is_key in (True, False)]
    count = 7 if tensors[0].paper else TOKENS
    ends = struct.unpack_from(f"<{heads}I", slab)
    stored = struct.unpack_from(f"<{2 * count}H", slab, 4 * heads)
    scales = [from_bf16(bits) if is_finite_bf16(bits) else 0.0 for bits in stored]
    scales = [scale if scale >= SCALE_LEAST else 0.0 for scale in scales]
    header = 4 * heads + 4 * count
    pages = []
    for head in range(heads):
        first = min(max(ends[head - 1] if head else header, header), len(slab))
        body = slab[first : min(max(ends[head], first), len(slab))]
        k_bytes, v_bytes = (tensor.raw_bytes() for tensor in tensors)
        if len(body) == k_bytes + v_bytes:
            symbols = [tensors[0].read_raw(body[:k_bytes]), tensors[1].read_raw(body[k_bytes:])]
        else:
            lanes = Lanes(body)
            symbols = [tensor.read_lanes(head, lanes) for tensor in tensors]
        pages.append(
            [
                tensor.values(head, symbols[part], scales[part * count : (part + 1) * count])
                for part, tensor in enumerate(tensors)
            ]
        )
    return pages


def used_bytes(slab, shape, parameters):
    """Section 1: the bytes that count."""
    header = 4 * shape[0] + 4 * (7 if parameters["form"] == "paper" else TOKENS)
    return min(max(struct.unpack_from("<I", slab, 4 * (shape[0] - 1))[0], header), len(slab))


def unpack(packed, parameters, shape, layer, tables):
    """Section 6: the slab of a frame's body, without padding."""
    header = 4 * shape[0] + 4 * (7 if parameters["form"] == "paper" else TOKENS)
    if len(packed) < header:
        raise corrupt("the slab ends within its scales")
    page_bytes_max = sum(Tensor(parameters, shape, layer, is_key, tables).raw_bytes() for is_key in (True, False))
    first = header
    for end in struct.unpack_from(f"<{shape[0]}I", packed):
        if not 0 <= end - first <= page_bytes_max:
            raise corrupt(f"a page from {first} to {end}")
        first = end
    if first != len(packed):
        raise corrupt(f"a slab of {first} bytes in {len(packed)}")
    return packed
