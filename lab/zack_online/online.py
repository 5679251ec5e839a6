#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What ZACK would cost if each request had rotations of its own, found, applied and undone while it is served.

Per layer of Llama 3.1 8B (8 KV heads of 128, 4 query heads each) and a prompt of --tokens: the singular vectors of K
and V of each head behind prefill, compression of both to half of their dimensions, and decompression of all of it in
every step of decoding, before attention can read it. Products are numpy's (OpenBLAS, float32, --threads threads), the
decomposition is that of the d x d Gram matrix, the cheapest way there is. Beside it, from `kvlane bench attention` in
the same run: a step's attention over rows in 16 bits, and over `zack:keep=0.5`, whose rotations come from calibration.

    OPENBLAS_NUM_THREADS=1 lab/zack_online/online.py --program build/release/kvlane --tokens 16384
"""

import argparse
import json
import statistics
import subprocess
import time

import numpy

KV_HEADS, GROUP, HEAD_DIM, KEPT = 8, 4, 128, 64


def seconds(work, repeats):
    """Median over repeats."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def online(tokens, repeats):
    """Seconds of a layer: decompose, compress, and decompress in one step."""
    random = numpy.random.default_rng(1)
    spectrum = numpy.exp(-numpy.arange(HEAD_DIM) / 24, dtype=numpy.float32)
    basis, _ = numpy.linalg.qr(random.standard_normal((HEAD_DIM, HEAD_DIM), dtype=numpy.float32))
    heads = [
        random.standard_normal((tokens, HEAD_DIM), dtype=numpy.float32) * spectrum @ basis for _ in range(2 * KV_HEADS)
    ]

    def decompose():
        return [numpy.linalg.eigh((x.T @ x).astype(numpy.float64)) for x in heads]

    axes = [vectors[:, ::-1][:, :KEPT].astype(numpy.float32).copy() for _, vectors in decompose()]
    small = [x @ axis for x, axis in zip(heads, axes)]
    lost = max(float(numpy.linalg.norm(x - s @ a.T) / numpy.linalg.norm(x)) for x, s, a in zip(heads, small, axes))
    if lost > 0.1:
        raise SystemExit(f"compressed to {KEPT} dimensions {lost:.2f} is lost, of a spectrum that has less there")
    out = numpy.empty((tokens, HEAD_DIM), dtype=numpy.float32)
    return {
        "decompose": seconds(decompose, repeats),
        "compress": seconds(lambda: [numpy.matmul(x, a, out=s) for x, a, s in zip(heads, axes, small)], repeats),
        "decompress": seconds(lambda: [numpy.matmul(s, a.T, out=out) for s, a in zip(small, axes)], repeats),
    }


def measured(program, *arguments):
    """The figures of a benchmark of kvlane, by name."""
    done = subprocess.run([program, "bench", *map(str, arguments), "--json"], check=True, stdout=subprocess.PIPE)
    return {figure["name"]: figure["value"] for figure in json.loads(done.stdout)["results"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/release/kvlane", help="kvlane (%(default)s)")
    parser.add_argument("--tokens", type=int, default=16384, help="of the prompt (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of kvlane; numpy's are said outside (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="medians are over so many (%(default)s)")
    options = parser.parse_args()
    cost = online(options.tokens, options.repeats)
    speed = measured(
        options.program, "attention", "--formats", "zack:keep=0.5", "--tokens", options.tokens, "--groups", GROUP,
        "--size", 128, "--threads", options.threads, "--repeats", options.repeats,
    )  # fmt: skip
    for name, value in cost.items():
        print(f"{name:28} {1e3 * value:9.2f} ms a layer")
    for name in ("bf16", "zack_keep_0_5"):
        step = options.tokens * KV_HEADS / speed[f"attention_{options.tokens}_{name}_group{GROUP}"]
        print(f"attention, {name:17} {1e3 * step:9.2f} ms a layer and token")


if __name__ == "__main__":
    main()
