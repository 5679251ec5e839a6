"""What 2-bit KV formats cost that attention can read as codes: quality by fake quantisation, one idea at a time.

    axes.py NAME=models/kvlane-small,fiction_evaluation.txt,1024,8 [more places] [--only "winner;paper"] --out F.json
    axes.py --table F.json [G.json ...]

A place is MODEL,TEXT,CONTEXT,WINDOWS. A page (K or V of 64 tokens of a KV head) is replaced by base + scale * code and
what an idea adds, from its own rows only. A query reads its own block of 64 tokens as it is and every earlier one so.
Needs torch and tokenizers.
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import math
import pathlib
import sys
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "train"))
from network import NORM_EPS, rotate
from weights import read_directory

TOKENS = 64  # of a block
TINY = 1e-12  # keeps divisions of empty partitions finite
# Partitions of a page: tokens, channels. 64 channels are all of head_dim in the bundled models.
ROW, HALF_ROW, COLUMN, HALF_COLUMN, ONE_ROW = (1, 64), (1, 32), (64, 1), (32, 1), (1, 0)
# The step of the best uniform quantiser of a Gaussian of variance 1 (Max, 1960), by number of levels.
GAUSSIAN_STEP = {3: 1.224, 4: 0.9957, 6: 0.7334, 8: 0.586, 16: 0.3352}
YARDSTICKS = ("paper", "kivi, groups of 64")
# Bits of a code as they can be packed: 5 codes of 3 levels in a byte, 3 codes of 6 in a byte.
CODE_BITS = {3: 1.6, 4: 2, 6: 8 / 3, 8: 3, 16: 4}


@dataclass(frozen=True)
class Side:
    """How K or V is coded. Base and scale each belong to a partition; the two need not be the same."""

    base: tuple = COLUMN
    scale: tuple = ROW
    mix: str = "plain"  # Hadamard transform of a row's channels; "signs": with random signs before it; "": none
    centre: str = "mid"  # first base: mid of the range | mean | "min-scale": quantised as in spec/slab_linear.md
    width: str = "rms"  # first scale, which gives the codes: rms | max | least squared error of a few
    shrink: float = 1.0  # of width "max"
    fit: str = "true"  # scale of these codes: true: r.r / r.code | least: r.code / code.code | "": the first
    steps: int = 0  # times that scale, base and codes are then made again
    refit_base: bool = True  # at last, such that errors of its partition add up to nothing
    base_bits: int = 16
    scale_bits: int = 16
    far_row_bits: int = 0  # the row farthest from the mean is kept apart
    rank: int = 0  # a further term of an 8-bit number a token times one a channel
    channel_factor: bool = False  # 8 bits a channel; what is coded has the same variance in all channels
    levels: int = 4
    exact: bool = False

    def bits(self, head_dim):
        """Bits a value, all metadata counted."""
        if self.exact:
            return 16.0
        values = TOKENS * head_dim
        page = 16 * (self.base_bits < 16) + 32 * self.rank + (16 + 6) * (self.far_row_bits > 0)
        page += head_dim * (self.far_row_bits + 8 * self.channel_factor)
        page += self.rank * 8 * (TOKENS + head_dim)
        page += values / math.prod(self.base) * self.base_bits + values / math.prod(self.scale) * self.scale_bits
        return CODE_BITS[self.levels] + page / values


def over(x, partition, op):
    """op(y, dims) of each partition of x [..., 64, head_dim], in the shape of x; 0 channels are all."""
    tokens, channels = partition[0], partition[1] or x.shape[-1]
    y = x.reshape(*x.shape[:-2], x.shape[-2] // tokens, tokens, x.shape[-1] // channels, channels)
    return op(y, (-3, -1)).expand(y.shape).reshape(x.shape)


def mean(x, partition):
    return over(x, partition, lambda y, dims: y.mean(dims, keepdim=True))


def total(x, partition):
    return over(x, partition, lambda y, dims: y.sum(dims, keepdim=True))


def least(x, partition):
    return over(x, partition, lambda y, dims: y.amin(dims, keepdim=True))


def greatest(x, partition):
    return over(x, partition, lambda y, dims: y.amax(dims, keepdim=True))


def fp16_beyond(x, direction):
    """The fp16 number next to x that is not on the wrong side of it: direction is -inf or +inf."""
    near = x.half()
    wrong = near.float() > x if direction < 0 else near.float() < x
    return torch.where(wrong, torch.nextafter(near, torch.full_like(near, direction)), near).float()


def stored_scale(s, bits):
    """fp16, or a float without sign with 5 bits of exponent and bits - 5 of mantissa."""
    if bits == 16:
        return s.half().float()
    unit = torch.exp2(torch.floor(torch.log2(s.clamp_min(2.0**-24))) - (bits - 5))
    return torch.round(s / unit) * unit


def stored_base(b, bits):
    """fp16, or integers times an fp16 scale of the page."""
    if bits == 16:
        return b.half().float()
    top = 2 ** (bits - 1) - 1
    unit = fp16_beyond(b.abs().amax((-2, -1), keepdim=True) / top, math.inf).clamp_min(TINY)
    return torch.round(b / unit) * unit


def mixing(head_dim, kind):
    """Orthogonal [head_dim, head_dim]: Hadamard blocks of the largest power of two that divides head_dim."""
    size, block = head_dim & -head_dim, torch.ones(1, 1)
    while len(block) < size:
        block = torch.cat([torch.cat([block, block], 1), torch.cat([block, -block], 1)], 0)
    matrix = torch.block_diag(*[block / math.sqrt(size)] * (head_dim // size))
    if kind == "signs":
        signs = torch.randint(0, 2, (head_dim, 1), generator=torch.Generator().manual_seed(1)).float() * 2 - 1
        matrix = signs * matrix
    return matrix


def min_scale(x, side):
    """The paper's and KIVI's quantiser with rounding to the nearest code."""
    top = side.levels - 1
    m = fp16_beyond(least(x, side.base), -math.inf)
    s = fp16_beyond((greatest(x, side.base) - m) / top, math.inf)
    return m + s * torch.round((x - m) / s.clamp_min(TINY)).clamp(0, top)


def codes(r, s, levels):
    """Odd multiples of a half (whole numbers for odd levels), nearest to r / s."""
    half = (levels - 1) / 2
    return torch.round(r / s.clamp_min(TINY) + half).clamp(0, 2 * half) - half


def first_scale(r, side):
    if side.width == "rms":
        return mean(r * r, side.scale).sqrt() * GAUSSIAN_STEP[side.levels]
    s = greatest(r.abs(), side.scale) * (2 / (side.levels - 1) * side.shrink)
    if side.width == "max":
        return s
    best, best_error = s, torch.full_like(s, math.inf)
    for part in range(20, 7, -1):
        t = stored_scale(s * (part / 20), side.scale_bits)
        error = total((r - t * codes(r, t, side.levels)) ** 2, side.scale)
        best, best_error = torch.where(error < best_error, t, best), torch.minimum(error, best_error)
    return best


def fitted_scale(r, code, s, side):
    if side.fit == "true":
        s = total(r * r, side.scale) / total(r * code, side.scale).clamp_min(TINY)
    elif side.fit == "least":
        s = total(r * code, side.scale) / total(code * code, side.scale).clamp_min(TINY)
    return stored_scale(s, side.scale_bits)


def linear(x, side):
    """base + scale * code."""
    b = mean(x, side.base) if side.centre == "mean" else (least(x, side.base) + greatest(x, side.base)) / 2
    b = stored_base(b, side.base_bits)
    s = first_scale(x - b, side)
    for _ in range(side.steps + 1):
        code = codes(x - b, s, side.levels)
        s = fitted_scale(x - b, code, s, side)
        if side.refit_base:
            b = stored_base(mean(x - s * code, side.base), side.base_bits)
    return b + s * code


def is_far_row(x):
    away = total((x - mean(x, COLUMN)) ** 2, ONE_ROW)
    return away == away.amax(-2, keepdim=True)


def product_term(r):
    """a[token] * u[channel] near r, by power iteration from the row farthest from 0."""
    u = torch.where(is_far_row(r), r, 0.0).sum(-2, keepdim=True)
    for _ in range(4):
        u = (r * (r * u).sum(-1, keepdim=True)).sum(-2, keepdim=True)
        u = u / u.abs().amax(-1, keepdim=True).clamp_min(TINY)
    u = stored_base(u, 8)
    return stored_base((r * u).sum(-1, keepdim=True) / (u * u).sum(-1, keepdim=True).clamp_min(TINY), 8) * u


def quantised(x, side):
    """x [..., 64, head_dim] as attention sees it."""
    if side.exact:
        return x
    if side.mix:
        matrix = mixing(x.shape[-1], side.mix)
        return quantised(x @ matrix, replace(side, mix="")) @ matrix.T
    if side.centre == "min-scale":
        return min_scale(x, side)
    if side.far_row_bits:
        far = is_far_row(x)
        others = total(torch.where(far, 0.0, x), COLUMN) / (TOKENS - 1)
        y = quantised(torch.where(far, others, x), replace(side, far_row_bits=0))
        unit = stored_scale(greatest(x.abs(), ONE_ROW) / (2 ** (side.far_row_bits - 1) - 1), 16).clamp_min(TINY)
        return torch.where(far, torch.round(x / unit) * unit, y)
    if side.rank:
        term = product_term(x - mean(x, side.base))
        return term + quantised(x - term, replace(side, rank=side.rank - 1))
    if side.channel_factor:
        deviation = (x - mean(x, COLUMN)).square()
        factor = stored_scale(mean(deviation, COLUMN).sqrt(), 8).clamp_min(TINY)
        return factor * linear(x / factor, side)
    return linear(x, side)


def paged(x):
    return x.view(x.shape[0], -1, TOKENS, x.shape[-1])


def exact_attention(q, k, v):
    """q [heads, tokens, head_dim], k and v [kv_heads, tokens, head_dim]."""
    k, v = (t.repeat_interleave(len(q) // len(t), 0) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@dataclass
class CodedAttention:
    """The rule of attention: own block of 64 tokens exact, earlier ones quantised but for the first `sink`."""

    k: Side
    v: Side
    sink: int = 0
    eight_bits: bool = False  # of q, symmetric, a scale a row; of exp(score - greatest of the block), in 255ths

    def __call__(self, q, k, v):
        heads, tokens, head_dim = q.shape
        kv_heads, group, blocks = len(k), len(q) // len(k), tokens // TOKENS
        q = q / math.sqrt(head_dim)
        pages = []
        for side, x in ((self.k, k), (self.v, v)):
            y = quantised(paged(x), side)
            y[:, : self.sink] = paged(x)[:, : self.sink]
            pages.append(y.view(kv_heads, tokens, head_dim))
        queries = self.mixed_in_eight_bits(q) if self.eight_bits else q
        scores = (queries.reshape(kv_heads, -1, head_dim) @ pages[0].mT).view(heads, blocks, TOKENS, blocks, TOKENS)
        diagonal = torch.arange(blocks)
        own_scores = paged(q) @ paged(k).repeat_interleave(group, 0).mT
        scores[:, diagonal, :, diagonal] = own_scores.transpose(0, 1)
        scores = scores.view(heads, tokens, tokens) + torch.full((tokens, tokens), -math.inf).triu(1)
        p = torch.softmax(scores, -1).view(heads, blocks, TOKENS, blocks, TOKENS)
        own = p[:, diagonal, :, diagonal].transpose(0, 1) @ paged(v).repeat_interleave(group, 0)
        p[:, diagonal, :, diagonal] = 0
        if self.eight_bits:
            top = p.amax(-1, keepdim=True).clamp_min(1e-30)
            p = torch.round(p * (255 / top)) * (top / 255)
        return own.reshape(q.shape) + (p.view(kv_heads, -1, tokens) @ pages[1]).view(q.shape)

    def mixed_in_eight_bits(self, q):
        """Rounded where K's codes are: in the mixed channels."""
        matrix = mixing(q.shape[-1], self.k.mix) if self.k.mix else torch.eye(q.shape[-1])
        q = q @ matrix
        unit = q.abs().amax(-1, keepdim=True) / 127
        return torch.round(q / unit) * unit @ matrix.T


