"""Do bits by importance pay in ZACK's basis? Allocations of 0, 2, 4 and 8 bits at equal bytes, by fake quantisation.

    importance_bits.py NAME=MODEL,ROTATED,CALIBRATION_TEXT,TEXT,CONTEXT,WINDOWS [more places]
        [--budgets 1.5,2] [--only "e,;c2,"] [--costs F.costs] --out F.json
    importance_bits.py --table F.json [G.json ...]

ROTATED is what `kvlane calibrate zack MODEL` made. K and V of 64 tokens of a KV head are rotated, cut into classes of
leading dimensions, each class coded as `hack` codes rows of its width, and rotated back. A query reads its own block
as it is. Needs torch, tokenizers and safetensors.
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import collections
import dataclasses
import functools
import itertools
import json
import math
import pathlib
import sys

import torch
import torch.nn.functional as F
from safetensors import safe_open
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "lab" / "hack_axes"))
from axes import TOKENS, Model, exact_attention, interval, mean_of, mixing, paged

TILE = 16  # dimensions: widths and bounds of classes are multiples
BITS = (2, 4, 8)
CALIBRATION, LABELS = (3, 512), 4  # windows and their tokens; tokens drawn for each position

# ---------------------------------------------------------------------------------------------------------------
# Planes: K or V of a KV head of a layer. What is done with one is a tuple of classes (width, bits), leading dimensions
# first; what is behind them is dropped.


def plane_bits(classes, head_dim):
    """Bits a value of all head_dim: codes, an fp16 base a channel and, in each class, an fp16 scale a token."""
    return sum(w * bits + w * 16 / TOKENS + 16 for w, bits in classes) / head_dim


def hack(x, bits):
    """x [..., 64, width], mixed already, as codes stand for it: spec/hack.md, section 6, without `p`."""
    half = (2**bits - 1) / 2
    low, high, count = x.amin(-2, keepdim=True), x.amax(-2, keepdim=True), x.shape[-2]
    middle = (x.sum(-2, keepdim=True) - low - high) / (count - 2)
    away = (x - middle).abs()
    reach = (away.sum(-2, keepdim=True) - away.amax(-2, keepdim=True)) / (count - 1) * 4
    base = (torch.maximum(low, middle - reach) + torch.minimum(high, middle + reach)) / 2
    y = x - base
    energy = (y * y).sum(-1, keepdim=True)
    step = (energy / x.shape[-1]).sqrt() * 0.996 if bits == 2 else y.abs().amax(-1, keepdim=True) / half
    inverse = torch.where(step < 2.0**-24, 0.0, 1 / step.clamp_min(2.0**-24))
    code = torch.round(y * inverse + half).clamp(0, 2 * half) - half
    along = (y * code).sum(-1, keepdim=True)
    scale = torch.where(inverse > 0, energy / along.clamp_min(1e-30), 0.0).half().float()
    weight = torch.where(scale > 0, 1 / scale.clamp_min(1e-30), 0.0)
    weights = weight.sum(-2, keepdim=True)
    fitted = (weight * (x - scale * code)).sum(-2, keepdim=True) / weights.clamp_min(1e-30)
    return torch.where(weights > 0, fitted, base).half().float() + scale * code


def sealed(x, rotation, classes, mix="class"):
    """x [pages, 64, head_dim] as attention sees it. mix: class, all (over what is kept) or none."""
    y, parts, at = x @ rotation, [], 0
    kept = sum(width for width, _ in classes)
    if kept and mix == "all":
        y = torch.cat([y[..., :kept] @ mixing(kept, "plain"), y[..., kept:]], -1)
    for width, bits in classes:
        matrix = mixing(width, "plain") if mix == "class" else torch.eye(width)
        parts.append(hack(y[..., at : at + width] @ matrix, bits) @ matrix.T)
        at += width
    y = torch.cat([*parts, torch.zeros_like(y[..., at:])], -1)
    if kept and mix == "all":
        y = torch.cat([y[..., :kept] @ mixing(kept, "plain").T, y[..., kept:]], -1)
    return y @ rotation.T


def coded_attention(q, k, v, sealed_k, sealed_v):
    """q [heads, tokens, head_dim], others [kv_heads, ...]. A query reads its own block as it is, others sealed."""
    heads, tokens, head_dim = q.shape
    kv_heads, group, blocks = len(k), heads // len(k), tokens // TOKENS
    q = q / math.sqrt(head_dim)
    scores = (q.reshape(kv_heads, -1, head_dim) @ sealed_k.mT).view(heads, blocks, TOKENS, blocks, TOKENS)
    diagonal = torch.arange(blocks)
    scores[:, diagonal, :, diagonal] = (paged(q) @ paged(k).repeat_interleave(group, 0).mT).transpose(0, 1)
    scores = scores.view(heads, tokens, tokens) + torch.full((tokens, tokens), -math.inf).triu(1)
    p = torch.softmax(scores, -1).view(heads, blocks, TOKENS, blocks, TOKENS)
    own = p[:, diagonal, :, diagonal].transpose(0, 1) @ paged(v).repeat_interleave(group, 0)
    p[:, diagonal, :, diagonal] = 0
    return own.reshape(q.shape) + (p.view(kv_heads, -1, tokens) @ sealed_v).view(q.shape)


class Allocated:
    """Attention of all layers in turn. plan: [layers][kv_heads] of (classes of K, classes of V)."""

    def __init__(self, plan, rotations, mix="class"):
        self.plan, self.rotations, self.mix, self.calls = plan, rotations, mix, 0

    def __call__(self, q, k, v):
        layer = self.calls % len(self.plan)
        self.calls += 1
        pages = []
        for part, x in enumerate((k, v)):
            heads = [
                sealed(x[h].view(-1, TOKENS, x.shape[-1]), self.rotations[layer][part][h], both[part], self.mix)
                for h, both in enumerate(self.plan[layer])
            ]
            pages.append(torch.stack(heads).view(x.shape))
        return coded_attention(q, k, v, *pages)


# ---------------------------------------------------------------------------------------------------------------
# What an allocation is chosen by. Costs: {(layer, head, part): {classes: cost}}, part 0 for K and 1 for V.


def one_number(head_dim):
    """All planes with one number of bits: a width and bits."""
    return [((w, bits),) for w in range(TILE, head_dim + 1, TILE) for bits in BITS]


def many_classes(head_dim):
    """Bits of each 16 dimensions that do not rise; equal ones are a class."""
    found = []
    for bits in itertools.product((*reversed(BITS), 0), repeat=head_dim // TILE):
        if bits[0] and list(bits) == sorted(bits, reverse=True):
            runs = [(b, len(list(run))) for b, run in itertools.groupby(bits)]
            found.append(tuple((TILE * n, b) for b, n in runs if b))
    return found


def distortions():
    """Share of the variance of a Gaussian that codes of 2, 4 and 8 bits lose, by width."""
    generator = torch.Generator().manual_seed(1)
    table = {}
    for width in range(TILE, 257, TILE):
        x = torch.randn(200, TOKENS, width, generator=generator)
        variance = x.var(-2, keepdim=True).mean()
        for bits in BITS:
            table[width, bits] = (((hack(x, bits) - x) ** 2).mean() / variance).item()
    return table


def spectral_costs(spectra, options, lost, weigh):
    """By the tables alone: each plane's values, or their squares, as shares of their sum."""
    costs = {}
    for plane, values in spectra.items():
        power = values.double() ** (2 if weigh == "energies" else 1)
        costs[plane] = {o: spent(power / power.sum(), None, power / power.sum(), o, lost) for o in options}
    return costs


