"""Golden slabs of `zack` in codes of `kvquant`: sealed by an encoder of their own, from spec/slab_zack.md, section 7.

Rows, layers and tables of `zack` are those of zack.py; those of `kvquant` behind it are made up.
SPDX-License-Identifier: Apache-2.0
"""

import json
import math
import random
import struct

import hack
import slabs
import zack
from binary32 import f32, from_bf16, to_bf16  # noqa: E402

TOKENS = 64
FRAME = "zack:keep=0.75+kvquant:bits=3"
# Which layer is sealed.
CASES = {
    FRAME: 0,
    "zack:keep=0.75+kvquant:bits=4": 1,
    "zack:keep=0.75,sink=1+kvquant:bits=2,room=token": 0,
    "zack:keep=0.5,recent=1+kvquant:bits=4": 1,
    "zack:keep=0.5+kvquant:bits=2,outliers=0": 0,
    "zack:keep=0.7,ranks=uniform+kvquant:bits=3": 1,
}


def share_name(name):
    """Without codes and window."""
    parts = name.partition("+")[0].split(",")
    return ",".join(part for part in parts if not part.startswith(("sink", "recent")))


def widths_of(name, tables):
    return zack.widths_of(name.partition("+")[0], tables)


# ---------------------------------------------------------------------------------------------------------------
# Tables.


def levels_of(rng, bits):
    """2^b signposts, and what they stand for: others with 2 bits."""
    steps = [rng.uniform(0.6, 1.4) for _ in range((1 << bits) + 1)]
    posts = [f32(2 * sum(steps[: i + 1]) / sum(steps) - 1) for i in range(1 << bits)]
    return posts, ([f32(1.1 * x + 0.01) for x in posts] if bits == 2 else posts)


def make_tables():
    rng, tables, of_zack = random.Random(15), {}, zack.make_tables()
    rows = zack.example_rows()
    for share in sorted({share_name(name) for name in CASES}):
        for layer, pages in enumerate(zack.widths_of(share, of_zack)):
            for part, letter in enumerate("kv"):
                name = f"{share}+kvquant.layers.{layer}.{letter}."
                widths = [page[part] for page in pages]
                tables[name + "widths"] = [float(width) for width in widths]
                for outliers, reach in ((0, 1.0), (1, 0.3)):
                    limits = [limits_of(plane[0], c, reach) for plane, w in zip(rows, widths) for c in range(w)]
                    if letter == "k":
                        tables[f"{name}o{outliers}.low"] = [low for low, _ in limits]
                        tables[f"{name}o{outliers}.high"] = [high for _, high in limits]
                    for bits in (2, 3, 4):
                        posts, values = levels_of(rng, bits)
                        tables[f"{name}o{outliers}.b{bits}.signposts"] = posts
                        tables[f"{name}o{outliers}.b{bits}.values"] = values
    return tables


def limits_of(plane, channel, reach):
    """About the middle half of a channel's values. One channel in seven is constant, as if there had been few."""
    values = sorted(from_bf16(x) for x in plane[channel :: zack.DIM])
    low, high = values[12], values[-13]
    if channel % 7 == 5:
        return low, low
    return f32(low - reach * (high - low)), f32(high + reach * (high - low))


# ---------------------------------------------------------------------------------------------------------------
# A slab.


def middle(limits):
    return f32(f32(limits[0] / 2) + f32(limits[1] / 2))


def reach(limits):
    return f32(f32(limits[1] / 2) - f32(limits[0] / 2))


def normalised(x, limits):
    half = reach(limits)
    return f32(f32(x - middle(limits)) * f32(1 / half)) if half >= 2.0**-100 else 0.0


def bits_of(codes, bits):
    """16 codes as `bits` words."""
    return [sum((code >> bit & 1) << j for j, code in enumerate(codes)) for bit in range(bits)]


