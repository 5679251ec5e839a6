"""Reader of slabs of format `hack`, version 2, written from spec/hack.md alone.

SPDX-License-Identifier: Apache-2.0
"""

import math
import re
import struct
from typing import NamedTuple

from binary32 import f32, from_bf16, to_bf16
from page_widths import pair_of
from refusal import corrupt, unsupported

TOKENS = 64
NAN = 0x7FC0
# Section 2: each parameter at its place, and only where it differs from the usual.
NAME = re.compile(
    r"hack:k=(?P<k>[248]),v=(?P<v>[248])"
    r"(?:,p=(?P<p>32|64|128)(?P<sr>,round=sr)?(?P<mix>,mix=1)?|(?P<no_mix>,mix=0)?)"
    r"(?P<bf16>,meta=bf16)?"
    r"(?:,compute=(?:bf16|dequantise)|(?(p)(?P<complete>,compute=complete(?P<taken>,sums=computed)?)|(?!)))?"
    r"(?(p)(?:,ktail=code)?(?:,rqe=0)?(?:,diag=int8)?)"
    r"(?:,sink=[1-9][0-9]*)?(?:,recent=[1-9][0-9]*)?"
)


class Format(NamedTuple):
    """What a name says of bytes. `p` is None where a value has m of its channel and s of its token."""

    bits: tuple  # of K, of V
    p: int | None
    stochastic: bool
    mixed: bool
    meta: str
    sums: bool  # in memory; they do not travel


def format_of(name):
    match = NAME.fullmatch(name)
    if not match:
        raise unsupported(f"no such format: {name}")
    mixed = bool(match["mix"]) if match["p"] else not match["no_mix"]
    return Format(
        (int(match["k"]), int(match["v"])),
        match["p"] and int(match["p"]),
        bool(match["sr"]),
        mixed,
        "bf16" if match["bf16"] else "fp16",
        bool(match["complete"]) and not match["taken"],
    )


