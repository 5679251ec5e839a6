"""Golden slabs with linear codes (spec/slab_linear.md), with an encoder of its own in exact fractions.

SPDX-License-Identifier: Apache-2.0
"""

import bisect
import math
import random
import struct
from fractions import Fraction

TOKENS = 64
HEAD_DIM = 36  # a block of 32 and one of 4
# Name: code of K and V, groups of K and of V as (kind, size), entry. Rows without a size are one group.
FORMATS = {
    "fp8_e4m3": ("e4m3", ("page", 0), ("page", 0), "e8m0"),
    "fp8_e5m2": ("e5m2", ("page", 0), ("page", 0), "e8m0"),
    "mxfp8_e4m3": ("e4m3", ("row", 32), ("row", 32), "e8m0"),
    "mxfp8_e5m2": ("e5m2", ("row", 32), ("row", 32), "e8m0"),
    "mxfp6_e2m3": ("e2m3", ("row", 32), ("row", 32), "e8m0"),
    "mxfp6_e3m2": ("e3m2", ("row", 32), ("row", 32), "e8m0"),
    "mxfp4": ("e2m1", ("row", 32), ("row", 32), "e8m0"),
    "int8:sym=1": ("sint8", ("row", None), ("row", None), "scale"),
    "int8:sym=0": ("uint8", ("row", None), ("row", None), "min-scale"),
    "int4:sym=1": ("sint4", ("row", None), ("row", None), "scale"),
    "int4:sym=0": ("uint4", ("row", None), ("row", None), "min-scale"),
    "kivi:bits=2,group=32": ("uint2", ("column", 32), ("row", 32), "min-scale"),
    "kivi:bits=2,group=64": ("uint2", ("column", 64), ("row", 64), "min-scale"),
    "kivi:bits=4,group=32": ("uint4", ("column", 32), ("row", 32), "min-scale"),
    "kivi:bits=4,group=64": ("uint4", ("column", 64), ("row", 64), "min-scale"),
}
# Exponent bits, mantissa bits, largest finite code.
FLOATS = {"e4m3": (4, 3, 126), "e5m2": (5, 2, 123), "e2m3": (2, 3, 31), "e3m2": (3, 2, 31), "e2m1": (2, 1, 7)}


def file_name(name):
    return name.replace(":", ".").replace(",", ".")


def bits_of(code):
    return int(code[4:]) if code not in FLOATS else 1 + sum(FLOATS[code][:2])