class Slab:
    """Of rows [token] of pairs (head, value), by head and channel; outliers are chosen for K in the end."""

    def __init__(self, name, tables):
        codes = name.partition("+")[2]
        self.bits = int(codes[len("kvquant:bits=")])
        self.outliers, self.by_token = "outliers=0" not in codes, "room=token" in codes
        self.layer = CASES[name]
        self.widths = widths_of(name, tables)[self.layer]
        self.prefix = f"{share_name(name)}+kvquant.layers.{self.layer}."
        self.tables = tables

    def _table(self, part, name):
        return self.tables[f"{self.prefix}{'kv'[part]}.o{int(self.outliers)}.{name}"]

    def _rows(self, heads, part):
        """[token] of [(head, channel of it, value)]."""
        return [
            [
                (head, c, from_bf16(heads[head][part][token * zack.DIM + c]))
                for head, widths in enumerate(self.widths)
                for c in range(widths[part])
            ]
            for token in range(TOKENS)
        ]

    def _code(self, part, t):
        posts = self._table(part, f"b{self.bits}.signposts")
        return sum(t > f32(f32(a / 2) + f32(b / 2)) for a, b in zip(posts, posts[1:]))

    def _ends(self, rows):
        """Outliers at either end of a token."""
        return math.ceil(len(rows[0]) / 200) if self.outliers else 0

    def _keys(self, rows):
        """Codes [token][channel], channels kept apart [token], and how many are cut."""
        limits = list(zip(self._table(0, "low"), self._table(0, "high")))
        codes = [[self._code(0, normalised(x, l)) for (_, _, x), l in zip(row, limits)] for row in rows]
        far = []
        for token, row in enumerate(rows if self.outliers else []):
            for c, ((_, _, x), l) in enumerate(zip(row, limits)):
                if not l[0] <= x <= l[1]:
                    constant = reach(l) < 2.0**-100
                    far.append((-math.inf if constant else -abs(normalised(x, l)), token, c))
        room = 2 * self._ends(rows)
        if self.by_token:
            kept = [one for token in range(TOKENS) for one in sorted(o for o in far if o[1] == token)[:room]]
        else:
            kept = sorted(far)[: TOKENS * room]
        apart = [sorted(c for _, t, c in kept if t == token) for token in range(TOKENS)]
        return codes, apart, len(far) - len(kept)

    def _values(self, rows):
        """The same, and limits of each token."""
        codes, apart, limits, ends = [], [], [], self._ends(rows)
        for row in rows:
            xs = [x for _, _, x in row]
            largest = sorted(range(len(xs)), key=lambda c: (-xs[c], c))
            smallest = sorted(largest[ends:], key=lambda c: (xs[c], c))
            limits.append((xs[smallest[ends]], xs[largest[ends]]))
            codes.append([self._code(1, normalised(x, limits[-1])) for x in xs])
            apart.append(sorted(largest[:ends] + smallest[:ends]))
        return codes, apart, limits

    def seal(self, heads):
        rows = [self._rows(heads, part) for part in range(2)]
        k_codes, k_apart, cut = self._keys(rows[0])
        v_codes, v_apart, limits = self._values(rows[1])
        planes, ends, outliers = b"", [], b""
        for head, widths in enumerate(self.widths):
            for part, codes, apart in ((0, k_codes, k_apart), (1, v_codes, v_apart)):
                first = sum(pair[part] for pair in self.widths[:head])
                for token in range(TOKENS):
                    own = codes[token][first : first + widths[part]]
                    words = [w for at in range(0, len(own), 16) for w in bits_of(own[at : at + 16], self.bits)]
                    planes += struct.pack(f"<{len(words)}H", *words)
                    for c in apart[token]:
                        of, channel, x = rows[part][token][c]
                        if of == head:
                            outliers += struct.pack("<2H", token * widths[part] + channel, to_bf16(x))
                ends.append(len(outliers) // 4)
        stored = [to_bf16(pair[end]) for end in range(2) for pair in limits]
        head = struct.pack(f"<I{len(ends)}I{len(stored)}H", cut, *ends, *stored)
        return head + planes + outliers


def seal(name, tables, heads):
    """What travels: the slab without padding. tables: of both kinds."""
    return Slab(name, tables).seal(heads)


def make(write, open_slab):
    """`open_slab` is the independent reader: what it gives is written beside, for others to compare with."""
    tables, heads, cases = make_tables(), zack.example_rows(), []
    write("slab/zack_kvquant/tables.safetensors", slabs.tables_file(tables))
    tables = slabs.as_stored(tables | zack.make_tables())
    for name, layer in CASES.items():
        widths = widths_of(name, tables)
        slab = seal(name, tables, heads)
        cases.append({"format": name, "layer": layer, "widths": widths})
        path = f"slab/zack_kvquant/{hack.file_name(name)}"
        write(path + ".slab", slab)
        write(path + ".opened", hack.rows_to_bytes(open_slab(name, widths[layer], zack.DIM, layer, slab, tables)))
    about = {"kv_heads": zack.HEADS, "head_dim": zack.DIM, "layers": zack.LAYERS, "position": zack.POSITION}
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    write("slab/zack_kvquant/cases.json", f'{json.dumps(about)[:-1]}, "cases": [\n{lines}\n]}}\n'.encode())
