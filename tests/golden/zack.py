"""Golden slabs of format `zack` (spec/slab_zack.md): widths by trying every threshold, codes by the encoders beside.

Rows are drawn in the rotated basis, tables are made up, everything is small: 2 layers of 2 heads of 48 values.
SPDX-License-Identifier: Apache-2.0
"""

import json
import math
import random
from fractions import Fraction
from typing import NamedTuple

import hack
import linear
import slabs
from binary32 import f32, to_bf16  # noqa: E402

HEADS, DIM, LAYERS, POSITION = 2, 48, 2, 4160
SHAPE = (HEADS, DIM, LAYERS)
TILE, TOKENS = 16, 64
VALUES = "singular_values"


class Case(NamedTuple):
    """Which layer is sealed, and what the name says of codes: of `hack`, or a name of linear ones."""

    layer: int
    of_hack: hack.Case | None = None
    of_linear: str | None = None


WITH_SUMS = "zack:keep=0.75,ranks=uniform,sink=1+hack:k=2,v=2,p=64,compute=complete"
CASES = {
    "zack:keep=0.5": Case(0),
    "zack:keep=0.75": Case(1),
    "zack:keep=0.7,ranks=uniform": Case(1),
    "zack:keep=0.6,weigh=energies,recent=2": Case(0),
    "zack:keep=0.75+hack:k=2,v=2": Case(0, hack.Case("", (2, 2))),
    "zack:keep=0.5+hack:k=4,v=2,p=32": Case(1, hack.Case("", (4, 2), 32, mixed=False)),
    WITH_SUMS: Case(0, hack.Case("", (2, 2), 64, mixed=False)),
    "zack:keep=0.75+int4:sym=0": Case(1, of_linear="int4:sym=0"),
    "zack:keep=0.8,sink=1+kivi:bits=2,group=32": Case(0, of_linear="kivi:bits=2,group=32"),
}
# Their bits are each head's own.
CASES |= {
    "zack:bits=3.1,recent=1+hack": Case(0, hack.Case("", (0, 0))),
    "zack:bits=4.25+hack:mix=0,meta=bf16": Case(1, hack.Case("", (0, 0), mixed=False, meta="bf16")),
}
FRAME = "zack:keep=0.75+hack:k=2,v=2"
FRAME_OF_VALUES = "zack:keep=0.75"


# ---------------------------------------------------------------------------------------------------------------
# Tables.


def rotation(rng):
    """A reflection, [d][d]: orthogonal, and every entry is something."""
    normal = [rng.gauss(0, 1) for _ in range(DIM)]
    squares = sum(x * x for x in normal)
    return [f32((i == j) - 2 * normal[i] * normal[j] / squares) for i in range(DIM) for j in range(DIM)]


def spectrum(pace):
    return [f32(100 * math.exp(-pace * i / DIM)) if pace else 0.0 for i in range(DIM)]


# [layer][K, V][head]: how fast singular values fall. None: all are 0. Two are alike, so their tails are.
PACES = (((2.0, 6.0), (3.0, 3.0)), ((None, 1.0), (9.0, 4.0)))


def make_tables():
    rng, tables = random.Random(12), {}
    for layer, paces in enumerate(PACES):
        for part, of_part in zip("kv", paces):
            name = f"zack.layers.{layer}.{part}."
            tables[name + "rotation"] = [x for _ in range(HEADS) for x in rotation(rng)]
            tables[name + VALUES] = sum(map(spectrum, of_part), [])
    return tables


# [layer][K, V][head]: how much codes of that head lose.
WEIGHTS = (((1.0, 0.02), (0.3, 0.0)), ((0.001, 0.2), (0.05, 2.5)))
LOSSES = {2: 0.13, 4: 0.011, 8: 0.0002}


def make_errors():
    """Not quite as codes have them: drawn so that some choices are worse than cheaper ones."""
    rng, tables = random.Random(14), {}
    for layer, weights in enumerate(WEIGHTS):
        for part, of_part in zip("kv", weights):
            tables[f"zack.layers.{layer}.{part}.errors"] = [
                f32(weight * (loss + math.exp(-0.1 * width)) * rng.uniform(0.7, 1.4))
                for weight in of_part
                for loss in LOSSES.values()
                for width in range(TILE, DIM + 1, TILE)
            ]
    return tables


