"""Decoder of splitzip bodies, version 1, written from spec/splitzip.md alone.

SPDX-License-Identifier: Apache-2.0
"""

import struct

from refusal import corrupt, unsupported

RAW, CODED = 0, 1
BF16, FP16, FP8_E4M3, FP8_E5M2 = 2, 3, 4, 5
# Section 1: bits of a value, of its exponent, and entries of the codebook.
FIELDS = {BF16: (16, 8, 16), FP8_E4M3: (8, 4, 8), FP8_E5M2: (8, 5, 16)}
PREFIX_BYTES = 16
GROUP, CHUNK = 128, 256
CHUNK_ESCAPES_MAX = 127
RAW_CHUNK = 255


def _pad(x, alignment):
    return -(-x // alignment) * alignment


class _Sections:
    """Where the parts of a coded body lie, all from the prefix (section 3)."""

    def __init__(self, element_type, elements, table_words):
        self.padding = []
        self.chunks = -(-elements // CHUNK)
        self.end = PREFIX_BYTES + FIELDS[element_type][2]
        self.nibbles = self._add(64, -(-elements // 2))
        if element_type == BF16:
            self.bytes = self._add(64, elements)
        else:
            self.pairs = self._add(64, -(-elements // 4))
            self.bits = self._add(64, -(-elements // 8))
        self.counts = self._add(64, self.chunks)
        self.table = self._add(2, 2 * table_words)
        self._add(64, 0)

    def _add(self, alignment, length):
        start = _pad(self.end, alignment)
        self.padding.append((self.end, start))
        self.end = start + length
        return start


class _Group:
    """The packed fields of one group; what no place has must be zero (section 2)."""

    def __init__(self, length):
        self.length = length

    def nibbles(self, packed):
        half = -(-self.length // 2)
        self._require_zeros(packed[p - half] >> 4 for p in range(self.length, 2 * half))
        return [packed[p] & 15 if p < half else packed[p - half] >> 4 for p in range(self.length)]

    def triples(self, pairs, bits):
        quarter = -(-self.length // 4)

        def pair(p):
            return pairs[p % quarter] >> 2 * (p // quarter) & 3

        def bit(p):
            return bits[p // 8] >> p % 8 & 1

        self._require_zeros(pair(p) for p in range(self.length, 4 * quarter))
        self._require_zeros(bit(p) for p in range(self.length, _pad(self.length, 8)))
        return [pair(p) | bit(p) << 2 for p in range(self.length)]

    @staticmethod
    def _require_zeros(fields):
        if any(fields):
            raise corrupt("a field that no place has is not zero")


def _codes_and_rests(body, at, element_type, elements):
    """Codes and rests of all places, in order."""
    codes, rests = [], []
    for first in range(0, elements, GROUP):
        group = _Group(min(GROUP, elements - first))
        nibbles = group.nibbles(body[at.nibbles + first // 2 :])
        if element_type == BF16:
            codes += nibbles
            rests += body[at.bytes + first : at.bytes + first + group.length]
            continue
        triples = group.triples(body[at.pairs + first // 4 :], body[at.bits + first // 8 :])
        codes += triples if element_type == FP8_E4M3 else nibbles
        rests += nibbles if element_type == FP8_E4M3 else triples
    return codes, rests


def _chunk_length(chunk, elements):
    return min(CHUNK, elements - chunk * CHUNK)


def _check_counts(counts, elements, table_words):
    words = 0
    for chunk, count in enumerate(counts):
        if count > CHUNK_ESCAPES_MAX and count != RAW_CHUNK:
            raise corrupt(f"chunk {chunk} claims {count} escapes")
        words += -(-_chunk_length(chunk, elements) // 2) if count == RAW_CHUNK else count
    if words != table_words:
        raise corrupt("the counts of the chunks do not add up to the words of the table")


def _check_codebook(codebook, exponent_bits):
    if any(a >= b for a, b in zip(codebook, codebook[1:])):
        raise corrupt("the codebook is not ascending")
    if codebook[-1] >> exponent_bits:
        raise corrupt("the codebook has an exponent out of range")


def _put_escapes(body, at, counts, exponents):
    """Section 3: what chunks have in the escape table. Changes `exponents`."""
    table = at.table
    for chunk, count in enumerate(counts):
        first, length = chunk * CHUNK, _chunk_length(chunk, len(exponents))
        if count == RAW_CHUNK:
            exponents[first : first + length] = body[table : table + length]
            if length % 2 and body[table + length]:
                raise corrupt(f"the byte behind the exponents of raw chunk {chunk} is not zero")
            table += _pad(length, 2)
            continue
        previous = -1
        for word in struct.unpack_from(f"<{count}H", body, table):
            place = word & 255
            if not previous < place < length:
                raise corrupt(f"chunk {chunk} has an escape at place {place} out of order or range")
            exponents[first + place] = word >> 8
            previous = place
        table += 2 * count


def _in_own_order(values, element_type):
    """Values from the order of their places to the order of the plane (section 2)."""
    if element_type != BF16:
        return values
    ordered = list(values)
    for first in range(0, len(values) - GROUP + 1, GROUP):
        for a in range(2):
            for h in range(2):
                for k in range(32):
                    ordered[first + 64 * a + 32 * h + k] = values[first + 64 * a + 2 * k + h]
    return ordered


def _decode_coded(body, element_type, elements, table_words):
    bits, exponent_bits, entries = FIELDS[element_type]
    at = _Sections(element_type, elements, table_words)
    _require_length(body, at.end)
    for start, end in at.padding:
        _require_zeros(body, start, end)
    codebook = body[PREFIX_BYTES : PREFIX_BYTES + entries]
    _check_codebook(codebook, exponent_bits)
    counts = body[at.counts : at.counts + at.chunks]
    _check_counts(counts, elements, table_words)
    codes, rests = _codes_and_rests(body, at, element_type, elements)
    exponents = [codebook[code] for code in codes]
    _put_escapes(body, at, counts, exponents)
    if any(exponent >> exponent_bits for exponent in exponents):
        raise corrupt("an escape has an exponent out of range")
    rotated = [e << bits - exponent_bits | r for e, r in zip(exponents, rests)]
    return _in_own_order([x >> 1 | (x & 1) << bits - 1 for x in rotated], element_type)


def _require_zeros(body, start, end):
    if any(body[start:end]):
        raise corrupt(f"padding from byte {start} on is not zero")


def _require_length(body, expected):
    if len(body) != expected:
        raise corrupt(f"the body has {len(body)} bytes, its prefix means {expected}")


def decode(body, element_type, elements):
    """The values of a plane as integers, or a Refusal."""
    if len(body) < PREFIX_BYTES:
        raise corrupt(f"a body of {len(body)} bytes has no room for its prefix")
    version, mode, body_type, reserved, count, table_words, more = struct.unpack_from("<4B3I", body)
    if version != 1:
        raise unsupported(f"splitzip body version {version}")
    if mode not in (RAW, CODED) or reserved or more:
        raise corrupt("mode or reserved bytes of the body are out of range")
    if body_type != element_type or count != elements:
        raise corrupt("the body is of another element type or count than the frame")
    if mode == CODED and element_type not in FIELDS:
        raise corrupt("fp16 planes cannot be coded")
    if table_words > (elements if mode == CODED else 0):
        raise corrupt("more words of escapes than can be")
    if mode == CODED:
        return _decode_coded(body, element_type, elements, table_words)
    bytes_per_value = 2 if element_type in (BF16, FP16) else 1
    end = PREFIX_BYTES + bytes_per_value * elements
    _require_length(body, _pad(end, 16))
    _require_zeros(body, end, len(body))
    return list(struct.unpack_from(f"<{elements}{'H' if bytes_per_value == 2 else 'B'}", body, PREFIX_BYTES))