def exact(bits):
    return Fraction(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


def log2_floor(x):
    """For x > 0."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


def fl(x):
    """Rounded to fp32; nothing here is near its overflow."""
    if x == 0:
        return x
    quantum = Fraction(2) ** max(log2_floor(abs(x)) - 23, -149)
    return round(x / quantum) * quantum  # half to even


def fp16(x, rounding):
    """The bits and the value of the fp16 number that `rounding` (floor or ceil) gives."""
    magnitude = abs(x)
    quantum = Fraction(2) ** max(log2_floor(magnitude) - 10, -24) if magnitude else Fraction(1)
    value = rounding(x / quantum) * quantum
    return struct.unpack("<H", struct.pack("<e", float(value)))[0], value


def float_magnitudes(code):
    exponent_bits, mantissa_bits, largest = FLOATS[code]
    bias = 2 ** (exponent_bits - 1) - 1
    values = []
    for i in range(largest + 1):
        exponent, mantissa = i >> mantissa_bits, Fraction(i % 2**mantissa_bits, 2**mantissa_bits)
        values.append(Fraction(2) ** (max(exponent, 1) - bias) * (mantissa + (exponent > 0)))
    return values


def seal_floats(code, group, saturates):
    values = float_magnitudes(code)
    largest = max(abs(exact(x)) for x in group)
    emax = log2_floor(values[-1])
    e = log2_floor(largest) - emax + 127 if largest else 0
    if largest and not saturates and largest / Fraction(2) ** (e - 127) > values[-1]:
        e += 1
    e = min(max(e, 0), 254 - emax)
    scale = Fraction(2) ** (e - 127)

    def nearest(x):
        magnitude = abs(exact(x)) / scale
        above = bisect.bisect_left(values, magnitude)
        near = range(max(above - 1, 0), min(above + 1, len(values)))
        best = min(near, key=lambda i: (abs(values[i] - magnitude), i % 2))
        return best | (x >> 15) << bits_of(code) - 1

    return bytes([e]), [nearest(x) for x in group]


def seal_integers(code, group, entry):
    bits = bits_of(code)
    values = [exact(x) for x in group]
    if entry == "min-scale":
        m_bits, m = fp16(min(values), math.floor)
        s_bits, s = fp16(fl(fl(max(values) - m) / (2**bits - 1)), math.ceil)
        data, offset = struct.pack("<2H", m_bits, s_bits), 0
    else:
        m = Fraction(0)
        s_bits, s = fp16(fl(max(abs(x) for x in values) / (2 ** (bits - 1) - 1)), math.ceil)
        data, offset = struct.pack("<H", s_bits), 2 ** (bits - 1)
    r = fl(1 / s) if s else 0
    return data, [round(fl(x - m) * r) + offset for x in values]


def groups(kind, size, d):
    """The places (token, channel) of each group, in order of the entries."""
    channels = range(d)
    if kind == "page":
        yield [(t, c) for t in range(TOKENS) for c in channels]
    elif kind == "row":
        for first in range(0, d, size or d):
            for t in range(TOKENS):
                yield [(t, c) for c in channels[first : first + (size or d)]]
    else:
        for first in range(0, TOKENS, size):
            for c in channels:
                yield [(t, c) for t in range(first, first + size)]


def pack(bits, codes, d):
    """`codes` by (token, channel), as words along the tokens."""
    if bits == 6:
        low = {place: code & 15 for place, code in codes.items()}
        return pack(4, low, d) + pack(2, {place: code >> 4 for place, code in codes.items()}, d)
    n = 16 // bits
    words = []
    for i in range(TOKENS // n):
        for c in range(d):
            words.append(sum(codes[n * i + j, c] << bits * j for j in range(n)))
    return struct.pack(f"<{len(words)}H", *words)


def pad64(data):
    return data + bytes(-len(data) % 64)


def seal_plane(code, kind_and_size, entry, saturates, rows):
    """Codes and metadata of rows [64 * d]."""
    codes, metadata, d = {}, b"", len(rows) // TOKENS
    for places in groups(*kind_and_size, d):
        group = [rows[t * d + c] for t, c in places]
        sealed = seal_floats(code, group, saturates) if code in FLOATS else seal_integers(code, group, entry)
        metadata += sealed[0]
        codes.update(zip(places, sealed[1]))
    return pack(bits_of(code), codes, d), metadata


def sections(name, heads):
    """Codes of K and of V, metadata of K and of V, head by head."""
    code, k_groups, v_groups, entry = FORMATS[name]
    for k, v in heads:
        parts = [seal_plane(code, g, entry, name.startswith("mx"), rows) for g, rows in ((k_groups, k), (v_groups, v))]
        yield from (parts[0][0], parts[1][0], parts[0][1], parts[1][1])


def seal(name, heads):
    return b"".join(map(pad64, sections(name, heads)))


def packed(name, heads):
    """What travels of the slab."""
    return b"".join(sections(name, heads))


def example_rows():
    """Two heads: values like a model's, and every pattern up to 65280 with constant rows and channels between."""
    rng = random.Random(8)

    def plain(_, channel):
        x = rng.gauss(channel % 7 - 3, 2.0 ** (channel % 5 - 2))
        return struct.unpack("<I", struct.pack("<f", x))[0] >> 16

    def any_bits(token, channel):
        if token % 8 == 3:
            return [0x0000, 0x8000, 0x3E9A, 0xC2F7][token // 8 % 4]
        bits = rng.getrandbits(16)
        return bits if channel == 5 or bits & 0x7FFF < 0x4780 else bits & 0xBFFF

    heads = []
    for value in (plain, any_bits):
        planes = [[value(t, c) for t in range(TOKENS) for c in range(HEAD_DIM)] for _ in range(2)]
        heads.append(planes)
    for plane in heads[1]:  # a channel of one value, one of zeros; and what is left above the limit
        for t in range(TOKENS):
            plane[t * HEAD_DIM + 5] = 0x3F9D
            plane[t * HEAD_DIM + 6] = 0x8000
    return heads


def rows_to_bytes(heads):
    values = [x for planes in heads for plane in planes for x in plane]
    return struct.pack(f"<{len(values)}H", *values)


def make(write, open_slab):
    """`open_slab` is the independent reader: what it gives is written beside, for others to compare with."""
    heads = example_rows()
    write("slab/linear/rows.rows", rows_to_bytes(heads))
    rng = random.Random(9)
    for name in FORMATS:
        slab = seal(name, heads)
        write(f"slab/linear/{file_name(name)}.slab", slab)
        write(f"slab/linear/{file_name(name)}.opened", rows_to_bytes(open_slab(name, 2, HEAD_DIM, slab)))
        # What no encoder makes; scales that are NaN among it.
        foreign = rng.randbytes(len(slab) // 2)
        write(f"slab/linear/foreign.{file_name(name)}.slab", foreign)
        write(f"slab/linear/foreign.{file_name(name)}.opened", rows_to_bytes(open_slab(name, 1, HEAD_DIM, foreign)))