# ---------------------------------------------------------------------------------------------------------------
# Section 2: the smallest threshold at which no more than the share is kept.


def share_of(name):
    return Fraction(name.partition("keep=")[2].partition("+")[0].partition(",")[0])


def tail(values, kept):
    """What is behind `kept` values, as a share of all; summed from the last one."""
    behind = total = 0.0
    for i, x in reversed(list(enumerate(values))):
        total += x
        behind = total if i >= kept else behind
    return behind / total if total else 0.0


def width_at(r, values):
    return min(kept for kept in range(TILE, DIM + 1, TILE) if tail(values, kept) <= r)


# ---------------------------------------------------------------------------------------------------------------
# Section 6: corners of each plane's lower hull, in exact arithmetic; then the steepest edges of all.


def bytes_of(choice):
    width, bits = choice
    return TOKENS * width * bits // 8 + 2 * width + 2 * TOKENS


def hull(errors):
    """Its corners from the cheapest choice to that of least error. errors: of choices (width, bits)."""
    points = {choice: (bytes_of(choice), Fraction(error)) for choice, error in errors.items()}

    def is_corner(choice):
        """Nothing of as few bytes is as good, and no edge from left to right passes below it."""
        x, y = points[choice]
        left = [point for point in points.values() if point[0] < x]
        right = [(a, b) for a, b in points.values() if a > x and b < y]
        if any(b <= y for _, b in left):
            return False
        return all((b - y) * (x - c) > (y - e) * (a - x) for a, b in right for c, e in left)

    return sorted((choice for choice in points if is_corner(choice)), key=bytes_of)


def bits_of(name, tables):
    """[layer][head] (width of K, width of V, format of the page)."""
    codes = name.partition("+hack")[2].replace(":", ",")
    order = [(width, bits) for bits in LOSSES for width in range(TILE, DIM + 1, TILE)]
    at = [(layer, head, part) for layer in range(LAYERS) for head in range(HEADS) for part in "kv"]
    chosen, edges = {}, []
    for plane, (layer, head, part) in enumerate(at):
        own = tables[f"zack.layers.{layer}.{part}.errors"][head * len(order) :][: len(order)]
        errors = dict(zip(order, own))
        corners = hull(errors)
        chosen[plane] = corners[0]
        for a, b in zip(corners, corners[1:]):
            gain = (Fraction(errors[a]) - Fraction(errors[b])) / (bytes_of(b) - bytes_of(a))
            edges.append((-gain, plane, b))
    budget = math.floor(Fraction(name[len("zack:bits=") :].partition("+")[0].partition(",")[0]) * len(at) * DIM * 8)
    for _, plane, to in sorted(edges):
        if sum(map(bytes_of, (chosen | {plane: to}).values())) > budget:
            break
        chosen[plane] = to
    pairs = [(chosen[i], chosen[i + 1]) for i in range(0, len(at), 2)]
    found = [(k[0], v[0], f"hack:k={k[1]},v={v[1]}{codes}") for k, v in pairs]
    return [found[i : i + HEADS] for i in range(0, len(found), HEADS)]


def widths_of(name, tables):
    """[layer][head] (of K, of V), with `bits` and the format of its page."""
    if "bits=" in name.partition("+")[0]:
        return bits_of(name, tables)
    share, energies = share_of(name), "energies" in name
    planes = [
        [x * x if energies else x for x in tables[f"zack.layers.{layer}.{part}.{VALUES}"][at : at + DIM]]
        for layer in range(LAYERS)
        for at in range(0, HEADS * DIM, DIM)
        for part in "kv"
    ]
    if "uniform" in name or share == 1:
        found = [math.floor(share * DIM / TILE) * TILE] * len(planes)
    else:
        for r in sorted(tail(values, kept) for values in planes for kept in range(TILE, DIM, TILE)):
            found = [width_at(r, values) for values in planes]
            if sum(found) <= share * DIM * len(planes):
                break
    pairs = list(zip(found[::2], found[1::2]))
    return [pairs[i : i + HEADS] for i in range(0, len(pairs), HEADS)]


# ---------------------------------------------------------------------------------------------------------------
# Sections 3 to 5.