class Model:
    """A bundled model in fp32, its K and V rounded to bf16 as a cache holds them."""

    def __init__(self, directory):
        self.shape, self.weights = read_directory(directory)
        shape = self.shape
        frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angles = torch.outer(torch.arange(shape.context).float(), frequencies)[:, None]
        self.cos, self.sin = angles.cos(), angles.sin()

    def norm(self, x, name):
        return F.rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], NORM_EPS)

    def linear(self, x, name):
        return F.linear(x, self.weights[f"{name}.weight"])

    def log_probabilities(self, ids, attention):
        """ids [tokens] -> [tokens, vocabulary]"""
        tokens = len(ids)
        x = self.weights["embedding.weight"][ids]
        for layer in (f"layers.{i}" for i in range(self.shape.layers)):
            y = self.norm(x, f"{layer}.attention_norm")
            q, k, v = (self.linear(y, f"{layer}.{name}").view(tokens, -1, self.shape.head_dim) for name in "qkv")
            q, k = (rotate(t, self.cos[:tokens], self.sin[:tokens]) for t in (q, k))
            k, v = (t.bfloat16().float() for t in (k, v))
            y = attention(*(t.transpose(0, 1).contiguous() for t in (q, k, v)))
            x = x + self.linear(y.transpose(0, 1).reshape(tokens, -1), f"{layer}.attention_output")
            y = self.norm(x, f"{layer}.ffn_norm")
            y = F.silu(self.linear(y, f"{layer}.gate")) * self.linear(y, f"{layer}.up")
            x = x + self.linear(y, f"{layer}.down")
        return F.log_softmax(self.linear(self.norm(x, "norm"), "embedding"), -1)


