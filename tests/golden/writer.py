"""Writes kvlane frames and splitzip bodies as spec/frame.md and spec/splitzip.md say, and wrong ones on demand.

A second encoder, simple and slow, that shares nothing with the C++ code: the golden files come from here.
SPDX-License-Identifier: Apache-2.0
"""

import collections
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "spec" / "decoder"))
from xxh3 import xxh3_64  # noqa: E402

MAGIC = bytes.fromhex("8B4B564C414E450A")
HEADER = struct.Struct("<8sHHI32s48s24sBBHIIIQIIIIQ16s")
BF16, FP16 = 2, 3
ELEMENT_NAMES = {BF16: "bf16", FP16: "fp16"}
MODEL = bytes(range(32))
CHUNK = 1024
RAW_CHUNK = 65535


class Header:
    """The fields of a header. What is not given follows from the rest; anything can be set to a wrong value."""

    def __init__(self, **fields):
        self.magic = MAGIC
        self.version = 1
        self.header_bytes = 192
        self.flags = 1
        self.model = MODEL
        self.format = None
        self.codec = "none"
        self.element_type = BF16
        self.reserved_121 = 0
        self.tokens = 1
        self.layer = 0
        self.kv_heads = 1
        self.head_dim = 4
        self.position = 0
        self.plane_elements = None
        self.k_bytes = None
        self.v_bytes = None
        self.reserved_156 = 0
        self.body_checksum = None
        self.reserved_168 = bytes(16)
        self.header_checksum = None
        unknown = set(fields) - set(vars(self))
        assert not unknown, unknown
        vars(self).update(fields)

    def complete(self, k, v):
        """Fills in what follows from the other fields and the coded planes."""
        if self.format is None:
            self.format = ELEMENT_NAMES[self.element_type]
        if self.plane_elements is None:
            self.plane_elements = self.kv_heads * self.tokens * self.head_dim
        if self.k_bytes is None:
            self.k_bytes = len(k)
        if self.v_bytes is None:
            self.v_bytes = len(v)
        if self.body_checksum is None:
            self.body_checksum = xxh3_64(k + v)
        if self.header_checksum is None:
            self.header_checksum = xxh3_64(self._checked_bytes())

    def _checked_bytes(self):
        def name(x):
            return x.encode("ascii") if isinstance(x, str) else x

        return HEADER.pack(
            self.magic, self.version, self.header_bytes, self.flags, self.model, name(self.format),
            name(self.codec), self.element_type, self.reserved_121, self.tokens, self.layer, self.kv_heads,
            self.head_dim, self.position, self.plane_elements, self.k_bytes, self.v_bytes,
            self.reserved_156, self.body_checksum, self.reserved_168,
        )  # fmt: skip

    def to_bytes(self):
        return self._checked_bytes() + struct.pack("<Q", self.header_checksum)

    def to_json(self):
        """The JSON form of section 8 of spec/frame.md, as a dictionary."""
        numbers = "version header_bytes tokens layer kv_heads head_dim position plane_elements k_bytes v_bytes"
        return {field: getattr(self, field) for field in numbers.split()} | {
            "format": self.format,
            "codec": self.codec,
            "element_type": ELEMENT_NAMES[self.element_type],
            "rope_applied": self.flags == 1,
            "model": self.model.hex(),
            "body_checksum": f"{self.body_checksum:016x}",
            "header_checksum": f"{self.header_checksum:016x}",
        }


def frame(header, k, v):
    header.complete(k, v)
    return header.to_bytes() + k + v


def values_to_bytes(values):
    return struct.pack(f"<{len(values)}H", *values)


def pad16(data):
    return data + bytes(-len(data) % 16)


def exponent(value):
    return value >> 7 & 255


def best_codebook(values):
    """The 16 most frequent exponents, the smaller first among equals, in ascending order."""
    counts = collections.Counter(map(exponent, values))
    return sorted(sorted(range(256), key=lambda e: (-counts[e], e))[:16])


class SplitZipBody:
    """The sections of a coded body. Made right by coded_body(); tests then change what they want."""

    def __init__(self):
        self.version, self.mode, self.element_type, self.reserved = 1, 1, BF16, 0
        self.elements = self.escapes = self.raw_exponent_count = None
        self.codebook, self.codes, self.signs = [], [], []
        self.counts, self.positions, self.values, self.raw_exponents = [], [], [], []

    def to_bytes(self):
        def own(stated, true):
            return true if stated is None else stated

        packed = self.codes + [0] * (len(self.codes) % 2)
        prefix = struct.pack(
            "<4B3I", self.version, self.mode, self.element_type, self.reserved,
            own(self.elements, len(self.codes)), own(self.escapes, len(self.positions)),
            own(self.raw_exponent_count, len(self.raw_exponents)),
        )  # fmt: skip
        tables = values_to_bytes(self.counts + self.positions) + bytes(self.values + self.raw_exponents)
        return (
            prefix
            + bytes(self.codebook)
            + pad16(bytes(high << 4 | low for high, low in zip(packed[::2], packed[1::2])))
            + pad16(bytes(self.signs))
            + pad16(tables)
        )


def coded_body(values, codebook=None, escape=(), raw_chunks=()):
    """Codes a bf16 plane. `escape`: values to escape, `raw_chunks`: chunks to store raw, without need."""
    body = SplitZipBody()
    body.codebook = best_codebook(values) if codebook is None else codebook
    code = {e: i for i, e in enumerate(body.codebook)}
    body.signs = [v >> 8 & 128 | v & 127 for v in values]
    for first in range(0, len(values), CHUNK):
        exponents = [exponent(v) for v in values[first : first + CHUNK]]
        escapes = [p for p, e in enumerate(exponents) if e not in code or first + p in escape]
        if len(escapes) >= 256 or first // CHUNK in raw_chunks:
            body.counts.append(RAW_CHUNK)
            body.codes += [0] * len(exponents)
            body.raw_exponents += exponents
            continue
        body.counts.append(len(escapes))
        body.positions += escapes
        body.values += [exponents[p] for p in escapes]
        body.codes += [0 if p in set(escapes) else code[e] for p, e in enumerate(exponents)]
    return body


def raw_body(values, element_type):
    prefix = struct.pack("<4B3I", 1, 0, element_type, 0, len(values), 0, 0)
    return prefix + pad16(values_to_bytes(values))


def splitzip(values, element_type):
    """What every encoder writes: section 4 of spec/splitzip.md."""
    raw = raw_body(values, element_type)
    if element_type != BF16:
        return raw
    coded = coded_body(values).to_bytes()
    return coded if len(coded) < len(raw) else raw
