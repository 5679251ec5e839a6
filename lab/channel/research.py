"""Ratios that designs of the channel mode reach on planes written by planes.cpp.

    python3 research.py TEST_DIR CALIBRATION_DIR

All designs send sign and mantissa as they are (8 bits) and differ in how they send exponents. Sizes are in bits a value
and count everything but a constant of some bytes a plane. Codebooks of the calibrated designs come from CALIBRATION_DIR
(another text), per layer and channel; adaptive ones send their parameters in every plane.
SPDX-License-Identifier: Apache-2.0
"""

import pathlib
import sys

import numpy as np


def load(directory, kind, layer):
    """Exponents [planes][heads][64][channels]."""
    _, kv_heads, head_dim, hidden = map(int, (directory / "shape").read_text().split())
    heads, channels = (1, hidden) if kind == "h" else (kv_heads, head_dim)
    words = np.fromfile(directory / f"{kind}.{layer}", dtype="<u2").reshape(-1, heads, 64, channels)
    return (words >> 7 & 255).astype(np.int64)


def histogram(e):
    """Counts [heads * channels][256]."""
    columns = e.transpose(1, 3, 0, 2).reshape(e.shape[1] * e.shape[3], -1)
    return np.stack([np.bincount(column, minlength=256) for column in columns])


def entropy(counts):
    p = counts / counts.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 0, -p * np.log2(p), 0).sum(-1)


def layered(sorted_p, bits):
    """Cost of planes of `bits` each over symbols of falling (expected) frequency, then raw bytes."""
    cost, first, left = 0.0, 0, np.ones(sorted_p.shape[0])
    for b in bits:
        cost = cost + b * left
        last = first + 2**b - 1
        left = left - sorted_p[:, first:last].sum(-1)
        first = last
    return (cost + 8 * left).mean()


def calibrated(test, calibration):
    order = np.argsort(-calibration, axis=1, kind="stable")
    p = np.take_along_axis(test, order, 1)
    p = p / p.sum(-1, keepdims=True)
    return {
        "cal 3+raw": layered(p, [3]),
        "cal 2+2+raw": layered(p, [2, 2]),
        "cal 2+3+raw": layered(p, [2, 3]),
        "cal 2+2+2+raw": layered(p, [2, 2, 2]),
        "cal 4+raw": layered(p, [4]),
    }


def shared_order(distances, bits, planes, reserved):
    """Layers over one table of distances per plane: `reserved` first, then by frequency in the plane."""
    cost = 0.0
    for d in distances.reshape(planes, -1):
        counts = np.bincount(d + 256, minlength=512)
        first = counts[[256 + r for r in reserved]]
        rest = counts.copy()
        rest[[256 + r for r in reserved]] = -1
        p = np.concatenate([first, np.sort(rest)[::-1]])
        p = np.maximum(p, 0) / d.size
        cost += layered(p[None], bits)
    return cost / planes


def best_window(e, width):
    """Per plane and channel the largest exponent of the window that holds most of the rows; the highest of several."""
    planes, heads, rows, channels = e.shape
    columns = e.transpose(0, 1, 3, 2).reshape(-1, rows)
    counts = np.zeros((columns.shape[0], 256 + width), dtype=np.int64)
    np.add.at(counts, (np.arange(columns.shape[0])[:, None], columns + width - 1), 1)
    sums = np.cumsum(counts, 1)
    window = sums[:, width - 1 : 255 + width].copy()
    window[:, 1:] -= sums[:, : 255]
    top = 255 - np.argmax(window[:, ::-1], axis=1)  # window ends (largest) at this exponent
    return top.reshape(planes, heads, 1, channels)


def mean_rule(e, offset):
    return np.floor(e.mean(2, keepdims=True) + offset).astype(np.int64)


def median_rule(e, k):
    return np.sort(e, axis=2)[:, :, k : k + 1, :]


def adaptive(e):
    planes = e.shape[0]
    out = {}
    rules = {"max": e.max(2, keepdims=True), "win3": best_window(e, 3), "win7": best_window(e, 7)}
    rules |= {f"mean{o:+.2f}": mean_rule(e, o) for o in (1.0, 1.25, 1.5)}
    rules |= {f"rank{k}": median_rule(e, k) for k in (48, 52, 56)}
    for name, base in rules.items():
        d = np.broadcast_to(base, e.shape) - e
        cost = 8 / 64
        reserved = list(range(3))
        out[f"ada {name} 2+2+raw"] = cost + shared_order(d, [2, 2], planes, reserved)
        out[f"ada {name} 2+2+2+raw"] = cost + shared_order(d, [2, 2, 2], planes, reserved)
        out[f"ada {name} 2free+2+2+raw"] = cost + shared_order(d, [2, 2, 2], planes, [])
        out[f"ada {name} 3+raw"] = cost + shared_order(d, [3], planes, list(range(7)))
        out[f"ada {name} entropy of d"] = cost + np.mean([entropy(np.bincount(x + 256)) for x in d.reshape(planes, -1)])
    base = rules["win3"]
    out["base entropy/64"] = np.mean([entropy(np.bincount(b.ravel())) for b in base]) / 64
    # the parameters coded as the values are: distance from the plane's best window of 3
    return out


def main():
    test, calibration = map(pathlib.Path, sys.argv[1:3])
    layers = int((test / "shape").read_text().split()[0])
    for kind in "kvh":
        rows = []
        for layer in range(layers):
            e, c = load(test, kind, layer), load(calibration, kind, layer)
            counts = histogram(e)
            row = {"plane entropy": entropy(counts.sum(0)), "channel entropy": entropy(counts).mean()}
            row |= calibrated(counts, histogram(c)) | adaptive(e)
            rows.append(row)
        print(f"\n{test.name} {kind}: bits of an exponent by layer, mean, ratio")
        for name in rows[0]:
            bits = [row[name] for row in rows]
            mean = np.mean(bits)
            print(f"{name:28} " + " ".join(f"{b:5.2f}" for b in bits) + f"  {mean:6.3f} {16 / (8 + mean):6.3f}")


main()
