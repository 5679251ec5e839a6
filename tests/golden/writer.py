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
BF16, FP16, FP8_E4M3, FP8_E5M2 = 2, 3, 4, 5
ELEMENT_NAMES = {BF16: "bf16", FP16: "fp16", FP8_E4M3: "fp8_e4m3", FP8_E5M2: "fp8_e5m2"}
# Bits of a value, of its exponent, and entries of its codebook.
FIELDS = {BF16: (16, 8, 16), FP8_E4M3: (8, 4, 8), FP8_E5M2: (8, 5, 16)}
MODEL = bytes(range(32))
GROUP, CHUNK = 128, 256
RAW_CHUNK = 255


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
        self.reserved_168 = bytes(16)  # of sealed slabs the first half is `tables`
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
        sealed = {"sealed": True, "tables": self.reserved_168[7::-1].hex()} if self.flags & 2 else {}
        return sealed | {field: getattr(self, field) for field in numbers.split()} | {
            "format": self.format,
            "codec": self.codec,
            "element_type": ELEMENT_NAMES[self.element_type],
            "rope_applied": bool(self.flags & 1),
            "model": self.model.hex(),
            "body_checksum": f"{self.body_checksum:016x}",
            "header_checksum": f"{self.header_checksum:016x}",
        }


def frame(header, k, v):
    header.complete(k, v)
    return header.to_bytes() + k + v


def values_to_bytes(values, element_type=BF16):
    width = "H" if element_type in (BF16, FP16) else "B"
    return struct.pack(f"<{len(values)}{width}", *values)


def pad(data, alignment):
    return data + bytes(-len(data) % alignment)


def split(value, element_type):
    """Exponent and rest of a value."""
    bits, exponent_bits, _ = FIELDS[element_type]
    rotated = value << 1 & (1 << bits) - 1 | value >> bits - 1
    rest_bits = bits - exponent_bits
    return rotated >> rest_bits, rotated & (1 << rest_bits) - 1


def by_place(values, element_type):
    """The values of a plane in the order of their places in a body."""
    if element_type != BF16:
        return list(values)
    whole = len(values) // GROUP * GROUP
    places = [
        values[first + 64 * a + 32 * h + k]
        for first in range(0, whole, GROUP) for a in range(2) for k in range(32) for h in range(2)
    ]  # fmt: skip
    return places + list(values[whole:])


def groups(fields):
    return [fields[first : first + GROUP] for first in range(0, len(fields), GROUP)]


def packed(fields, width):
    """Fields of `width` bits, 8 / width of them in a byte: those of one byte are a step apart."""
    data = b""
    for group in groups(fields):
        step = -(-len(group) * width // 8)
        rows = [group[first : first + step] for first in range(0, len(group), step)]
        rows = [row + [0] * (step - len(row)) for row in rows]
        data += bytes(sum(row[j] << width * f for f, row in enumerate(rows)) for j in range(step))
    return data


def packed_bits(bits):
    data = b""
    for group in groups(bits):
        data += sum(bit << p for p, bit in enumerate(group)).to_bytes(-(-len(group) // 8), "little")
    return data


def best_codebook(values, element_type=BF16):
    """The most frequent exponents, the smaller first among equals, in ascending order."""
    _, exponent_bits, entries = FIELDS[element_type]
    counts = collections.Counter(split(v, element_type)[0] for v in values)
    return sorted(sorted(range(1 << exponent_bits), key=lambda e: (-counts[e], e))[:entries])


class SplitZipBody:
    """The sections of a coded body. Made right by coded_body(); tests then change what they want."""

    def __init__(self, element_type):
        self.version, self.mode, self.element_type, self.reserved = 1, 1, element_type, 0
        self.elements = self.table_words = None
        self.reserved_12 = 0
        self.codebook, self.codes, self.rests, self.counts = [], [], [], []
        self.tables = []  # bytes of each chunk in the escape table

    def dense(self):
        if self.element_type == BF16:
            return [packed(self.codes, 4), bytes(self.rests)]
        e4m3 = self.element_type == FP8_E4M3
        nibbles, triples = (self.rests, self.codes) if e4m3 else (self.codes, self.rests)
        return [packed(nibbles, 4), packed([t & 3 for t in triples], 2), packed_bits([t >> 2 for t in triples])]

    def to_bytes(self):
        def own(stated, true):
            return true if stated is None else stated

        table = b"".join(self.tables)
        prefix = struct.pack(
            "<4B3I", self.version, self.mode, self.element_type, self.reserved,
            own(self.elements, len(self.codes)), own(self.table_words, len(table) // 2), self.reserved_12,
        )  # fmt: skip
        body = pad(prefix + bytes(self.codebook), 64)
        for section in self.dense():
            body = pad(body + section, 64)
        return pad(pad(body + bytes(self.counts), 2) + table, 64)


def escape_words(exponents, places):
    return struct.pack(f"<{len(places)}H", *(exponents[p] << 8 | p for p in places))


def coded_body(values, codebook=None, escape=(), raw_chunks=(), element_type=BF16):
    """Codes a plane. `escape`: places to escape, `raw_chunks`: chunks to store raw, without need."""
    body = SplitZipBody(element_type)
    body.codebook = best_codebook(values, element_type) if codebook is None else codebook
    code = {e: i for i, e in enumerate(body.codebook)}
    fields = [split(v, element_type) for v in by_place(values, element_type)]
    body.rests = [rest for _, rest in fields]
    for first in range(0, len(fields), CHUNK):
        exponents = [e for e, _ in fields[first : first + CHUNK]]
        escapes = [p for p, e in enumerate(exponents) if e not in code or first + p in escape]
        if len(escapes) >= 128 or first // CHUNK in raw_chunks:
            body.counts.append(RAW_CHUNK)
            body.codes += [0] * len(exponents)
            body.tables.append(pad(bytes(exponents), 2))
            continue
        body.counts.append(len(escapes))
        body.tables.append(escape_words(exponents, escapes))
        escaped = set(escapes)
        body.codes += [0 if p in escaped else code[e] for p, e in enumerate(exponents)]
    return body


def raw_body(values, element_type):
    prefix = struct.pack("<4B3I", 1, 0, element_type, 0, len(values), 0, 0)
    return pad(prefix + values_to_bytes(values, element_type), 16)


def splitzip(values, element_type):
    """What every encoder writes that counts the plane itself: section 5 of spec/splitzip.md."""
    raw = raw_body(values, element_type)
    if element_type not in FIELDS:
        return raw
    coded = coded_body(values, element_type=element_type).to_bytes()
    return coded if len(coded) < len(raw) else raw