def ideas():
    """Name -> attention. Each idea differs from its neighbours in one thing."""
    exact, winner = Side(exact=True), Side()
    row = Side(ROW, ROW, "", "min-scale")
    column = replace(row, base=COLUMN, scale=COLUMN)
    half_row, half_column = Side(HALF_ROW, HALF_ROW, "", "min-scale"), Side(HALF_COLUMN, HALF_COLUMN, "", "min-scale")
    ranges = replace(winner, width="max", fit="", refit_base=False)  # scales by range, as the next ones
    lean = replace(winner, base_bits=8, scale_bits=8)
    fine = replace(lean, base=HALF_COLUMN, scale=HALF_ROW)
    table = {
        "nothing (control)": (exact, exact),
        "paper": (row, column),
        "kivi, groups of 64": (column, row),
        "kivi, groups of 32": (half_column, half_row),
        "winner": (winner, winner),
    }
    alone = {
        "row, min-scale": row,
        "column, min-scale": column,
        "row, mixed": replace(row, mix="plain"),
        "column, mixed": replace(column, mix="plain"),
        "row, mixed, range * 0.8": replace(ranges, base=ROW, shrink=0.8),
        "column, mixed, range * 0.8": replace(ranges, scale=COLUMN, shrink=0.8),
        "row, mixed, true scale": replace(winner, base=ROW),
        "column, mixed, true scale": replace(winner, scale=COLUMN),
        "cross, range * 0.8": replace(ranges, mix="", shrink=0.8),
        "cross, mixed, range": ranges,
        "cross, mixed, range * 0.8": replace(ranges, shrink=0.8),
        "cross, mixed, least error": replace(ranges, width="least"),
        "cross, mixed, least-squares scale": replace(winner, fit="least"),
        "cross, true scale": replace(winner, mix=""),
        "cross, mixed, true scale (winner)": winner,
    }
    table |= {f"K: {name}": (side, exact) for name, side in alone.items()}
    table |= {f"V: {name}": (exact, side) for name, side in alone.items()}
    changes = {
        "random signs": {"mix": "signs"},
        "mean instead of mid-range": {"centre": "mean"},
        "base not fitted again": {"refit_base": False},
        "codes of least error": {"width": "least"},
        "one more round of codes": {"steps": 1},
        "scale in 8 bits": {"scale_bits": 8},
        "scale in 6 bits": {"scale_bits": 6},
        "base in 8 bits": {"base_bits": 8},
    }
    table |= {f"winner, {name}": (replace(winner, **change),) * 2 for name, change in changes.items()}
    table |= {
        "winner, V not mixed": (winner, replace(winner, mix="")),
        "lean: base and scale in 8 bits": (lean, lean),
        "lean, base per 32 tokens": (replace(lean, base=HALF_COLUMN),) * 2,
        "lean, scale per 32 channels": (replace(lean, scale=HALF_ROW),) * 2,
        "lean, both": (fine, fine),
        "lean, a product term": (replace(lean, rank=1),) * 2,
        "lean, K's farthest row in 8 bits": (replace(lean, far_row_bits=8), lean),
        "lean, a factor per channel": (replace(lean, channel_factor=True),) * 2,
        "K in 6 levels, V in 3, lean": (replace(lean, levels=6), replace(lean, levels=3)),
        "K in 3 bits, V in 2, lean": (replace(lean, levels=8), lean),
        "K in 4 bits, V in 2, lean": (replace(lean, levels=16), lean),
        "K in 2 bits, V in 4, lean": (lean, replace(lean, levels=16)),
        "K and V in 3 bits, lean": (replace(lean, levels=8),) * 2,
    }
    attentions = {name: CodedAttention(*sides) for name, sides in table.items()}
    for name in ("winner", *YARDSTICKS):
        attentions[f"{name}, first block in 16 bits"] = CodedAttention(*table[name], sink=1)
    attentions["winner, 8-bit Q and P"] = CodedAttention(winner, winner, eight_bits=True)
    return attentions


