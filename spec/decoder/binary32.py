"""IEEE binary32 and BF16 with Python's floats: what the pages of sealed slabs compute with.

Sums and products of two binary32 values round the same way through binary64, and so do quotients.

SPDX-License-Identifier: Apache-2.0
"""

import math
import struct


def f32(x):
    """x rounded to the nearest binary32 value, half to even; too large ones are infinite."""
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def from_bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def to_bf16(x):
    """The bits of the nearest BF16 value of a binary32 value that is no NaN."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) & 0xFFFF


def is_finite_bf16(bits):
    return bits & 0x7F80 != 0x7F80


def round_even(x):
    """The nearest whole number, half to even."""
    return round(x)