def spent(variance, weight, dropped, classes, lost):
    """Sum of errors. variance: of what is coded; weight: of an error in each dimension; dropped: cost without it."""
    total, at = 0.0, 0
    for width, bits in classes:
        part = slice(at, at + width)
        mean_weight = 1.0 if weight is None else weight[part].mean()
        total += float(lost[width, bits] * variance[part].sum() * mean_weight)
        at += width
    return total + float(dropped[at:].sum())


@dataclasses.dataclass
class Seen:
    """What calibration saw of a layer in a window: inputs of attention, and gradients of log-probabilities of sampled
    tokens by its output, [labels][heads, tokens, head_dim]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    gradients: list


def watch(model, ids):
    """[layers] of Seen of one window."""
    seen, probes = [], []

    def attention(q, k, v):
        seen.append(Seen(q.detach(), k.detach(), v.detach(), []))
        probes.append(torch.zeros_like(q, requires_grad=True))
        return exact_attention(q, k, v) + probes[-1]

    with torch.enable_grad():
        logs = model.log_probabilities(ids, attention)
        generator = torch.Generator().manual_seed(1)
        for _ in range(LABELS):
            labels = torch.multinomial(logs.detach().exp(), 1, generator=generator)
            found = torch.autograd.grad(logs.gather(1, labels).sum(), probes, retain_graph=True)
            for one, gradient in zip(seen, found, strict=True):
                one.gradients.append(gradient)
    return seen


def moment_costs(seen, rotations, output, options, lost, kv_heads):
    """K: variance of a score's error; V: error of the output as a share of its variance. Second moments by dimension of
    K, V, queries and the output projection in the basis, taken as independent."""
    costs = {}
    for layer, windows in enumerate(seen):
        for head in range(kv_heads):
            r_k, r_v = (rotations[layer][part][head] for part in (0, 1))
            group = len(windows[0].q) // kv_heads
            k = torch.stack([paged(w.k)[head] @ r_k for w in windows]).double()
            v = torch.stack([paged(w.v)[head] @ r_v for w in windows]).double()
            q = torch.cat([w.q[head * group : (head + 1) * group] @ r_k for w in windows]).double()
            queries = (q**2).mean((0, 1)) / q.shape[-1]
            slices = output[layer].view(len(output[layer]), -1, q.shape[-1])[:, head * group : (head + 1) * group] @ r_v
            projection = (slices.double() ** 2).sum((0, 1))
            within_k, within_v = (x.var(-2).mean((0, 1)) for x in (k, v))
            around_k, around_v = (x.flatten(0, 2).var(0) for x in (k, v))
            whole = (around_v * projection).sum()
            costs[layer, head, 0] = {o: spent(within_k, queries, around_k * queries, o, lost) for o in options}
            weight = projection / whole
            costs[layer, head, 1] = {o: spent(within_v, weight, around_v * weight, o, lost) for o in options}
    return costs


def measured_costs(seen, rotations, output, options, kv_heads):
    """Two costs of each choice, measured plane by plane, all others exact: squared error of attention behind the output
    projection, as a share of its squares, and half the mean square of (gradient . error of a token): nats of KL."""
    by_output, by_gradient = (collections.defaultdict(lambda: collections.defaultdict(float)) for _ in range(2))
    for layer, windows in enumerate(seen):
        for w in windows:
            heads, tokens, head_dim = w.q.shape
            group = heads // kv_heads
            y = exact_attention(w.q, w.k, w.v).transpose(0, 1).reshape(tokens, -1) @ output[layer].T
            energy = (y**2).sum()
            for head in range(kv_heads):
                mine = slice(head * group, (head + 1) * group)
                q, k, v = w.q[mine], w.k[head : head + 1], w.v[head : head + 1]
                right = coded_attention(q, k, v, k, v)
                slices = output[layer].view(-1, heads, head_dim)[:, mine]
                for part, x in enumerate((k, v)):
                    for choice in options:
                        pages = sealed(x.view(-1, TOKENS, head_dim), rotations[layer][part][head], choice).view(k.shape)
                        got = coded_attention(q, k, v, *((pages, v) if part == 0 else (k, pages)))
                        error = got - right
                        behind = torch.einsum("htd,ohd->to", error, slices)
                        by_output[layer, head, part][choice] += ((behind**2).sum() / energy).item() / len(windows)
                        for g in w.gradients:
                            along = (g[mine] * error).sum((0, 2))
                            share = len(windows) * len(w.gradients) * tokens
                            by_gradient[layer, head, part][choice] += 0.5 * (along**2).sum().item() / share
    return by_output, by_gradient


def cheapest(costs, bits_of, budget):
    """The choice for each plane: least sum of costs with a mean of bits_of that is at most budget, on the lower convex
    hulls (steps in order of gain per bit, as long as they fit)."""
    chosen, steps = {}, []
    for plane, options in costs.items():
        hull = []
        for bits, cost, option in sorted((bits_of(o), c, o) for o, c in options.items()):
            if hull and cost >= hull[-1][1]:
                continue
            while hull and hull[-1][0] == bits:
                hull.pop()
            while len(hull) > 1 and (hull[-2][1] - hull[-1][1]) * (bits - hull[-1][0]) <= (hull[-1][1] - cost) * (
                hull[-1][0] - hull[-2][0]
            ):
                hull.pop()
            hull.append((bits, cost, option))
        chosen[plane] = hull[0]
        steps += [((a[1] - b[1]) / (b[0] - a[0]), plane, b) for a, b in itertools.pairwise(hull)]
    left = budget * len(costs) - sum(bits for bits, _, _ in chosen.values())
    if left < 0:
        return None
    for _, plane, to in sorted(steps, key=lambda s: (-s[0], s[1])):
        more = to[0] - chosen[plane][0]
        if more > left + 1e-9:
            break
        left -= more
        chosen[plane] = to
    return {plane: option for plane, (_, _, option) in chosen.items()}


def tails(values):
    """Behind 1, 2 ... times 16 dimensions, as shares of all."""
    return [(values[w:].sum() / values.sum()).item() for w in range(TILE, len(values) + 1, TILE)]


def kept_widths(spectra, weigh):
    """Widths of all planes by ZACK's rule (spec/slab_zack.md, section 2) at each threshold, from the widest."""
    power = {plane: values.double() ** (2 if weigh == "energies" else 1) for plane, values in spectra.items()}
    behind = {plane: tails(values) for plane, values in power.items()}
    thresholds = sorted({-1.0, *(t for of in behind.values() for t in of[:-1])})
    for r in thresholds:
        yield {
            plane: TILE * (1 + next((m for m, t in enumerate(of) if t <= r), len(of) - 1))
            for plane, of in behind.items()
        }


