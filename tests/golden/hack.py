"""Golden slabs of format `hack` (spec/hack.md), with an encoder of its own that rounds exact fractions.

SPDX-License-Identifier: Apache-2.0
"""

import math
import random
import struct
from fractions import Fraction
from typing import NamedTuple

TOKENS, HEADS = 64, 2
LAYER, POSITION = 3, 4160  # where all golden slabs lie: random numbers depend on it
NAN = 0x7FC0


class Case(NamedTuple):
    """What `name` says, and which rows are sealed so."""

    rows: str
    bits: tuple
    p: int | None = None
    stochastic: bool = False
    mixed: bool = True
    meta: str = "fp16"

    @property
    def head_dim(self):
        return int(self.rows.partition("-")[2])


CASES = {
    "hack:k=2,v=2": Case("usual-48", (2, 2)),
    "hack:k=4,v=2": Case("usual-48", (4, 2)),
    "hack:k=8,v=8": Case("usual-16", (8, 8)),
    "hack:k=2,v=4,mix=0": Case("usual-48", (2, 4), mixed=False),
    "hack:k=2,v=8,mix=0": Case("usual-16", (2, 8), mixed=False),
    "hack:k=4,v=8,meta=bf16": Case("usual-16", (4, 8), meta="bf16"),
    "hack:k=2,v=2,mix=0,meta=bf16": Case("wide-16", (2, 2), mixed=False, meta="bf16"),
    "hack:k=2,v=2,p=64": Case("large-48", (2, 2), 64, mixed=False),
    "hack:k=8,v=4,p=32": Case("large-48", (8, 4), 32, mixed=False),
    "hack:k=4,v=8,p=128,meta=bf16": Case("wide-16", (4, 8), 128, mixed=False, meta="bf16"),
    "hack:k=2,v=2,p=32,round=sr,mix=1": Case("usual-48", (2, 2), 32, True),
    "hack:k=8,v=4,p=128,round=sr": Case("usual-16", (8, 4), 128, True, mixed=False),
}  # fmt: skip
# Slabs as they are in memory where attention wants sums of codes: those of a case above, and the sums.
WITH_SUMS = {f"{name},compute=complete": name for name in ("hack:k=2,v=2,p=64", "hack:k=8,v=4,p=32")}
# Magnitudes in the second head are below this; mixing makes them up to 4 times as large.
LIMITS = {"usual-16": 2.0**12, "usual-48": 2.0**12, "large-48": 2.0**16, "wide-16": 2.0**56}
# Bits of the mantissa, and the spacing of subnormals as a power of two.
TYPES = {"fp16": (10, -24), "bf16": (7, -133), "fp32": (23, -149)}


def file_name(name):
    return name.replace(":", ".").replace(",", ".")


# ---------------------------------------------------------------------------------------------------------------
# Arithmetic: fp32 numbers are Python's floats. Nothing here is near an overflow.


def rounded(x, kind, rounding=round):
    """The exact number `x` as one of the type: to the nearest, half to even, or by floor or ceil."""
    x = Fraction(x)
    if not x:
        return 0.0
    mantissa_bits, least = TYPES[kind]
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > abs(x)
    quantum = Fraction(2) ** max(exponent - mantissa_bits, least)
    return math.copysign(float(rounding(x / quantum) * quantum), x)


def fl(x):
    """A sum, product or quotient of fp32 numbers in double precision, rounded to fp32: as if rounded once."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def multiply_add(a, b, c):
    """a b + c, rounded once."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return rounded(exact, "fp32") if exact else a * b + c  # zeros have the sign that they have in IEEE 754


def to_type(x, kind):
    """The fp32 number `x` as one of the 16-bit type, zeros with their sign."""
    return rounded(x, kind) if x else x


def to_bytes(x, kind):
    """`x` is one of the type."""
    return struct.pack("<e", x) if kind == "fp16" else struct.pack("<f", x)[2:]