def section_sizes(form, d):
    """Bytes of the four sections of a page that travel, without padding."""
    for width in pair_of(d):
        if width % 16 or not 16 <= width <= 256:
            raise unsupported(f"head_dim is a multiple of 16, at most 256, not {width}")
    codes = [8 * bits * width for bits, width in zip(form.bits, pair_of(d))]
    if form.p is None:
        return codes + [2 * (width + TOKENS) for width in pair_of(d)]
    k, v = pair_of(d)
    return codes + [4 * -(-k // form.p) * TOKENS, 4 * TOKENS // min(form.p, TOKENS) * v]


def sum_size(form, is_key, d):
    """Section 4: the bytes of a sum of codes."""
    codes = min(form.p, d if is_key else TOKENS)
    return 1 if codes * ((1 << form.bits[0 if is_key else 1]) - 1) < 256 else 2


def sums_sizes(form, d):
    """Bytes of the sections of sums, without padding."""
    k, v = pair_of(d)
    entries = (-(-k // form.p) * TOKENS, TOKENS // min(form.p, TOKENS) * v)
    return [count * sum_size(form, is_key, k) for count, is_key in zip(entries, (True, False))]


def sections(form, d):
    """The offsets of the sections of a page, and its length."""
    at, offsets = 0, []
    for size in section_sizes(form, d) + (sums_sizes(form, d) if form.sums else []):
        offsets.append(at)
        at += -(-size // 64) * 64
    return offsets, at


def unpack(name, kv_heads, d, packed):
    """Section 1: a slab from what travels, its sections without the zeros between and without sums."""
    form = format_of(name)
    sizes = section_sizes(form, d)
    if len(packed) != kv_heads * sum(sizes):
        raise corrupt(f"{kv_heads} heads of {d} travel as {kv_heads * sum(sizes)} bytes, not {len(packed)}")
    slab, at = b"", 0
    for _ in range(kv_heads):
        page = []
        for size in sizes:
            page.append(packed[at : at + size])
            at += size
        if form.sums:
            k, v = pair_of(d)
            page += [code_sums(form, True, k, page[0]), code_sums(form, False, v, page[1])]
        slab += b"".join(section + bytes(-len(section) % 64) for section in page)
    return slab


def slab_bytes(name, kv_heads, d):
    return kv_heads * sections(format_of(name), d)[1]


def used_bytes(name, kv_heads, d):
    """What section 8 counts: all but padding."""
    return kv_heads * sum(section_sizes(format_of(name), d))


def k_code(words, bits, token, channel):
    """Section 3, words [d/n][64]."""
    j, within = divmod(channel, 32 // bits)
    r, k = divmod(within, 4)
    return words[TOKENS * j + token] >> 8 * k + bits * r & (1 << bits) - 1


# (r, c, k) of each token.
V_PLACES = {
    32 * (r // 2) + 8 * c + 4 * (k // 2) + 2 * (r % 2) + k % 2: (r, c, k)
    for r in range(4)
    for c in range(4)
    for k in range(4)
}


def v_code(words, bits, d, token, channel):
    """Section 3, words [2 bits][4][d] for the 16 groups of four tokens."""
    r, c, k = V_PLACES[token]
    i, e = divmod(r, 8 // bits)
    return words[(4 * i + c) * d + channel] >> 8 * k + bits * e & (1 << bits) - 1


def metadata(form, data):
    if form.meta == "bf16":
        return [from_bf16(bits) for (bits,) in struct.iter_unpack("<H", data)]
    return [x for (x,) in struct.iter_unpack("<e", data)]


def entry_of(form, is_key, d, token, channel):
    """Which entry `m, s` a value has with `p`."""
    if is_key:
        return channel // form.p * TOKENS + token
    return token // min(form.p, TOKENS) * d + channel


def code_sums(form, is_key, d, code_bytes):
    """The section of sums of codes of K or of V."""
    bits = form.bits[0 if is_key else 1]
    words = [word for (word,) in struct.iter_unpack("<I", code_bytes)]
    size = sum_size(form, is_key, d)
    sums = [0] * (sums_sizes(form, d)[0 if is_key else 1] // size)
    for token in range(TOKENS):
        for channel in range(d):
            code = k_code(words, bits, token, channel) if is_key else v_code(words, bits, d, token, channel)
            sums[entry_of(form, is_key, d, token, channel)] += code
    return struct.pack(f"<{len(sums)}{'B' if size == 1 else 'H'}", *sums)


def coded_rows(form, is_key, d, code_bytes, metadata_bytes):
    """The values of section 4: 64 rows of d."""
    bits = form.bits[0 if is_key else 1]
    words = [word for (word,) in struct.iter_unpack("<I", code_bytes)]
    numbers = metadata(form, metadata_bytes)
    half = ((1 << bits) - 1) / 2
    rows = []
    for token in range(TOKENS):
        row = []
        for channel in range(d):
            code = k_code(words, bits, token, channel) if is_key else v_code(words, bits, d, token, channel)
            if form.p is None:
                m, s = numbers[channel], numbers[d + token]
                code -= half
            else:
                at = 2 * entry_of(form, is_key, d, token, channel)
                m, s = numbers[at], numbers[at + 1]
            # The product has at most 19 bits, so it is exact in double precision; a sum that is not exact
            # there is of numbers so far apart that the larger one is the result in fp32.
            row.append(f32(m + s * code))
        rows.append(row)
    return rows


def mix(row):
    """Section 5: a new row."""
    n = len(row) & -len(row)
    factor = f32(1 / f32(math.sqrt(n)))
    row, step = list(row), 1
    while step < n:
        for i in range(len(row)):
            if not i & step:
                a, b = row[i], row[i + step]
                row[i], row[i + step] = f32(a + b), f32(a - b)
        step *= 2
    return [f32(x * factor) for x in row]


def open_values(name, kv_heads, d, data):
    """K and V of each head in fp32: a list of pairs of lists [64 * d]."""
    form = format_of(name)
    offsets, page_bytes = sections(form, d)
    if len(data) != kv_heads * page_bytes:
        raise corrupt(f"a slab of {kv_heads} heads of {d} has {kv_heads * page_bytes} bytes, not {len(data)}")
    heads = []
    for head in range(kv_heads):
        parts = [
            data[head * page_bytes + at : head * page_bytes + at + size]
            for at, size in zip(offsets, section_sizes(form, d))
        ]
        planes = []
        for plane, width in enumerate(pair_of(d)):
            rows = coded_rows(form, plane == 0, width, parts[plane], parts[2 + plane])
            planes.append([x for row in rows for x in (mix(row) if form.mixed else row)])
        heads.append(tuple(planes))
    return heads


def open_slab(name, kv_heads, d, data):
    """The bf16 bits of K and V of each head: a list of pairs of lists [64 * d]. All NaN are 7FC0."""
    heads = open_values(name, kv_heads, d, data)
    return [tuple([NAN if math.isnan(x) else to_bf16(x) for x in plane] for plane in planes) for planes in heads]