# ---------------------------------------------------------------------------------------------------------------


class Place:
    """A model, its rotations, and what calibration finds."""

    def __init__(self, directory, rotated, calibration_text, kept):
        self.directory = pathlib.Path(directory)
        self.model = Model(self.directory)
        self.shape = shape = self.model.shape
        self.output = [self.model.weights[f"layers.{i}.attention_output.weight"] for i in range(shape.layers)]
        self.rotations, self.spectra = [], {}
        with safe_open(str(pathlib.Path(rotated) / "kvlane" / "zack.safetensors"), "pt") as tables:
            for layer in range(shape.layers):
                self.rotations.append([])
                for part, name in enumerate("kv"):
                    prefix = f"zack.layers.{layer}.{name}."
                    square = (shape.kv_heads, shape.head_dim, shape.head_dim)
                    self.rotations[-1].append(tables.get_tensor(prefix + "rotation").view(square))
                    values = tables.get_tensor(prefix + "singular_values").view(square[:2])
                    for head in range(shape.kv_heads):
                        self.spectra[layer, head, part] = values[head]
        self.lost = distortions()
        self.calibration_text, self.kept = calibration_text, kept

    def windows(self, text, count, context):
        with open(text, encoding="utf-8") as file:
            ids = Tokenizer.from_file(str(self.directory / "tokenizer.json")).encode(file.read(8 * context * count)).ids
        assert len(ids) >= context * count, f"{text} is too short"
        return torch.tensor(ids[: context * count]).view(count, context)

    def bits_of(self, classes):
        return plane_bits(classes, self.shape.head_dim)

    def bits(self, plan):
        """Mean of all planes, and of K and V."""
        parts = [[self.bits_of(c) for plane, c in plan.items() if plane[2] == part] for part in (0, 1)]
        return [mean_of(parts[0] + parts[1]), mean_of(parts[0]), mean_of(parts[1])]

    @functools.cached_property
    def costs(self):
        """{name: costs}, of all choices with any classes; those with one are among them."""
        if self.kept and self.kept.exists():
            return torch.load(self.kept)
        d, kv_heads = self.shape.head_dim, self.shape.kv_heads
        options = many_classes(d)
        windows = [watch(self.model, ids) for ids in self.windows(self.calibration_text, *CALIBRATION)]
        seen = list(zip(*windows, strict=True))
        by_output, by_gradient = measured_costs(seen, self.rotations, self.output, options, kv_heads)
        costs = {
            "values": spectral_costs(self.spectra, options, self.lost, "values"),
            "energies": spectral_costs(self.spectra, options, self.lost, "energies"),
            "moments": moment_costs(seen, self.rotations, self.output, options, self.lost, kv_heads),
            "output": {plane: dict(of) for plane, of in by_output.items()},
            "gradient": {plane: dict(of) for plane, of in by_gradient.items()},
        }
        if self.kept:
            torch.save(costs, self.kept)
        return costs

    def least(self, name, options, budget, apart=False):
        """Plan of least cost among `options` (a function of the part)."""
        plan = {}
        for parts in ((0,), (1,)) if apart else ((0, 1),):
            costs = {
                plane: {o: of[o] for o in options(plane[2])}
                for plane, of in self.costs[name].items()
                if plane[2] in parts
            }
            found = cheapest(costs, self.bits_of, budget)
            if found is None:
                return None
            plan |= found
        return plan

    def widest(self, plans, budget):
        """The plan with most bits that fit."""
        fitting = [(self.bits(plan)[0], i, plan) for i, plan in enumerate(plans) if self.bits(plan)[0] <= budget + 1e-9]
        return max(fitting)[2] if fitting else None

    def zack(self, budget, k, v, weigh):
        """One number of bits for K and one for V, adaptive widths."""
        plans = [
            {plane: ((w, (k, v)[plane[2]]),) for plane, w in widths.items()}
            for widths in kept_widths(self.spectra, weigh)
        ]
        return self.widest(plans, budget)

    def two_classes(self, budget, high, low, kept, weigh):
        """Leading dimensions in `high` bits, more in `low`, both by thresholds. kept: the share of all that has any."""
        widths = list(kept_widths(self.spectra, weigh))
        all_of = len(self.spectra) * self.shape.head_dim
        outer = max((w for w in widths if sum(w.values()) <= kept * all_of + 1e-9), key=lambda w: sum(w.values()))
        plans = []
        for inner in widths:
            plan = {}
            for plane, w in outer.items():
                n = min(inner[plane], w)
                plan[plane] = ((n, high), (w - n, low)) if w > n else ((n, high),)
            plans.append(plan)
        return self.widest(plans, budget)