def sum_of_channels(terms):
    sums = list(terms[:16])
    for i, x in enumerate(terms[16:]):
        sums[i % 16] = fl(sums[i % 16] + x)
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [fl(a + b) for a, b in zip(sums[:half], sums[half:])]
    return sums[0]


def mix(row):
    """Section 5."""
    n = math.gcd(len(row), 256)
    step = 1
    while step < n:
        row = [fl(row[i - step] - x) if i & step else fl(x + row[i + step]) for i, x in enumerate(row)]
        step *= 2
    return [fl(x * fl(1 / fl(math.sqrt(n)))) for x in row]


def philox(counter):
    """Philox4x32-10 with the key of section 6."""
    key = [0x636B7372, 0x6B766C68]
    a, b, c, d = counter
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = right >> 32 ^ b ^ key[0], right & 0xFFFFFFFF, left >> 32 ^ d ^ key[1], left & 0xFFFFFFFF
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return a, b, c, d


def random_16(head, is_key, token, channel):
    if is_key:
        position, index, e = POSITION + token, channel // 8, channel % 8
    else:
        position, index, e = POSITION + token // 8 * 8, channel, token % 8
    word = philox((position, index, 2 * head + (not is_key), LAYER))[e // 2]
    return word >> 16 if e % 2 else word & 0xFFFF


# ---------------------------------------------------------------------------------------------------------------
# Section 6: rows [64][d] of fp32 to codes [64][d] and the bytes of metadata.


def seal_group(case, bits, values, draws):
    """One partition of `p=`; `draws` are its random numbers, None without."""
    largest = 2**bits - 1
    m = rounded(min(values), case.meta, math.floor) + 0.0
    step = fl(fl(max(values) - m) / largest)
    s = rounded(step, case.meta, math.ceil)
    if step and case.meta == "bf16":
        s = max(s, 2.0**-126)
    r = fl(1 / s) if s else 0.0
    codes = []
    for i, x in enumerate(values):
        if draws is None:
            code = round(Fraction(fl(x - m)) * Fraction(r))
        else:
            code = math.floor(multiply_add(fl(x - m), r, (2 * draws[i] + 1) / 2**17))
        codes.append(min(max(code, 0), largest))
    return codes, to_bytes(m, case.meta) + to_bytes(s, case.meta)


def partitions(case, is_key, d):
    """The places (token, channel) of each partition, in order of the entries."""
    if is_key:
        for first in range(0, d, case.p):
            for t in range(TOKENS):
                yield [(t, c) for c in range(first, min(first + case.p, d))]
    else:
        p = min(case.p, TOKENS)
        for first in range(0, TOKENS, p):
            for c in range(d):
                yield [(t, c) for t in range(first, first + p)]


def seal_paper(case, head, is_key, rows):
    codes, metadata = [[0] * len(row) for row in rows], b""
    for places in partitions(case, is_key, len(rows[0])):
        draws = [random_16(head, is_key, t, c) for t, c in places] if case.stochastic else None
        group, entry = seal_group(case, case.bits[not is_key], [rows[t][c] for t, c in places], draws)
        metadata += entry
        for (t, c), code in zip(places, group):
            codes[t][c] = code
    return codes, metadata


def scale_of(bits, ys):
    """Step 2: 1 / t, or 0."""
    if bits == 2:
        q = sum_of_channels([fl(y * y) for y in ys])
        t = fl(fl(math.sqrt(fl(q / len(ys)))) * fl(0.996))
    else:
        t = fl(max(abs(y) for y in ys) / ((2**bits - 1) / 2))
    return fl(1 / t) if t >= 2.0**-24 else 0.0


def middle_of(column):
    """Step 1: the middle of a channel's range, what is far from the rest counting only to a limit."""
    least, greatest, total = min(column), max(column), 0.0
    for x in column:
        total = fl(total + x)
    mean = fl(fl(fl(total - least) - greatest) / (TOKENS - 2))
    distances = [abs(fl(x - mean)) for x in column]
    total = 0.0
    for x in distances:
        total = fl(total + x)
    near = fl(fl(fl(total - max(distances)) / (TOKENS - 1)) * 4)
    return fl(fl(max(least, fl(mean - near)) + min(greatest, fl(mean + near))) / 2)


def seal_both(case, bits, rows):
    largest = 2**bits - 1
    half = largest / 2
    columns = list(zip(*rows))
    centre = [middle_of(column) for column in columns]
    codes, scales = [], []
    sums, weights = [0.0] * len(columns), 0.0
    for row in rows:
        ys = [fl(x - c) for x, c in zip(row, centre)]
        r = scale_of(bits, ys)
        codes.append([min(max(round(multiply_add(y, r, half)), 0), largest) for y in ys])
        q = sum_of_channels([fl(y * y) for y in ys])
        g = sum_of_channels([fl(y * (code - half)) for y, code in zip(ys, codes[-1])])
        s = to_type(fl(q / g), case.meta) if r else 0.0
        scales.append(s)
        weight = fl(1 / s) if s else 0.0
        weights = fl(weights + weight)
        errors = [multiply_add(-s, code - half, x) for x, code in zip(row, codes[-1])]
        sums = [fl(a + fl(weight * error)) for a, error in zip(sums, errors)]
    means = [to_type(fl(a / weights) if weights else c, case.meta) for a, c in zip(sums, centre)]
    return codes, b"".join(to_bytes(x, case.meta) for x in means + scales)


# ---------------------------------------------------------------------------------------------------------------
# Sections 1 and 3.


def pack_k(bits, codes):
    n = 32 // bits
    words = [
        sum(row[first + 4 * r + k] << 8 * k + bits * r for r in range(8 // bits) for k in range(4))
        for first in range(0, len(codes[0]), n)
        for row in codes
    ]
    return struct.pack(f"<{len(words)}I", *words)


def token_of(r, c, k):
    return 32 * (r // 2) + 8 * c + 4 * (k // 2) + 2 * (r % 2) + k % 2


def pack_v(bits, codes):
    each = 8 // bits
    words = [
        sum(
            codes[token_of(each * i + e, c, k)][channel] << 8 * k + bits * e for e in range(each) for k in range(4)
        )
        for i in range(4 // each)
        for c in range(4)
        for channel in range(len(codes[0]))
    ]
    return struct.pack(f"<{len(words)}I", *words)


def pad64(data):
    return data + bytes(-len(data) % 64)


def code_plane(case, head, is_key, plane):
    """Codes [64][d] and metadata of bf16 bits [64 * d]."""
    values = [struct.unpack("<f", struct.pack("<I", x << 16))[0] for x in plane]
    d = len(values) // TOKENS
    rows = [values[i : i + d] for i in range(0, len(values), d)]
    if case.mixed:
        rows = [mix(row) for row in rows]
    bits = case.bits[not is_key]
    return seal_both(case, bits, rows) if case.p is None else seal_paper(case, head, is_key, rows)


def seal_plane(case, head, is_key, plane):
    """Both as they lie in a page."""
    codes, metadata = code_plane(case, head, is_key, plane)
    return (pack_k if is_key else pack_v)(case.bits[not is_key], codes), metadata


def plane_sums(case, head, is_key, plane):
    """Section 4: sums of codes, as they lie in a page."""
    codes, _ = code_plane(case, head, is_key, plane)
    groups = list(partitions(case, is_key, len(plane) // TOKENS))
    small = len(groups[0]) * (2 ** case.bits[not is_key] - 1) < 256  # the last one may be shorter
    sums = [sum(codes[t][c] for t, c in group) for group in groups]
    return struct.pack(f"<{len(sums)}{'B' if small else 'H'}", *sums)


def sections(case, heads):
    """Codes of K and of V, metadata of K and of V, head by head: what travels."""
    for head, (k, v) in enumerate(heads):
        parts = seal_plane(case, head, True, k), seal_plane(case, head, False, v)
        yield from (parts[0][0], parts[1][0], parts[0][1], parts[1][1])


def seal(case, heads):
    return b"".join(map(pad64, sections(case, heads)))


def seal_with_sums(case, heads):
    four = list(sections(case, heads))
    slab = b""
    for head, (k, v) in enumerate(heads):
        sums = [plane_sums(case, head, True, k), plane_sums(case, head, False, v)]
        slab += b"".join(map(pad64, four[4 * head : 4 * head + 4] + sums))
    return slab


# ---------------------------------------------------------------------------------------------------------------
# What is sealed.


def bf16(x):
    return struct.unpack("<I", struct.pack("<f", x))[0] >> 16


def usual_plane(rng, d):
    """Values like a model's; one channel far off, one constant, one of zeros; some rows constant or zeros."""

    def value(token, channel):
        if token % 16 == 3:
            return [0x0000, 0x8000, 0x3E9A, 0xC2F7][token // 16]
        if channel == 5:
            return bf16(30 + rng.gauss(0, 1))
        if channel in (6, 7):
            return 0x3F9D if channel == 6 else 0x8000
        return bf16(rng.gauss(channel % 7 - 3, 2.0 ** (channel % 5 - 2)))

    return [value(t, c) for t in range(TOKENS) for c in range(d)]


def wild_plane(rng, d, limit, zeros_before):
    """Every pattern below the limit. The first tokens are zeros, a channel -0 and one almost: there is no scale."""

    def value(token, channel):
        if channel == 1 or token < zeros_before:
            return 0x8000 if channel < 3 else 0x8001 if channel == 3 else 0
        bits = rng.getrandbits(16)
        return bits if bits & 0x7FFF < bf16(limit) else bf16(limit * rng.uniform(-1, 1))

    return [value(t, c) for t in range(TOKENS) for c in range(d)]


def example_rows(kind):
    rng = random.Random(kind)
    d, limit = int(kind.partition("-")[2]), LIMITS[kind]
    # K of the wild head has 20 tokens of zeros; V may have nothing else: there even -0 is stored.
    wild = [wild_plane(rng, d, limit, 20), wild_plane(rng, d, limit, 64 if d == 16 else 0)]
    return [[usual_plane(rng, d), usual_plane(rng, d)], wild]


def foreign_slab(rng, case, size, finite):
    """One page of any bytes; `finite` keeps metadata finite, by the top bit of their exponents."""
    data = bytearray(rng.randbytes(size))
    for at in range(8 * sum(case.bits) * case.head_dim + 1, size if finite else 0, 2):
        data[at] &= 0xBF
    return bytes(data)


def rows_to_bytes(heads):
    values = [x for planes in heads for plane in planes for x in plane]
    return struct.pack(f"<{len(values)}H", *values)


def make(write, open_slab):
    """`open_slab` is the independent reader: what it gives is written beside, for others to compare with."""
    rows = {kind: example_rows(kind) for kind in LIMITS}
    for kind, heads in rows.items():
        write(f"slab/hack/{kind}.rows", rows_to_bytes(heads))
    rng = random.Random(10)
    for number, (name, case) in enumerate(CASES.items()):
        d, path = case.head_dim, file_name(name)
        slab = seal(case, rows[case.rows])
        write(f"slab/hack/{path}.slab", slab)
        write(f"slab/hack/{path}.opened", rows_to_bytes(open_slab(name, HEADS, d, slab)))
        # What no encoder makes; of every fourth format numbers that are not finite among it.
        foreign = foreign_slab(rng, case, len(slab) // HEADS, number % 4 != 0)
        write(f"slab/hack/foreign.{path}.slab", foreign)
        write(f"slab/hack/foreign.{path}.opened", rows_to_bytes(open_slab(name, 1, d, foreign)))
    for name, of in WITH_SUMS.items():
        write(f"slab/hack/{file_name(name)}.slab", seal_with_sums(CASES[of], rows[CASES[of].rows]))
