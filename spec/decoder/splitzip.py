"""Decoder of splitzip bodies, version 1, written from spec/splitzip.md alone.

SPDX-License-Identifier: Apache-2.0
"""

import struct

from refusal import corrupt, unsupported

RAW, CODED = 0, 1
BF16, FP16 = 2, 3
PREFIX_BYTES = 16
CODEBOOK_BYTES = 16
CHUNK_ELEMENTS = 1024
CHUNK_ESCAPES_MAX = 255
RAW_CHUNK = 65535


def pad16(x):
    return (x + 15) // 16 * 16


class _Sections:
    """Where the parts of a coded body lie, all from the prefix (section 1)."""

    def __init__(self, elements, escapes, raw_exponents):
        self.chunks = -(-elements // CHUNK_ELEMENTS)
        self.codes = PREFIX_BYTES + CODEBOOK_BYTES
        self.codes_end = self.codes + (elements + 1) // 2
        self.signs = self.codes + pad16((elements + 1) // 2)
        self.signs_end = self.signs + elements
        self.counts = self.signs + pad16(elements)
        self.positions = self.counts + 2 * self.chunks
        self.values = self.positions + 2 * escapes
        self.raw_exponents = self.values + escapes
        self.raw_exponents_end = self.raw_exponents + raw_exponents
        self.end = self.counts + pad16(self.raw_exponents_end - self.counts)


def _require_zeros(body, start, end, what):
    if any(body[start:end]):
        raise corrupt(f"padding behind {what} is not zero")


def _require_length(body, expected):
    if len(body) != expected:
        raise corrupt(f"the body has {len(body)} bytes, its prefix means {expected}")


def _chunk_length(chunk, elements):
    return min(CHUNK_ELEMENTS, elements - chunk * CHUNK_ELEMENTS)


def _check_counts(counts, elements, escapes, raw_exponents):
    for chunk, count in enumerate(counts):
        if count > CHUNK_ESCAPES_MAX and count != RAW_CHUNK:
            raise corrupt(f"chunk {chunk} claims {count} escapes")
    if sum(count for count in counts if count != RAW_CHUNK) != escapes:
        raise corrupt("the counts of the chunks do not add up to the number of escapes")
    raw_chunks = [chunk for chunk, count in enumerate(counts) if count == RAW_CHUNK]
    if sum(_chunk_length(chunk, elements) for chunk in raw_chunks) != raw_exponents:
        raise corrupt("the raw chunks do not add up to the number of raw exponents")


def _exponents(body, at, counts, elements):
    """The exponent of every value, in order (section 2)."""
    codebook = body[PREFIX_BYTES : PREFIX_BYTES + CODEBOOK_BYTES]
    exponents = bytearray(elements)
    for i in range(elements):
        pair = body[at.codes + i // 2]
        exponents[i] = codebook[pair >> 4 if i % 2 == 0 else pair & 15]
    escape, raw = 0, at.raw_exponents
    for chunk, count in enumerate(counts):
        first, length = chunk * CHUNK_ELEMENTS, _chunk_length(chunk, elements)
        if count == RAW_CHUNK:
            exponents[first : first + length] = body[raw : raw + length]
            raw += length
            continue
        positions = struct.unpack_from(f"<{count}H", body, at.positions + 2 * escape)
        previous = -1
        for position in positions:
            if not previous < position < length:
                raise corrupt(f"chunk {chunk} has an escape at position {position} out of order or range")
            exponents[first + position] = body[at.values + escape]
            previous = position
            escape += 1
    return exponents


def _decode_coded(body, elements, escapes, raw_exponents):
    at = _Sections(elements, escapes, raw_exponents)
    _require_length(body, at.end)
    if elements % 2 == 1 and body[at.codes_end - 1] & 15:
        raise corrupt("the code behind the last value is not zero")
    _require_zeros(body, at.codes_end, at.signs, "the codes")
    _require_zeros(body, at.signs_end, at.counts, "the sign-mantissa bytes")
    _require_zeros(body, at.raw_exponents_end, at.end, "the raw exponents")
    codebook = body[PREFIX_BYTES : PREFIX_BYTES + CODEBOOK_BYTES]
    if any(a >= b for a, b in zip(codebook, codebook[1:])):
        raise corrupt("the codebook is not ascending")
    counts = struct.unpack_from(f"<{at.chunks}H", body, at.counts)
    _check_counts(counts, elements, escapes, raw_exponents)
    exponents = _exponents(body, at, counts, elements)
    signs = body[at.signs : at.signs_end]
    return [(s & 128) << 8 | e << 7 | s & 127 for s, e in zip(signs, exponents)]


def decode(body, element_type, elements):
    """The values of a plane as 16-bit integers, or a Refusal."""
    if len(body) < PREFIX_BYTES:
        raise corrupt(f"a body of {len(body)} bytes has no room for its prefix")
    version, mode, body_type, reserved, count, escapes, raw_exponents = struct.unpack_from("<4B3I", body)
    if version != 1:
        raise unsupported(f"splitzip body version {version}")
    if mode not in (RAW, CODED) or body_type not in (BF16, FP16) or reserved != 0:
        raise corrupt("mode, element type or reserved byte of the body is out of range")
    if mode == CODED and body_type != BF16:
        raise corrupt("only bf16 planes can be coded")
    if body_type != element_type or count != elements:
        raise corrupt("the body is of another element type or count than the frame")
    if escapes > elements or raw_exponents > elements:
        raise corrupt("more escapes or raw exponents than values")
    if mode == CODED:
        return _decode_coded(body, elements, escapes, raw_exponents)
    if escapes or raw_exponents:
        raise corrupt("a raw body has no escapes")
    end = PREFIX_BYTES + 2 * elements
    _require_length(body, PREFIX_BYTES + pad16(2 * elements))
    _require_zeros(body, end, len(body), "the values")
    return list(struct.unpack_from(f"<{elements}H", body, PREFIX_BYTES))