def example_rows():
    """Two heads. Magnitudes are at most 2^11: mixing makes them up to 6 times as large."""
    rng = random.Random(13)
    usual = [hack.usual_plane(rng, DIM) for _ in range(2)]
    return [usual, [hack.wild_plane(rng, DIM, 2.0**11, zeros) for zeros in (20, 0)]]


def bell_rows():
    """Two heads of values that codecs make smaller: each channel has its width, as in a rotated basis."""
    rng = random.Random(14)
    return [
        [[to_bf16(rng.gauss(0, 1) * 2.0 ** (3 - i % DIM / 8)) for i in range(TOKENS * DIM)] for _ in range(2)]
        for _ in range(HEADS)
    ]


def narrowed(heads, widths):
    """[head][K, V]: the first values of every row."""
    return [
        [[x for i, x in enumerate(plane) if i % DIM < width] for plane, width in zip(planes, pair[:2])]
        for planes, pair in zip(heads, widths)
    ]


def in_words(head):
    """K as [channels / 2][token][2], V as [tokens / 2][channel][2]."""
    k, v = ([plane[at : at + len(plane) // 64] for at in range(0, len(plane), len(plane) // 64)] for plane in head)
    pairs = range(0, len(k[0]), 2)
    words_k = [x for i in pairs for row in k for x in row[i : i + 2]]
    words_v = [x for t in range(0, 64, 2) for two in zip(v[t], v[t + 1]) for x in two]
    return [words_k, words_v]


def of_head(case, widths):
    """The case of a page whose bits are its own."""
    if len(widths) == 2:
        return case
    bits = tuple(int(part.partition("=")[2]) for part in widths[2].partition(":")[2].split(",")[:2])
    return case._replace(of_hack=case.of_hack._replace(bits=bits))


def sections(case, head):
    """Of a page: what travels."""
    if case.of_hack:
        return list(hack.sections(case.of_hack, [head]))
    if case.of_linear:
        return list(linear.sections(case.of_linear, [head]))
    return [hack.rows_to_bytes([in_words(head)])]


def pages(name, tables, heads):
    """Of the slab of the case's layer."""
    case = CASES[name]
    widths = widths_of(name, tables)[case.layer]
    for head, own in zip(narrowed(heads, widths), widths):
        if name == WITH_SUMS:
            yield hack.seal_with_sums(case.of_hack, [head])
        else:
            yield b"".join(map(hack.pad64, sections(of_head(case, own), head)))


def packed(name, tables, heads):
    case = CASES[name]
    widths = widths_of(name, tables)[case.layer]
    kept = zip(narrowed(heads, widths), widths)
    return b"".join(section for head, own in kept for section in sections(of_head(case, own), head))


def planes(name, tables, heads):
    """What goes through codecs: the rows of K and of V, in which all heads stand side by side."""
    kept = narrowed(heads, widths_of(name, tables)[CASES[name].layer])

    def row(plane, token):
        width = len(plane) // TOKENS
        return plane[token * width : (token + 1) * width]

    return [[x for t in range(TOKENS) for head in kept for x in row(head[part], t)] for part in range(2)]


def make(write, open_slab):
    """`open_slab` is the independent reader: what it gives is written beside, for others to compare with."""
    tables, heads, cases = make_tables(), example_rows(), []
    write("slab/zack/tables.safetensors", slabs.tables_file(tables))
    write("slab/zack/errors.safetensors", slabs.tables_file(make_errors()))
    tables |= make_errors()
    write("slab/zack/rows.rows", hack.rows_to_bytes(heads))
    for name, case in CASES.items():
        widths = widths_of(name, tables)
        slab = b"".join(pages(name, tables, heads))
        travels = len(packed(name, tables, heads))
        cases.append({"format": name, "layer": case.layer, "widths": widths, "packed_bytes": travels})
        path = f"slab/zack/{hack.file_name(name)}"
        write(path + ".slab", slab)
        write(path + ".opened", hack.rows_to_bytes(open_slab(name, widths[case.layer], DIM, slab)))
    about = {"kv_heads": HEADS, "head_dim": DIM, "layers": LAYERS, "position": POSITION}
    # One case a line.
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    write("slab/zack/cases.json", f'{json.dumps(about)[:-1]}, "cases": [\n{lines}\n]}}\n'.encode())