def measure(spec, names):
    """Yields name, bits of K and V, KL divergence and agreement of each window, for one MODEL,TEXT,CONTEXT,WINDOWS."""
    directory, text, context, windows = spec.split(",")
    context, windows, directory = int(context), int(windows), pathlib.Path(directory)
    model, attentions = Model(directory), ideas()
    with open(text, encoding="utf-8") as file:
        ids = Tokenizer.from_file(str(directory / "tokenizer.json")).encode(file.read(8 * context * windows)).ids
    assert len(ids) >= context * windows, f"{text} is too short"
    ids = torch.tensor(ids[: context * windows]).view(windows, context)
    exact = [model.log_probabilities(window, exact_attention) for window in ids]
    for name in names or attentions:
        attention, kl, same = attentions[name], [], []
        for window, wanted in zip(ids, exact, strict=True):
            got = model.log_probabilities(window, attention)
            kl.append((wanted.exp() * (wanted - got)).sum(-1).mean().item())
            same.append((wanted.argmax(-1) == got.argmax(-1)).float().mean().item())
        bits = [side.bits(model.shape.head_dim) for side in (attention.k, attention.v)]
        print(f"{name:44s} {bits[0]:.3f} {bits[1]:.3f} {mean_of(kl):.5f} {mean_of(same):.4f}", flush=True)
        yield name, {"bits": bits, "kl": kl, "same": same}


