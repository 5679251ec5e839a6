"""Golden files of codec `splitzip:channel`, with a second encoder that shares nothing with the C++ code.

SPDX-License-Identifier: Apache-2.0
"""

import random
import struct

from writer import BF16, FP16, FP8_E5M2, Header, frame, pad, values_to_bytes

SYMBOLS = ((0, 1, 2), (3, 255, 4), (5, 254, 6), (7, 8, 9))
FOLDS = (max, max, min, max, min, max)


def pad16(data):
    return pad(data, 16)


def pad64(data):
    return pad(data, 64)


def exponent(value):
    return value >> 7 & 255


def pack(codes, m):
    """Section 1 of spec/splitzip_channel.md."""
    packed = bytearray()
    for first in range(0, len(codes), 4 * m):
        group = codes[first : first + 4 * m]
        q = -(-len(group) // 4)
        packed += bytes(sum(code << 2 * k for k, code in enumerate(group[j::q])) for j in range(q))
    return bytes(packed)


def base_of(column):
    """The column's rows, repeated up to 64 and folded six times."""
    rows = [column[i % len(column)] for i in range(64)]
    for keep in FOLDS:
        half = len(rows) // 2
        rows = [keep(a, b) for a, b in zip(rows[:half], rows[half:])]
    return rows[0]


def anchor_of(bases):
    return max(v for v in bases if 5 * sum(b >= v for b in bases) >= len(bases))


def encode_layer(distances, layer, later):
    """Codes, and what escapes. Distances in `later` escape without need."""
    codes = [3 if d in later or d not in SYMBOLS[layer] else SYMBOLS[layer].index(d) for d in distances]
    return codes, [d for d, code in zip(distances, codes) if code == 3]


class Tile:
    """The parts of one tile, from its exponents [row][channel]."""

    def __init__(self, rows, bases=None, anchor=None, later=()):
        bases = [base_of(column) for column in zip(*rows)] if bases is None else bases
        self.anchor = anchor_of(bases) if anchor is None else anchor
        width = len(bases)
        codes, elements = encode_layer([(self.anchor - b) % 256 for b in bases], 0, later)
        self.base_codes = pack(codes, 16)
        codes, escapes = encode_layer([(b - e) % 256 for row in rows for b, e in zip(bases, row)], 0, later)
        elements += escapes
        codes += [0] * (-len(rows) % 4 * width)
        self.codes = pack(codes, width)
        self.counts, self.tail = [], b""
        for layer in (1, 2, 3):
            self.counts.append(len(elements))
            codes, elements = encode_layer(elements, layer, later)
            self.tail += pack(codes, 64)
        self.counts.append(len(elements))
        self.tail += bytes(elements)


class Body:
    """A coded body; tests change what they want."""

    def __init__(self, values, heads, rows, channels, **how):
        self.version, self.mode, self.element_type, self.reserved = 1, 1, BF16, 0
        self.heads, self.rows, self.channels = heads, rows, channels
        self.signs = bytes(v >> 8 & 128 | v & 127 for v in values)
        self.tiles = []
        for head in range(heads):
            for row in range(0, rows, 64):
                for channel in range(0, channels, 64):
                    starts = [(head * rows + r) * channels for r in range(row, min(row + 64, rows))]
                    stop = min(channel + 64, channels)
                    part = [[exponent(v) for v in values[s + channel : s + stop]] for s in starts]
                    self.tiles.append(Tile(part, **how))

    def to_bytes(self):
        prefix = struct.pack("<4B3I", self.version, self.mode, self.element_type, self.reserved,
                             self.heads, self.rows, self.channels)  # fmt: skip
        counts = values_to_bytes([count for tile in self.tiles for count in tile.counts])
        parts = pad64(prefix + counts + bytes(tile.anchor for tile in self.tiles))
        parts += pad64(b"".join(tile.base_codes for tile in self.tiles))
        parts += pad64(b"".join(tile.codes for tile in self.tiles))
        return pad16(parts + self.signs + b"".join(tile.tail for tile in self.tiles))


def raw_body(values, element_type, heads, rows, channels):
    prefix = struct.pack("<4B3I", 1, 0, element_type, 0, heads, rows, channels)
    return prefix + pad16(values_to_bytes(values, element_type))


def encode(values, element_type, *shape):
    """What every encoder writes: section 5."""
    raw = raw_body(values, element_type, *shape)
    if element_type != BF16 or not values:
        return raw
    coded = Body(values, *shape).to_bytes()
    return coded if len(coded) < len(raw) else raw


# ---------------------------------------------------------------------------------------------------------------

def plane_of(rng, heads, rows, channels, outliers=0):
    """Channels of different scales, exponents as of Gaussian values, and outliers in so many of 1000."""
    scales = [[112 + rng.randrange(12) for _ in range(channels)] for _ in range(heads)]

    def value(scale):
        spread = min(9, (rng.getrandbits(16) | 1 << 16).bit_length() - (rng.getrandbits(15) | 1).bit_length() - 1)
        e = rng.getrandbits(8) if rng.randrange(1000) < outliers else scale - spread
        return rng.getrandbits(1) << 15 | e << 7 | rng.getrandbits(7)

    return [value(scales[h][c]) for h in range(heads) for _ in range(rows) for c in range(channels)]


def header(shape, element_type=BF16):
    heads, rows, channels = shape
    return Header(codec="splitzip:channel", element_type=element_type, tokens=rows, kv_heads=heads, head_dim=channels)


def make_valid(out):
    rng = random.Random(7)

    def valid(name, shape, k, v, element_type=BF16):
        bodies = [encode(plane, element_type, *shape) for plane in (k, v)]
        out.valid("codec", f"channel_{name}", [(header(shape, element_type), *bodies, k, v)])

    def two(shape, outliers=0):
        return [plane_of(rng, *shape, outliers) for _ in range(2)]

    for shape in ((2, 64, 64), (1, 64, 128), (1, 64, 80), (1, 63, 64), (1, 1, 600), (3, 10, 72), (2, 61, 8),
                  (1, 2, 130)):  # fmt: skip
        valid("x".join(map(str, shape)), shape, *two(shape, 5))
    valid("half_outliers", (1, 64, 64), *two((1, 64, 64), 500))
    valid("1_value", (1, 1, 1), [0x3F80], [0xFFFF])
    valid("fp16_is_raw", (1, 16, 16), *two((1, 16, 16)), FP16)
    eight_bits = [[rng.getrandbits(3) | 0x38 for _ in range(252)] for _ in range(2)]
    valid("fp8_is_raw", (1, 36, 7), *eight_bits, FP8_E5M2)
    valid("noise_is_raw", (1, 32, 32), *[[rng.getrandbits(16) for _ in range(1024)] for _ in range(2)])
    zeros, patterns = [0] * 4096, list(range(0, 65536, 16))
    valid("zeros_and_patterns", (1, 64, 64), zeros, patterns)
    special = [0x0000, 0x8000, 0x0001, 0x807F, 0x7F80, 0xFF80, 0x7F81, 0x7FC0, 0xFFFF, 0x7FFF]
    ones = [0x3F80] * 4096
    ones[5:4000:37] = (special * 11)[: len(ones[5:4000:37])]
    valid("zeros_subnormals_infinities_nans", (1, 64, 64), ones, ones[::-1])
    make_foreign(out, rng)
    # All edges at once: several heads, a last group of one row, a third tile of three channels; and all layers.
    shape, rng = (3, 61, 131), random.Random(8)
    planes = [plane_of(rng, *shape, outliers) for outliers in (5, 200)]
    for plane in planes:
        tiles = Body(plane, *shape).tiles
        assert len(tiles) == 9 and all(count > 0 for tile in tiles[::3] for count in tile.counts)
    valid("3x61x131", shape, *planes)


EXAMPLE_SHAPE = (1, 5, 3)
EXAMPLE = [
    0x3F80, 0xBE80, 0x3D80, 0x3F40, 0xBE00, 0x3D20, 0x3E80, 0xBEC0,
    0x3B90, 0x3FC9, 0x3C00, 0x8000, 0x3E7F, 0x3B01, 0x3D80,
]  # fmt: skip


def make_foreign(out, rng):
    def valid(name, shape, body, values):
        out.valid("codec", f"foreign_channel_{name}",
                  [(header(shape), body, encode(values, BF16, *shape), values, values)])

    shape = (1, 64, 8)
    values = plane_of(rng, *shape)
    noise = [rng.getrandbits(16) & 0x83FF | 0x3C00 for _ in range(190)]
    valid("coded_although_raw_is_shorter", (1, 19, 10), Body(noise, 1, 19, 10).to_bytes(), noise)
    valid("raw_although_coded_is_shorter", shape, raw_body(values, BF16, *shape), values)
    valid("escapes_without_need", shape, Body(values, *shape, later=(2, 3, 255, 5, 9)).to_bytes(), values)
    valid("other_bases", shape, Body(values, *shape, bases=[117, 116, 130, 121, 119, 115, 123, 118]).to_bytes(), values)
    valid("other_anchor", shape, Body(values, *shape, anchor=0).to_bytes(), values)


def make_refused(out):
    rng = random.Random(9)
    shape = (1, 6, 70)  # two tiles, each of two groups of rows, the last one of two; short base codes
    small = plane_of(rng, *shape, 20)

    def refused(why, name, k_body, values=small, of=shape):
        out.refused("codec", why, f"channel_{name}", frame(header(of), k_body, raw_body(values, BF16, *of)))

    def corrupt(name, k_body, values=small, of=shape):
        refused("corrupt", name, k_body, values, of)

    def patched(body, at, value):
        return body[:at] + bytes([value]) + body[at + 1 :]

    def changed(**fields):
        body = Body(small, *shape)
        for name, value in fields.items():
            assert hasattr(body, name)
            setattr(body, name, value)
        return body.to_bytes()

    def with_counts(change):
        body = Body(small, *shape)
        body.tiles[0].counts = [c + d for c, d in zip(body.tiles[0].counts, change)]
        return body.to_bytes()

    good = Body(small, *shape).to_bytes()
    tile, last = Body(small, *shape).tiles
    tails, end = 320 + 420, 320 + 420 + len(tile.tail + last.tail)
    assert all(a > b > 1 for a, b in zip(tile.counts, tile.counts[1:])) and tile.counts[0] % 4 == 3
    assert len(good) == len(pad16(bytes(end))) > end and last.counts[3] > 0
    refused("unsupported", "version_2", changed(version=2))
    corrupt("truncated_prefix", good[:15])
    corrupt("prefix_only", good[:16])
    corrupt("without_tails", good[:tails])
    corrupt("last_byte_missing", good[:-1])
    corrupt("last_row_missing", good[:-16])
    corrupt("trailing_byte", good + bytes(1))
    corrupt("mode_2", changed(mode=2))
    corrupt("element_type_of_fp16", changed(element_type=FP16))
    corrupt("reserved_byte", changed(reserved=1))
    corrupt("heads_2", changed(heads=2))
    corrupt("rows_and_channels_exchanged", changed(rows=70, channels=6))
    corrupt("rows_4294967295", changed(rows=2**32 - 1))
    corrupt("raw_of_other_shape", raw_body(small, BF16, 1, 70, 6))
    corrupt("raw_padding", patched(raw_body(small, BF16, *shape), len(pad16(bytes(856))) - 1, 1))
    corrupt("more_elements_than_values", with_counts((7 * 64 + 1 - tile.counts[0], 0, 0, 0)))
    corrupt("count_65535", with_counts((65535 - tile.counts[0], 0, 0, 0)))
    corrupt("layer_3_above_layer_2", with_counts((0, tile.counts[0] - tile.counts[1] + 1, 0, 0)))
    corrupt("layer_4_above_layer_3", with_counts((0, 0, tile.counts[1] - tile.counts[2] + 1, 0)))
    corrupt("raw_bytes_above_layer_4", with_counts((0, 0, 0, tile.counts[2] - tile.counts[3] + 1)))
    # The same length, other counts: only the codes tell.
    corrupt("one_element_less", with_counts((-1, 0, 0, 0)))
    corrupt("one_raw_byte_less", with_counts((0, 0, 0, -1)))
    corrupt("one_raw_byte_more", with_counts((0, 0, 0, 1)))
    corrupt("anchors_padding", patched(good, 63, 1))
    corrupt("base_code_behind_last", patched(good, 64 + 17, good[64 + 17] | 0xC0))
    corrupt("base_codes_padding", patched(good, 64 + 18, 1))
    corrupt("code_of_missing_row", patched(good, 128 + 127, good[128 + 127] | 0x10))
    corrupt("codes_padding", patched(good, 128 + 140, 1))
    corrupt("code_of_a_value_escapes", patched(good, 128, good[128] ^ 3))
    corrupt("code_of_an_escape_does_not", patched(good, *first_escape(good, 128)))
    layer_2_end = tails + -(-tile.counts[0] // 4) - 1
    corrupt("code_behind_layer_2", patched(good, layer_2_end, good[layer_2_end] | 0xC0))
    corrupt("tails_padding", patched(good, len(good) - 1, 1))
    zeros = Body([0] * 420, *shape)
    assert zeros.tiles[0].counts == [0, 0, 0, 0]
    corrupt("trailing_row", zeros.to_bytes() + bytes(16), [0] * 420)
    zeros.tiles[1].counts, zeros.tiles[1].tail = [1, 0, 0, 0], bytes(1)
    corrupt("elements_that_nothing_escapes_to", zeros.to_bytes(), [0] * 420)


def first_escape(body, at):
    """The first place from `at` on whose lowest code is an escape, and the byte with another code there."""
    while body[at] & 3 != 3:
        at += 1
    return at, body[at] ^ 1