def ideas(place, budget):
    """Name -> (plan, mix) of what fits into `budget` bits a value."""
    d = place.shape.head_dim
    planes = list(place.spectra)
    one, many = one_number(d), many_classes(d)
    table = {}
    for k, v in ((2, 2), (4, 2), (4, 4), (8, 4), (8, 8)):
        plan = {plane: ((d, (k, v)[plane[2]]),) for plane in planes}
        if abs(place.bits(plan)[0] - budget) < 1e-9:
            table[f"a, hack:k={k},v={v}"] = plan
        for weigh in ("values", "energies")[k == 8 :]:
            table[f"b, zack+hack:k={k},v={v}, {weigh}"] = place.zack(budget, k, v, weigh)
    for high, low, kept in ((4, 2, 1.0), (4, 2, 0.75), (8, 2, 0.75), (8, 4, 0.75)):
        table[f"c1, {high} and {low} bits of {kept:g}"] = place.two_classes(budget, high, low, kept, "energies")
    for name in place.costs:
        table[f"c2, classes, {name}"] = place.least(name, lambda _: many, budget)
        table[f"e, bits per head, {name}"] = place.least(name, lambda _: one, budget)
    name = "output"
    table[f"c2, K and V apart, {name}"] = place.least(name, lambda _: many, budget, apart=True)
    table[f"e, K and V apart, {name}"] = place.least(name, lambda _: one, budget, apart=True)
    table[f"e, all dimensions kept, {name}"] = place.least(name, lambda _: [((d, b),) for b in BITS], budget)
    for k, v in ((2, 2), (4, 2), (4, 4)):
        table[f"w, widths alone, k={k},v={v}, {name}"] = place.least(
            name, lambda part, kv=(k, v): [o for o in one if o[0][1] == kv[part]], budget
        )
    table = {name: (plan, "class") for name, plan in table.items() if plan}
    for name in ("c2, classes, output", "e, bits per head, output"):
        for mix in ("all", "none"):
            if name in table and budget == 2.5:
                table[f"d, {name}, mixed {mix}"] = (table[name][0], mix)
    return table


