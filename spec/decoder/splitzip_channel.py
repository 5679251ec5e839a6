"""Decoder of splitzip:channel bodies, version 1, written from spec/splitzip_channel.md alone.

SPDX-License-Identifier: Apache-2.0
"""

import struct

from refusal import corrupt, unsupported

RAW, CODED = 0, 1
BF16 = 2
PREFIX_BYTES = 16
TILE = 64
ESCAPE = 3
# The distances of codes 0, 1 and 2 of layers 1 to 4.
SYMBOLS = ((0, 1, 2), (3, 255, 4), (5, 254, 6), (7, 8, 9))
ELEMENTS_MAX = 2**26


def divide_up(a, b):
    return -(-a // b)


def pad64(x):
    return divide_up(x, 64) * 64


def pad16(x):
    return divide_up(x, 16) * 16


class _Sections:
    """Where the parts lie that follow from the shape (section 2)."""

    def __init__(self, heads, rows, channels):
        self.tiles = heads * divide_up(rows, TILE) * divide_up(channels, TILE)
        self.counts = PREFIX_BYTES
        self.anchors = self.counts + 8 * self.tiles
        self.anchors_end = self.anchors + self.tiles
        self.base_codes = pad64(self.anchors_end)
        self.base_codes_end = self.base_codes + heads * divide_up(rows, TILE) * divide_up(channels, 4)
        self.codes = pad64(self.base_codes_end)
        self.codes_end = self.codes + heads * divide_up(rows, 4) * channels
        self.signs = pad64(self.codes_end)
        self.tails = self.signs + heads * rows * channels


def _tiles(heads, rows, channels):
    """(head, first row, rows, first channel, channels) of each tile, in order."""
    for head in range(heads):
        for row in range(0, rows, TILE):
            for channel in range(0, channels, TILE):
                yield head, row, min(TILE, rows - row), channel, min(TILE, channels - channel)


def _tail_lengths(counts):
    """Bytes of layers 2, 3 and 4 and of the raw bytes."""
    return [divide_up(count, 4) for count in counts[:3]] + [counts[3]]


def unpack(data, m, count):
    """The `count` codes of pack(x, m); bits of codes that are not there must be zero."""
    codes = []
    at = 0
    while len(codes) < count:
        length = min(4 * m, count - len(codes))
        q = divide_up(length, 4)
        group = [data[at + i % q] >> 2 * (i // q) & 3 for i in range(4 * q)]
        if any(group[length:]):
            raise corrupt("bits behind the codes of a group are not zero")
        codes += group[:length]
        at += q
    return codes


class _Layer:
    """The elements of a layer, handed out to the escapes of the one before it."""

    def __init__(self, distances):
        self.distances = distances
        self.taken = 0

    def distance(self, code, layer):
        if code != ESCAPE:
            return SYMBOLS[layer][code]
        if self.taken == len(self.distances):
            raise corrupt("a tile has more escapes than its counts say")
        self.taken += 1
        return self.distances[self.taken - 1]

    def require_used_up(self):
        if self.taken != len(self.distances):
            raise corrupt("a tile has fewer escapes than its counts say")


def _layer_2(tail, counts):
    """The elements of layer 2 of a tile, found from its raw bytes backwards."""
    lengths = _tail_lengths(counts)
    starts = [sum(lengths[:i]) for i in range(4)]
    elements = _Layer(list(tail[starts[3] : starts[3] + lengths[3]]))
    for layer in (3, 2, 1):
        start, length = starts[layer - 1], lengths[layer - 1]
        codes = unpack(tail[start : start + length], TILE, counts[layer - 1])
        distances = [elements.distance(code, layer) for code in codes]
        elements.require_used_up()
        elements = _Layer(distances)
    return elements


def _row_codes(codes, t, w):
    """The layer-1 codes of `t` rows of `w` channels."""
    rows = []
    for group in range(0, t, 4):
        data = codes[group // 4 * w : (group // 4 + 1) * w]
        there = min(4, t - group)
        if any(byte >> 2 * there for byte in data):
            raise corrupt("codes of rows that are not there are not zero")
        rows += [[byte >> 2 * k & 3 for byte in data] for k in range(there)]
    return rows


def _decode_coded(body, heads, rows, channels):
    at = _Sections(heads, rows, channels)
    if len(body) < at.tails:
        raise corrupt(f"the body has {len(body)} bytes, its plane needs {at.tails} and more")
    shapes = list(_tiles(heads, rows, channels))
    counts = [struct.unpack_from("<4H", body, at.counts + 8 * i) for i in range(at.tiles)]
    for (_, _, t, _, w), tile_counts in zip(shapes, counts):
        if any(below > above for above, below in zip(((t + 1) * w, *tile_counts), tile_counts)):
            raise corrupt("a tile has more escapes than a layer has elements")
    end = at.tails + sum(sum(_tail_lengths(tile_counts)) for tile_counts in counts)
    if len(body) != pad16(end):
        raise corrupt(f"the body has {len(body)} bytes, its prefix and counts mean {pad16(end)}")
    for start, stop in ((at.anchors_end, at.base_codes), (at.base_codes_end, at.codes),
                        (at.codes_end, at.signs), (end, len(body))):  # fmt: skip
        if any(body[start:stop]):
            raise corrupt("padding is not zero")

    values = [0] * (heads * rows * channels)
    base_at, codes_at, tail_at = at.base_codes, at.codes, at.tails
    for i, (head, row, t, channel, w) in enumerate(shapes):
        tail_end = tail_at + sum(_tail_lengths(counts[i]))
        codes_end = codes_at + divide_up(t, 4) * w
        base_end = base_at + divide_up(w, 4)
        layer = _layer_2(body[tail_at:tail_end], counts[i])
        anchor = body[at.anchors + i]
        bases = [(anchor - layer.distance(code, 0)) % 256 for code in unpack(body[base_at:base_end], 16, w)]
        for r, codes in enumerate(_row_codes(body[codes_at:codes_end], t, w)):
            first = (head * rows + row + r) * channels + channel
            for c, code in enumerate(codes):
                exponent = (bases[c] - layer.distance(code, 0)) % 256
                rest = body[at.signs + first + c]
                values[first + c] = (rest & 128) << 8 | exponent << 7 | rest & 127
        layer.require_used_up()
        base_at, codes_at, tail_at = base_end, codes_end, tail_end
    return values


def decode(body, element_type, element_bytes, heads, rows, channels):
    """The values of a plane as integers, or a Refusal."""
    if len(body) < PREFIX_BYTES:
        raise corrupt(f"a body of {len(body)} bytes has no room for its prefix")
    version, mode, body_type, reserved, *shape = struct.unpack_from("<4B3I", body)
    if version != 1:
        raise unsupported(f"splitzip:channel body version {version}")
    if mode not in (RAW, CODED) or reserved != 0:
        raise corrupt("mode or reserved byte of the body is out of range")
    if body_type != element_type or shape != [heads, rows, channels]:
        raise corrupt("the body is of another element type or shape than the frame")
    elements = heads * rows * channels
    if elements > ELEMENTS_MAX or mode == CODED and (body_type != BF16 or elements == 0):
        raise corrupt("such a plane cannot be coded")
    if mode == CODED:
        return _decode_coded(body, heads, rows, channels)
    end = PREFIX_BYTES + element_bytes * elements
    if len(body) != pad16(end):
        raise corrupt(f"the body has {len(body)} bytes, its prefix means {pad16(end)}")
    if any(body[end:]):
        raise corrupt("padding behind the values is not zero")
    return list(struct.unpack_from(f"<{elements}{'H' if element_bytes == 2 else 'B'}", body, PREFIX_BYTES))
