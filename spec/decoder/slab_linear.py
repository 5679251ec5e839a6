"""Reader of slabs with linear codes, version 1, written from spec/slab_linear.md alone.

SPDX-License-Identifier: Apache-2.0
"""

import math
import struct
from typing import NamedTuple

from page_widths import pair_of
from refusal import corrupt, unsupported

TOKENS = 64
NAN = 0x7FC0
# Section 4: bits, and for floating-point codes the mantissa's bits and the bias, for integers what is subtracted.
INTEGERS = {"uint2": (2, 0), "uint4": (4, 0), "uint8": (8, 0), "sint4": (4, 8), "sint8": (8, 128)}
FLOATS = {"e4m3": (8, 3, 7), "e5m2": (8, 2, 15), "e2m3": (6, 3, 1), "e3m2": (6, 2, 3), "e2m1": (4, 1, 1)}
ENTRY_BYTES = {"e8m0": 1, "scale": 2, "min-scale": 4}
WINDOW = ("sink", "recent")


class Plane(NamedTuple):
    """A row of the table of section 6, for K or for V. `size` is None for whole rows."""

    code: str
    groups: str
    size: int | None
    entry: str

    @property
    def bits(self):
        return (INTEGERS.get(self.code) or FLOATS[self.code])[0]

    def entries(self, d):
        if self.groups == "page":
            return 1
        if self.groups == "row":
            return -(-d // (self.size or d)) * TOKENS
        return TOKENS // self.size * d

    def entry_of(self, d, token, channel):
        if self.groups == "page":
            return 0
        if self.groups == "row":
            return channel // (self.size or d) * TOKENS + token
        return token // self.size * d + channel


def planes(name):
    """What the name of a format says of K and of V."""
    head, _, rest = name.partition(":")
    parameters = dict(part.split("=") for part in rest.split(",")) if rest else {}
    for key in WINDOW:
        parameters.pop(key, None)
    kind, _, code = head.partition("_")
    if head == "kivi" and set(parameters) == {"bits", "group"}:
        code, size = f"uint{parameters['bits']}", int(parameters["group"])
        return Plane(code, "column", size, "min-scale"), Plane(code, "row", size, "min-scale")
    if head in ("int8", "int4") and set(parameters) == {"sym"}:
        symmetric = parameters["sym"] == "1"
        plane = Plane(("s" if symmetric else "u") + head, "row", None, "scale" if symmetric else "min-scale")
    elif parameters or head == "mxfp4_e2m1":
        raise unsupported(f"no such format: {name}")
    elif kind == "fp8" and code in FLOATS:
        plane = Plane(code, "page", None, "e8m0")
    elif head == "mxfp4" or kind in ("mxfp8", "mxfp6") and code in FLOATS:
        plane = Plane(code or "e2m1", "row", 32, "e8m0")
    else:
        raise unsupported(f"no such format: {name}")
    return plane, plane


def sections(name, d):
    """The offsets of the four sections of a page, and its length."""
    at, offsets = 0, []
    for size in section_sizes(name, d):
        offsets.append(at)
        at += -(-size // 64) * 64
    return offsets, at


def section_sizes(name, d):
    """Bytes of the four sections of a page that travel, without gaps."""
    pair = list(zip(planes(name), pair_of(d)))
    return [8 * p.bits * width for p, width in pair] + [ENTRY_BYTES[p.entry] * p.entries(width) for p, width in pair]


def slab_bytes(name, kv_heads, d):
    return kv_heads * sections(name, d)[1]


def used_bytes(name, kv_heads, d):
    return kv_heads * sum(section_sizes(name, d))


def unpack(name, kv_heads, d, packed):
    """Section 8: a slab from its sections without gaps."""
    offsets, page_bytes = sections(name, d)
    sizes = section_sizes(name, d)
    if len(packed) != kv_heads * sum(sizes):
        raise corrupt(f"{kv_heads} heads of {d} travel as {kv_heads * sum(sizes)} bytes, not {len(packed)}")
    slab, at = bytearray(kv_heads * page_bytes), 0
    for head in range(kv_heads):
        for offset, size in zip(offsets, sizes):
            begin = head * page_bytes + offset
            slab[begin : begin + size] = packed[at : at + size]
            at += size
    return bytes(slab)


def to_fp32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0] if abs(x) < 2.0**128 else math.copysign(math.inf, x)


def to_bf16(x):
    """The bits of `x`, an fp32 number, rounded half to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


def value_of_code(kind, code):
    """Section 4."""
    if kind in INTEGERS:
        return float(code - INTEGERS[kind][1])
    bits, w, bias = FLOATS[kind]
    sign = -1.0 if code >> bits - 1 else 1.0
    exponent = (code & (1 << bits - 1) - 1) >> w
    mantissa = (code & (1 << w) - 1) / (1 << w)
    return sign * (2.0 ** (exponent - bias) * (1 + mantissa) if exponent else 2.0 ** (1 - bias) * mantissa)


def field(data, at, bits, d, token, channel):
    """Section 2: one code of the words that begin at `at`."""
    n = 16 // bits
    (word,) = struct.unpack_from("<H", data, at + 2 * (token // n * d + channel))
    return word >> bits * (token % n) & (1 << bits) - 1


def read_code(data, at, bits, d, token, channel):
    if bits != 6:
        return field(data, at, bits, d, token, channel)
    low = field(data, at, 4, d, token, channel)
    return low | field(data, at + 32 * d, 2, d, token, channel) << 4


def read_entry(data, at, entry, index):
    """m and s of section 3."""
    if entry == "e8m0":
        e = data[at + index]
        return -0.0, 2.0 ** (e - 127) if e < 255 else math.nan
    if entry == "scale":
        return 0.0, struct.unpack_from("<e", data, at + 2 * index)[0]
    return struct.unpack_from("<2e", data, at + 4 * index)


def open_plane(plane, d, data, codes_at, entries_at):
    values = []
    for token in range(TOKENS):
        for channel in range(d):
            m, s = read_entry(data, entries_at, plane.entry, plane.entry_of(d, token, channel))
            if not (math.isfinite(m) and math.isfinite(s)):
                values.append(NAN)
                continue
            code = read_code(data, codes_at, plane.bits, d, token, channel)
            # Sums of such numbers are exact in double precision: one rounding.
            values.append(to_bf16(to_fp32(m + s * value_of_code(plane.code, code))))
    return values


def open_slab(name, kv_heads, d, data):
    """The bf16 bits of K and V of each head: a list of pairs of lists [64 * d]."""
    offsets, page_bytes = sections(name, d)
    if len(data) != kv_heads * page_bytes:
        raise corrupt(f"a slab of {kv_heads} heads of {d} has {kv_heads * page_bytes} bytes, not {len(data)}")
    heads = []
    for head in range(kv_heads):
        page = data[head * page_bytes : (head + 1) * page_bytes]
        parts = zip(planes(name), pair_of(d), offsets[:2], offsets[2:])
        heads.append(tuple(open_plane(p, width, page, codes, entries) for p, width, codes, entries in parts))
    return heads