def histogram(plan):
    """How many planes of K and of V chose what."""
    counts = collections.Counter()
    for plane, classes in plan.items():
        counts["KV"[plane[2]] + " " + " ".join(f"{w}x{b}" for w, b in classes)] += 1
    return dict(sorted(counts.items()))


def measure(spec, budgets, only, kept):
    directory, rotated, calibration_text, text, context, windows = spec.split(",")
    context, windows = int(context), int(windows)
    place = Place(directory, rotated, calibration_text, kept)
    shape, model = place.shape, place.model
    print({f"{bits} bits": round(place.lost[shape.head_dim, bits], 6) for bits in BITS}, flush=True)
    ids = place.windows(text, windows, context)
    exact = [model.log_probabilities(window, exact_attention) for window in ids]
    measured = {}
    for budget in budgets:
        for name, (plan, mix) in ideas(place, budget).items():
            if only and not any(name.startswith(o) for o in only):
                continue
            nested = [[(plan[i, h, 0], plan[i, h, 1]) for h in range(shape.kv_heads)] for i in range(shape.layers)]
            key = (str(nested), mix)
            if key not in measured:
                attention, kl, same = Allocated(nested, place.rotations, mix), [], []
                for window, wanted in zip(ids, exact, strict=True):
                    got = model.log_probabilities(window, attention)
                    kl.append((wanted.exp() * (wanted - got)).sum(-1).mean().item())
                    same.append((wanted.argmax(-1) == got.argmax(-1)).float().mean().item())
                measured[key] = (kl, same)
            kl, same = measured[key]
            foreseen = sum(place.costs["gradient"][plane][classes] for plane, classes in plan.items())
            bits = place.bits(plan)
            print(
                f"{budget:g} {name:48s} {bits[0]:.3f} {bits[1]:.3f} {bits[2]:.3f} {mean_of(kl):.5f} {mean_of(same):.4f}"
                f" {foreseen:.5f}",
                flush=True,
            )
            yield budget, name, {"bits": bits, "kl": kl, "same": same, "foreseen": foreseen, "chosen": histogram(plan)}


