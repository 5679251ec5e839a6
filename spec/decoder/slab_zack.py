"""Reader of sealed slabs of format `zack`, version 3, written from spec/slab_zack.md alone.

Slabs of section 7, in codes of `kvquant`, have a reader of their own: slab_zack_kvquant.py.

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
CODE_BITS = (2, 4, 8)
BITS_MAX = 16
# Section 1: each parameter at its place, and only where it differs from the usual.
NAME = re.compile(
    r"zack:(?:keep=(?P<keep>1|0\.[0-9]{0,3}[1-9])(?P<uniform>,ranks=uniform)?(?P<energies>,weigh=energies)?"
    r"|bits=(?P<bits>[1-9][0-9]?|(?:0|[1-9][0-9]?)\.[0-9]{0,3}[1-9]))"
    r"(?:,sink=[1-9][0-9]*)?(?:,recent=[1-9][0-9]*)?(?:\+(?P<codes>.+))?"
)
CODES_OF_BITS = re.compile("hack(?::((?!p=).+))?")
# What `zack` says itself, or does not have.
OWN_BLOCK = re.compile("[:,](?:sink|recent|ktail|rqe|diag)=")


class Format(NamedTuple):
    """What a name says of bytes. `codes` is the format of pages, None where they hold BF16."""

    keep: int  # of SHARE_PARTS; 0 with `bits`
    uniform: bool
    energies: bool
    codes: str | None  # with `bits` those of K and V of a head are still to be put in
    bits: int  # of SHARE_PARTS, 0 with `keep`


def parts_of(decimal):
    """In ten thousandths."""
    whole, _, behind = decimal.partition(".")
    return int(whole + behind.ljust(4, "0"))


def format_of(name):
    match = NAME.fullmatch(name)
    if not match:
        raise unsupported(f"no such format: {name}")
    if match["uniform"] and match["energies"]:
        raise unsupported(f"with ranks=uniform nothing is weighed: {name}")
    codes = match["codes"]
    if match["bits"]:
        if not (of_bits := CODES_OF_BITS.fullmatch(codes or "")):
            raise unsupported(f"behind bits stands hack without p: {name}")
        codes = "hack:k={},v={}" + ("," + of_bits[1] if of_bits[1] else "")
    if codes:
        if OWN_BLOCK.search(codes):
            raise unsupported(f"windows stand before the '+', and an own block is in 16 bits: {name}")
        reader_of(codes).slab_bytes(codes.format(2, 2), 1, (TILE, TILE))  # refuses what is no format of pages
    bits = parts_of(match["bits"] or "0")
    if bits > BITS_MAX * SHARE_PARTS:
        raise unsupported(f"more than {BITS_MAX} bits: {name}")
    return Format(parts_of(match["keep"] or "0"), bool(match["uniform"]), bool(match["energies"]), codes, bits)


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
    """(of K, of V), with `bits` and the format of the page, as [layer][head]. shape: (kv_heads, head_dim, layers)."""
    form = format_of(name)
    heads, d, layers = shape
    if d % TILE or not TILE <= d <= HEAD_DIM_MAX or (form.keep * d < TILE * SHARE_PARTS and not form.bits):
        raise unsupported(f"{name} of heads of {d}")
    if form.bits:
        return chosen_pages(form, tables, shape)
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
# Section 6: widths and bits.


def plane_bytes(width, bits):
    return 8 * bits * width + 2 * (width + TOKENS)


def next_choice(errors, now):
    """(gain, (width, bits)) behind `now`, or None. errors: of each choice of a plane."""
    size, error = plane_bytes(*now), errors[now]
    gains = [
        ((error - e) / (plane_bytes(*c) - size), plane_bytes(*c), -c[1], c)
        for c, e in errors.items()
        if plane_bytes(*c) > size and e < error
    ]
    return (max(gains)[0], max(gains)[3]) if gains else None


def chosen_pages(form, tables, shape):
    heads, d, layers = shape
    order = [(width, bits) for bits in CODE_BITS for width in range(TILE, d + 1, TILE)]
    planes = []
    for layer, head, part in itertools.product(range(layers), range(heads), "kv"):
        own = tables[f"zack.layers.{layer}.{part}.errors"][head * len(order) : (head + 1) * len(order)]
        if not all(math.inf > e >= 0 for e in own):
            raise unsupported(f"errors of layer {layer}")
        planes.append(dict(zip(order, own, strict=True)))
    now = [(TILE, CODE_BITS[0])] * len(planes)
    left = len(planes) * d * TOKENS * form.bits // (8 * SHARE_PARTS) - sum(plane_bytes(*c) for c in now)
    if left < 0:
        raise unsupported("fewer bits than the fewest of all")
    while steps := [(gain, -i, c) for i, c in enumerate(now) if (gain := next_choice(planes[i], c))]:
        (_, choice), minus, before = max(steps, key=lambda step: (step[0][0], step[1]))
        left -= plane_bytes(*choice) - plane_bytes(*before)
        if left < 0:
            break
        now[-minus] = choice
    found = iter(now)
    return [
        [(k[0], v[0], form.codes.format(k[1], v[1])) for k, v in ((next(found), next(found)) for _ in range(heads))]
        for _ in range(layers)
    ]


# ---------------------------------------------------------------------------------------------------------------
# Sections 3 to 5: pages. `pages` are of a layer's heads, as widths() gives them.


def parted(form, page):
    """The format of a page's codes, and its two widths."""
    return (page[2] if form.bits else form.codes), tuple(page[:2])


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
    return sum(page_bytes(*parted(format_of(name), page)) for page in pages)


def used_bytes(name, pages):
    """The bytes that travel."""
    return sum(wire_bytes(*parted(format_of(name), page)) for page in pages)


def unpack(name, pages, packed):
    """Section 5: the slab of a frame's body."""
    kinds = [parted(format_of(name), page) for page in pages]
    parts = split(packed, [wire_bytes(*kind) for kind in kinds], "a slab")
    return b"".join(
        reader_of(codes).unpack(codes, 1, page, part) if codes else part for (codes, page), part in zip(kinds, parts)
    )


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
    heads, kinds = [], [parted(format_of(name), page) for page in pages]
    for (codes, page), part in zip(kinds, split(data, [page_bytes(*kind) for kind in kinds], "a slab")):
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
