"""Golden slabs: sealed by an encoder of their own, written from spec/slab_cachegen.md and spec/slab_kvquant.md.

Called by make.py. Rows are drawn, tables are made up, everything small: 2 heads of 18 values.
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "spec" / "decoder"))

import slab_cachegen  # noqa: E402
import slab_kvquant  # noqa: E402
from binary32 import f32, from_bf16, round_even, to_bf16  # noqa: E402

HEADS, DIM, LAYERS, LAYER, POSITION = 2, 18, 1, 0, 128
CHANNELS = HEADS * DIM
SHAPE = (HEADS, DIM, LAYERS)
TOKENS = 64
MODEL = bytes(range(100, 132))
FREQUENCIES = [f32(10000.0 ** (-2 * i / DIM)) for i in range(DIM // 2)]


def put_state(states, lane, words, first, count):
    if states[lane] >= 65536 * count:
        words.insert(0, states[lane] % 65536)
        states[lane] //= 65536
    x = states[lane]
    states[lane] = 65536 * (x // count) + x % count + first


class Cachegen:
    """Section 2 backwards, then section 4 backwards."""

    def __init__(self, text, tables):
        self.text = text
        self.parameters = dict(part.split("=") for part in text.split(":")[1].split(","))
        self.tensors = [
            slab_cachegen.Tensor(self.parameters, SHAPE, LAYER, is_key, tables) for is_key in (True, False)
        ]

    def _symbols(self, tensor, rows, head):
        """[64][head_dim] symbols, and the scales of all heads."""
        every = 10 if tensor.paper else 1
        largest = [max(abs(x) for x in rows[token]) for token in range(0, TOKENS, every)]
        symbols = []
        for token in range(TOKENS):
            scale, row = largest[token // every], []
            for i in range(DIM):
                x = rows[token][head * DIM + i]
                middle = 127 if tensor.paper else tensor.middle
                per_value = f32(middle / scale) if scale >= 2.0**-100 else 0.0
                if not tensor.paper or tensor.is_anchor(token):
                    row.append(middle + round_even(f32(x * per_value)))
                    continue
                anchor = symbols[token - token % 10][i]
                step = tensor.steps[head * DIM + i]
                distance = f32(x - f32(f32((anchor - 127) / 127) * scale))
                steps = f32(distance * f32(1 / step)) if step >= 2.0**-100 else 0.0
                row.append(31 + round_even(min(max(steps, -31), 31)))
            symbols.append(row)
        return symbols, [to_bf16(x) for x in largest]

    def _page(self, head, symbols):
        states, words = [65536] * 16, []
        for tensor, plane in reversed(list(zip(self.tensors, symbols))):
            for group in reversed(range(0, DIM, 16)):
                channels = list(reversed(range(group, min(group + 16, DIM))))
                for token in reversed(range(TOKENS)):
                    anchor = tensor.is_anchor(token)
                    for i in channels if anchor else ():
                        put_state(states, i - group, words, plane[token][i] % 8 * 8192, 8192)
                    for i in channels:
                        firsts = (tensor.anchor_models if anchor else tensor.models)[head * DIM + i]
                        symbol = plane[token][i] // 8 if anchor else plane[token][i]
                        put_state(states, i - group, words, firsts[symbol], firsts[symbol + 1] - firsts[symbol])
        run = struct.pack("<16I", *states) + struct.pack(f"<{len(words)}H", *words)
        raw = b"".join(self._raw(tensor, plane) for tensor, plane in zip(self.tensors, symbols))
        return run if len(run) < len(raw) else raw

    @staticmethod
    def _raw(tensor, plane):
        number = at = 0
        for token, row in enumerate(plane):
            for symbol in row:
                number |= symbol << at
                at += tensor.raw_bits(token)
        return number.to_bytes(tensor.raw_bytes(), "little")

    def seal(self, k_rows, v_rows):
        found = [
            [self._symbols(tensor, rows, head) for tensor, rows in zip(self.tensors, (k_rows, v_rows))]
            for head in range(HEADS)
        ]
        scales = found[0][0][1] + found[0][1][1]
        at, ends, pages = 4 * HEADS + 2 * len(scales), [], []
        for head in range(HEADS):
            pages.append(self._page(head, [symbols for symbols, _ in found[head]]))
            at += len(pages[-1])
            ends.append(at)
        return struct.pack(f"<{HEADS}I{len(scales)}H", *ends, *scales) + b"".join(pages)


class Kvquant:
    """Section 3."""

    def __init__(self, text, tables):
        self.text = text
        self.parameters = dict(part.split("=") for part in text.split(":")[1].split(","))
        self.layout = slab_kvquant.Layout(self.parameters, slab_kvquant.widths_of(SHAPE))
        self.at_end = -(-CHANNELS * int(self.parameters["outliers"]) // 200)
        prefix = f"kvquant.layers.{LAYER}.%s.o{self.parameters['outliers']}."
        self.limits = list(zip(tables[prefix % "k" + "low"], tables[prefix % "k" + "high"]))
        self.signposts = [tables[f"{prefix % part}b{self.layout.bits}.signposts"] for part in "kv"]

    def _code(self, part, x, limits):
        middle, reach = slab_kvquant.middle_and_reach(*limits)
        t = f32(f32(x - middle) * (f32(1 / reach) if reach >= 2.0**-100 else 0.0))
        signposts = self.signposts[part]
        return sum(t > f32(a / 2 + b / 2) for a, b in zip(signposts, signposts[1:]))

    def _keys(self, rows, token):
        """Codes of all channels, outliers as (-distance, token, channel), and the row before rotation."""
        cos, sin = slab_kvquant.angles_of(FREQUENCIES, POSITION + token)
        row = []
        for head in range(HEADS):
            row += slab_kvquant.rotate(rows[token][head * DIM : (head + 1) * DIM], cos, [-x for x in sin])
        codes = [self._code(0, x, limits) for x, limits in zip(row, self.limits)]
        outside = []
        for c in range(CHANNELS) if self.at_end else ():
            low, high = self.limits[c]
            if not low <= row[c] <= high:
                middle, reach = slab_kvquant.middle_and_reach(low, high)
                outside.append((-f32(abs(f32(row[c] - middle)) * f32(1 / reach)), token, c))
        return codes, outside, row

    def _kept_keys(self, outside):
        """Of the outliers of each token those for which there is room, and how many are left."""
        if self.parameters.get("room") == "token":
            kept = [sorted(token)[: 2 * self.at_end] for token in outside]
        else:
            farthest = set(sorted(sum(outside, []))[: TOKENS * 2 * self.at_end])
            kept = [[outlier for outlier in token if outlier in farthest] for token in outside]
        cut = sum(map(len, outside)) - sum(map(len, kept))
        return [sorted(c for _, _, c in token) for token in kept], cut

    def _values(self, row):
        order = sorted(range(CHANNELS), key=lambda c: (-row[c], c))
        rest = sorted(order[self.at_end :], key=lambda c: (row[c], c))
        limits = row[rest[self.at_end]], row[order[self.at_end]]
        codes = [self._code(1, x, limits) for x in row]
        return codes, sorted(order[: self.at_end] + rest[: self.at_end]), limits

    def seal(self, k_rows, v_rows):
        layout, limits = self.layout, []
        keys = [self._keys(k_rows, token) for token in range(TOKENS)]
        k_outliers, cut = self._kept_keys([outside for _, outside, _ in keys])
        codes = [bytearray() for _ in range(2 * HEADS)]
        kept = [bytearray() for _ in range(2 * HEADS)]
        for token in range(TOKENS):
            k_codes, _, plain = keys[token]
            v_codes, v_kept, v_limits = self._values(v_rows[token])
            limits.append(v_limits)
            for part, (token_codes, channels, row) in enumerate(
                ((k_codes, k_outliers[token], plain), (v_codes, v_kept, v_rows[token]))
            ):
                for head in range(HEADS):
                    codes[2 * head + part] += self._words(token_codes[head * DIM : (head + 1) * DIM])
                for c in channels:
                    place = token * DIM + c % DIM
                    kept[2 * (c // DIM) + part] += struct.pack("<HH", place, to_bf16(row[c]))
        ends, end = [], 0
        for plane in kept:
            end += len(plane) // 4
            ends.append(end)
        head = struct.pack(f"<I{2 * HEADS}I", cut, *ends)
        head += struct.pack(f"<{TOKENS}H", *(to_bf16(low) for low, _ in limits))
        head += struct.pack(f"<{TOKENS}H", *(to_bf16(high) for _, high in limits))
        assert len(head) == layout.codes
        return head + b"".join(codes) + b"".join(kept)

    def _words(self, codes):
        words = []
        for group in range(0, DIM, 16):
            for bit in range(self.layout.bits):
                part = codes[group : group + 16]
                words.append(sum((code >> bit & 1) << j for j, code in enumerate(part)))
        return struct.pack(f"<{len(words)}H", *words)


def make_tables(rng):
    tables = {}
    for part in "kv":
        name = f"cachegen.layers.{LAYER}.{part}."
        tables[name + "deviation"] = [f32(0.3 + 0.05 * c) for c in range(CHANNELS)]
        for table, symbols in (("bins16", 15), ("delta", 63), ("anchor", 32)):
            counts = []
            for c in range(CHANNELS):
                wide = 0 if c == 5 else symbols / (5 + c % 4)  # one channel that calibration never saw
                counts += [int(400 * 2.0 ** -(((s - symbols // 2) / wide) ** 2)) if wide else 0 for s in range(symbols)]
            tables[name + table] = counts
        name = f"kvquant.layers.{LAYER}.{part}."
        for outliers, widths in ((0, 4), (1, 1.6)):
            if part == "k":
                middles = [rng.uniform(-0.5, 0.5) for _ in range(CHANNELS)]
                reach = [widths * (0.3 + 0.05 * c) for c in range(CHANNELS)]
                tables[f"{name}o{outliers}.low"] = [f32(m - r) for m, r in zip(middles, reach)]
                tables[f"{name}o{outliers}.high"] = [f32(m + r) for m, r in zip(middles, reach)]
            for bits in (2, 3, 4):
                even = [(2 * i + 1) / (1 << bits) - 1 for i in range(1 << bits)]
                posts = [f32(x * (0.6 + 0.4 * abs(x))) for x in even]
                tables[f"{name}o{outliers}.b{bits}.signposts"] = posts
                tables[f"{name}o{outliers}.b{bits}.values"] = [f32(1.1 * x) for x in posts] if bits == 2 else posts
    return tables


def tables_file(tables):
    tables = tables | {"kvlane.version": [1], "kvlane.model": list(MODEL), "kvlane.tokens": [64]}
    header, body = {}, b""
    for name in sorted(tables):
        data = struct.pack(f"<{len(tables[name])}f", *tables[name])
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": "F32", "shape": [len(tables[name])], "data_offsets": offsets}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def draw_rows(rng, far):
    """[64][channels] BF16 values; one in `far` lies far out."""
    return [
        [
            from_bf16(to_bf16(f32(rng.gauss(0, 0.3 + 0.05 * c) * (8 if rng.randrange(far) == 0 else 1))))
            for c in range(CHANNELS)
        ]
        for _ in range(TOKENS)
    ]


def as_bytes(pages):
    """[head][K, V][64][head_dim] bits, little-endian."""
    return b"".join(struct.pack(f"<{DIM}H", *row) for page in pages for plane in page for row in plane)


def make(out, rng):
    tables = make_tables(rng)
    out.write("slab/tables.safetensors", tables_file(tables))
    cases = [("cachegen:form=code,level=1", Cachegen), ("cachegen:form=paper", Cachegen)]
    for bits, room in ((2, "slab"), (3, "token"), (4, "slab")):
        rests = ("outliers=0", f"outliers=1,room={room}")
        cases += [(f"kvquant:bits={bits},{rest}", Kvquant) for rest in rests]
    for text, encoder in cases:
        for kind in ("usual", "wild"):
            rows = [draw_rows(rng, 100 if kind == "usual" else 3) for _ in range(2)]
            if kind == "wild":
                rows[1][9] = [0.0] * CHANNELS
                rows[0][20] = [64 * x for x in rows[0][20]]
            slab = encoder(text, tables).seal(*rows)
            name = text.replace(":", "_").replace(",", "_").replace("=", "") + "_" + kind
            bits = [
                [
                    [[to_bf16(x) for x in row[head * DIM : (head + 1) * DIM]] for row in part]
                    for part in rows
                ]
                for head in range(HEADS)
            ]
            out.write(f"slab/valid/{name}.json", json.dumps(about(text), indent=1).encode() + b"\n")
            out.write(f"slab/valid/{name}.slab", slab)
            out.write(f"slab/valid/{name}.rows", as_bytes(bits))
            out.write(f"slab/valid/{name}.page", as_bytes(open_slab(about(text), slab, tables)))


def about(text):
    """What a reader has to know of these slabs."""
    return {"format": text, "kv_heads": HEADS, "head_dim": DIM, "layers": LAYERS, "layer": LAYER, "position": POSITION,
            "inverse_frequencies": FREQUENCIES}  # fmt: skip


def as_stored(tables):
    """Their values as F32."""
    return {name: [f32(value) for value in values] for name, values in tables.items()}


def open_slab(what, slab, tables):
    parameters = dict(part.split("=") for part in what["format"].split(":")[1].split(","))
    shape = (what["kv_heads"], what["head_dim"], what["layers"])
    if what["format"].startswith("cachegen"):
        return slab_cachegen.read_slab(slab, parameters, shape, what["layer"], tables)
    return slab_kvquant.read_slab(
        slab, parameters, shape, what["layer"], what["position"], what["inverse_frequencies"], tables
    )