# ---------------------------------------------------------------------------------------------------------------


def ratio(row, other):
    low, high = interval(row["kl"], other["kl"])
    return f"{mean_of(row['kl']) / mean_of(other['kl']):.2f} [{low:.2f}, {high:.2f}]"


def print_table(results):
    for place, by_budget in results.items():
        for budget, rows in by_budget.items():
            print(f"\n## {place}, {budget} bits\n")
            print(
                "| | allocation | bits, of K, of V | KL (nat/token) | same top token | KL to the best `b` | to `hack` |"
            )
            print("|---|---|---|---|---|---|---|")
            best = min((r for n, r in rows.items() if n.startswith("b,")), key=lambda r: mean_of(r["kl"]), default=None)
            alone = next((r for n, r in rows.items() if n.startswith("a,")), None)
            for name, row in rows.items():
                of, what = name.split(", ", 1)
                ratios = [ratio(row, other) if other else "-" for other in (best, alone)]
                bits = ", ".join(f"{b:.2f}" for b in row["bits"])
                print(
                    f"| {of} | {what} | {bits} | {mean_of(row['kl']):.3g} | {mean_of(row['same']):.3f} | "
                    f"{ratios[0]} | {ratios[1]} |"
                )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", nargs="*", help="NAME=MODEL,ROTATED,CALIBRATION_TEXT,TEXT,CONTEXT,WINDOWS")
    parser.add_argument("--budgets", default="1.5,2,2.5,3,3.5", help="bits a value of all head_dim")
    parser.add_argument("--only", help="beginnings of names, separated by ';'")
    parser.add_argument("--costs", type=pathlib.Path, help="file that keeps what calibration found, of one place")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--table", nargs="+", type=pathlib.Path, help="print what earlier runs wrote")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    if arguments.table:
        for path in arguments.table:
            for place, rows in json.loads(path.read_text(encoding="utf-8")).items():
                for budget, of_budget in rows.items():
                    results.setdefault(place, {}).setdefault(budget, {}).update(of_budget)
        return print_table(results)
    budgets, only = [float(b) for b in arguments.budgets.split(",")], (arguments.only or "").split(";")
    with torch.no_grad():
        for place in arguments.place:
            name, spec = place.split("=")
            print(f"# {name}", flush=True)
            results[name] = {}
            for budget, idea, row in measure(spec, budgets, [o for o in only if o], arguments.costs):
                results[name].setdefault(f"{budget:g}", {})[idea] = row
                if arguments.out:
                    arguments.out.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
