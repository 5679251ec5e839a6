"""Reader of sealed slabs of format `zack`, version 1, written from spec/slab_zack.md alone.

SPDX-License-Identifier: Apache-2.0
"""

import itertools
import math
import re
import struct
from typing import NamedTuple

import slab_hack
import slab_linear
from refusal import corrupt, unsupported

TOKENS = 64
TILE = 16
HEAD_DIM_MAX = 256
SHARE_PARTS = 10000  # of a share: its four decimals
# Section 1: each parameter at its place, and only where it differs from the usual.
NAME = re.compile(
    r"zack:keep=(?P<keep>1|0\.[0-9]{0,3}[1-9])(?P<uniform>,ranks=uniform)?(?P<energies>,weigh=energies)?"
    r"(?:,sink=[1-9][0-9]*)?(?:,recent=[1-9][0-9]*)?(?:\+(?P<codes>.+))?"
)
# What `zack` says itself, or does not have.
OWN_BLOCK = re.compile("[:,](?:sink|recent|ktail|rqe|diag)=")


class Format(NamedTuple):
    """What a name says of bytes. `codes` is the format of pages, None where they hold BF16."""

    keep: int  # of SHARE_PARTS
    uniform: bool
    energies: bool
    codes: str | None


def format_of(name):
    match = NAME.fullmatch(name)
    if not match:
        raise unsupported(f"no such format: {name}")
    if match["uniform"] and match["energies"]:
        raise unsupported(f"with ranks=uniform nothing is weighed: {name}")
    codes = match["codes"]
    if codes:
        if OWN_BLOCK.search(codes):
            raise unsupported(f"windows stand before the '+', and an own block is in 16 bits: {name}")
        page_bytes(codes, (TILE, TILE))  # refuses what is no format of pages
    keep = SHARE_PARTS if match["keep"] == "1" else int(match["keep"][2:].ljust(4, "0"))
    return Format(keep, bool(match["uniform"]), bool(match["energies"]), codes)


# ---------------------------------------------------------------------------------------------------------------
# Section 2: widths.


def tails(values):
    """tail[m] for m = 1 ... d / 16 of a head's weights, largest first."""
    total, behind = 0.0, {}
    for i in range(len(values) - 1, -1, -1):
        if (i + 1) % TILE == 0:
            behind[(i + 1) // TILE] = total
        total += values[i]
    return [behind[m] / total if total else 0.0 for m in range(1, len(values) // TILE + 1)]


def threshold(all_tails, keep):
    """r, from the tails of K and V of all heads and layers; None where every width is d."""
    tiles = len(all_tails[0])
    ascending = sorted(tail for tails_of_one in all_tails for tail in tails_of_one[:-1])
    n = TILE * tiles * len(all_tails)
    drop = n - n * keep // SHARE_PARTS
    count = -(-drop // TILE)
    return ascending[count - 1] if count else None


def widths(name, tables, shape):
    """(of K, of V) as [layer][head]. shape: (kv_heads, head_dim, layers)."""
    form = format_of(name)
    heads, d, layers = shape
    if d % TILE or not TILE <= d <= HEAD_DIM_MAX or form.keep * d < TILE * SHARE_PARTS:
        raise unsupported(f"{name} of heads of {d}")
    if form.uniform:
        width = d * form.keep // SHARE_PARTS // TILE * TILE
        return [[(width, width)] * heads for _ in range(layers)]
    all_tails = []
    for layer in range(layers):
        of_layer = [tables[f"zack.layers.{layer}.{part}.singular_values"] for part in "kv"]
        for head in range(heads):
            for values in of_layer:
                own = values[head * d : (head + 1) * d]
                if not all(math.inf > a >= b >= 0 for a, b in zip(own, own[1:])):
                    raise unsupported(f"singular values of layer {layer} do not descend")
                all_tails.append(tails([s * s for s in own] if form.energies else own))
    r = threshold(all_tails, form.keep)
    found = iter(
        d if r is None else TILE * next(m for m, tail in enumerate(own, 1) if tail <= r) for own in all_tails
    )
    return [[(next(found), next(found)) for _ in range(heads)] for _ in range(layers)]


# ---------------------------------------------------------------------------------------------------------------
# Sections 3 to 5: pages. `pages` are the widths of a layer's heads.


def reader_of(codes):
    return slab_hack if codes.startswith("hack:") else slab_linear


def page_bytes(codes, page):
    """Bytes of a page of these widths in memory."""
    return reader_of(codes).slab_bytes(codes, 1, page) if codes else 2 * TOKENS * sum(page)


def wire_bytes(codes, page):
    return reader_of(codes).used_bytes(codes, 1, page) if codes else page_bytes(codes, page)


def split(data, sizes, what):
    """The parts of `data`, which must be as long as they are together."""
    if len(data) != sum(sizes):
        raise corrupt(f"{what} of {sum(sizes)} bytes in {len(data)}")
    ends = list(itertools.accumulate(sizes))
    return [data[end - size : end] for end, size in zip(ends, sizes)]


def slab_bytes(name, pages):
    return sum(page_bytes(format_of(name).codes, page) for page in pages)


def used_bytes(name, pages):
    """The bytes that travel."""
    return sum(wire_bytes(format_of(name).codes, page) for page in pages)


def unpack(name, pages, packed):
    """Section 5: the slab of a frame's body."""
    codes = format_of(name).codes
    parts = split(packed, [wire_bytes(codes, page) for page in pages], "a slab")
    if codes:
        parts = [reader_of(codes).unpack(codes, 1, page, part) for page, part in zip(pages, parts)]
    return b"".join(parts)


def plane_widths(pages):
    """Channels of the planes K and V of a slab without codes."""
    return [sum(page[part] for page in pages) for part in range(2)]


def slab_of_planes(pages, planes):
    """The slab of the rows of its values, planes K and V: [64][plane_widths()]."""
    slab, first = [], [0, 0]
    for page in pages:
        k, v = (
            [rows[t * all_widths + at : t * all_widths + at + width] for t in range(TOKENS)]
            for rows, all_widths, at, width in zip(planes, plane_widths(pages), first, page)
        )
        slab += [k[t][i + half] for i in range(0, page[0], 2) for t in range(TOKENS) for half in range(2)]
        slab += [v[t + half][c] for t in range(0, TOKENS, 2) for c in range(page[1]) for half in range(2)]
        first = [at + width for at, width in zip(first, page)]
    return struct.pack(f"<{len(slab)}H", *slab)


def plane(bits, width, d):
    """[64][width] with zeros behind each row."""
    return [x for t in range(TOKENS) for x in [*bits[t * width : (t + 1) * width], *[0] * (d - width)]]


def open_slab(name, pages, d, data):
    """The bf16 bits of K and V of each head in the rotated basis: a list of pairs of lists [64 * d]."""
    codes = format_of(name).codes
    heads = []
    for page, part in zip(pages, split(data, [page_bytes(codes, page) for page in pages], "a slab")):
        if codes:
            ((k, v),) = reader_of(codes).open_slab(codes, 1, page, part)
        else:
            words_k, words_v = (
                [x for (x,) in struct.iter_unpack("<H", half)]
                for half in split(part, [2 * TOKENS * width for width in page], "a page")
            )
            k = [words_k[2 * (i // 2 * TOKENS + t) + i % 2] for t in range(TOKENS) for i in range(page[0])]
            v = [words_v[2 * (t // 2 * page[1] + c) + t % 2] for t in range(TOKENS) for c in range(page[1])]
        heads.append((plane(k, page[0], d), plane(v, page[1], d)))
    return heads