def mean_of(values):
    return sum(values) / len(values)


def interval(values, others, draws=2000):
    """95 % of the ratio of two means over windows, drawn in pairs."""
    a, b = torch.tensor(values).double(), torch.tensor(others).double()
    drawn = torch.randint(len(a), (draws, len(a)), generator=torch.Generator().manual_seed(1))
    ratios = (a[drawn].mean(1) / b[drawn].mean(1)).sort().values
    return ratios[int(draws * 0.025)].item(), ratios[int(draws * 0.975)].item()


def print_table(results):
    for place, rows in results.items():
        print(f"\n## {place}\n")
        print("| format | bits of K, V | KL (nat/token) | same top token | KL to the paper's | KL to KIVI's (64) |")
        print("|---|---|---|---|---|---|")
        for name, row in rows.items():
            ratios = []
            for other in YARDSTICKS:
                low, high = interval(row["kl"], rows[other]["kl"])
                ratios.append(f"{mean_of(row['kl']) / mean_of(rows[other]['kl']):.3f} [{low:.3f}, {high:.3f}]")
            k, v = (f"{bits:.4g}" for bits in row["bits"])
            figures = f"{k}, {v} | {mean_of(row['kl']):.3g} | {mean_of(row['same']):.4f}"
            print(f"| {name} | {figures} | {ratios[0]} | {ratios[1]} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", nargs="*", help="NAME=MODEL,TEXT,CONTEXT,WINDOWS")
    parser.add_argument("--only", help="names of ideas, separated by ';'")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--table", nargs="+", type=pathlib.Path, help="print what earlier runs wrote")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.table:
        results = {}
        for path in arguments.table:
            for place, rows in json.loads(path.read_text(encoding="utf-8")).items():
                results.setdefault(place, {}).update(rows)
        return print_table(results)
    results = {}
    with torch.inference_mode():
        for place in arguments.place:
            name, spec = place.split("=")
            print(f"# {name}", flush=True)
            results[name] = {}
            for idea, row in measure(spec, arguments.only.split(";") if arguments.only else None):
                results[name][idea] = row
                if arguments.out:
                    arguments.out.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
