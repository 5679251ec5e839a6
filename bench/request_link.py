#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a codec is worth to a request where the link is a good part of its time.

A gateway and prefill workers in one network namespace, a decode worker in another one, between them a link that
`tc tbf` shapes. Its rate is found first: the one at which uncoded KV, sent when the whole prompt is computed, takes
--share of a request's completion time, by the request's own time account. Then `kvlane bench serve` drives every codec
with KV pushed layer by layer and as a whole, in turns, --repeats times. Figures are medians over the repeats; those of
a codec are compared with `none` pushed in the same way.

    bench/request_link.py models/kvlane-tiny-gqa
    bench/request_link.py --input-len 900 --output-len 16 --share 0.3 --json DIR models/kvlane-tiny-gqa

--json DIR writes one file for each variant there, as `kvlane bench serve --json` does, for tools/record.py; --rate
takes a rate in Mbit/s instead of looking for one. Prompts are random token ids; K and V are what the model makes of
them.
Needs root, ip and tc (package iproute2), and a kernel with network namespaces and tbf: without one of them nothing is
measured, and this program says so. KVLANE_PROGRAM is the program, build/release/kvlane if it is not set.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys

from shaped_workers import (
    FAR,
    FAR_ADDRESS,
    NEAR,
    NEAR_ADDRESS,
    SHARE_TOLERANCE,
    Unavailable,
    bytes_ratio,
    kv_bytes,
    measure_requests,
    server_in,
    shape,
    two_namespaces,
    value,
)

CODECS = ("none", "splitzip", "splitzip:channel", "auto")
PUSHES = ("layer", "whole")
LATENCIES = ("median_ttft_ms", "median_e2el_ms", "request_throughput")


class Variant:
    """A way of sending KV: its prefill worker, a gateway before it, and what was measured."""

    def __init__(self, codec, push, decode, options, stack):
        self.codec, self.push = codec, push
        worker = ["--kv-memory", "256MiB", "--threads", 1, "--host", NEAR_ADDRESS]
        worker += ["--kv-bind", NEAR_ADDRESS, "--kv-codec", codec, "--kv-push", push]
        self.prefill = server_in(NEAR, "prefill", options.model, *worker)
        stack.callback(self.prefill.stop)
        self.gateway = server_in(
            NEAR, "gateway", "--host", NEAR_ADDRESS, "--prefill", self.prefill.url, "--decode", decode.url
        )
        stack.callback(self.gateway.stop)
        self.runs = []

    @property
    def name(self):
        return f"{self.codec}, {self.push}"

    def measure(self, options, seed, requests):
        """One run of the load generator; its report."""
        return measure_requests(self.name, self.gateway.url, options, seed, requests, "--warmup", 2)


def median_report(variant, baseline):
    """Medians over the runs of a variant; latencies and throughput beside those of the baseline."""
    report = dict(variant.runs[0])
    report["results"] = []
    for result in variant.runs[0]["results"]:
        entry = result | {"value": statistics.median(value(run, result["name"]) for run in variant.runs)}
        if baseline is not variant and result["name"] in LATENCIES:
            entry["baseline"] = statistics.median(value(run, result["name"]) for run in baseline.runs)
            # Of runs that followed each other.
            pairs = zip(variant.runs, baseline.runs, strict=True)
            entry["ratio"] = statistics.median(value(a, result["name"]) / value(b, result["name"]) for a, b in pairs)
        report["results"].append(entry)
    return report


def find_rate(variant, options, requests):
    """The rate in Mbit/s at which the link takes --share of a request's time, by its time account."""
    shape(None)
    report = variant.measure(options, 1, requests)
    without = value(report, "mean_e2el_ms") * (1 - value(report, "account_share_transfer")) / 1000
    mbit = options.kv_bytes * 8e-6 / (without * options.share / (1 - options.share))
    for attempt in range(6):
        shape(mbit)
        share = value(variant.measure(options, 2 + attempt, requests), "account_share_transfer")
        print(f"{mbit:.1f} Mbit/s: the link takes {share:.1%} of a request's time", file=sys.stderr)
        if abs(share - options.share) <= SHARE_TOLERANCE:
            break
        mbit *= share / (1 - share) * (1 - options.share) / options.share
    return mbit


def print_table(variants, ratios):
    columns = ("median_ttft_ms", "median_e2el_ms", "request_throughput", "account_share_encode",
               "account_share_transfer", "account_share_decode_codec")
    titles = [*(name.removeprefix("account_") for name in columns), "bytes_ratio"]
    print(f"{'codec, push':<24}" + "".join(f"{title:>20}" for title in titles))
    for variant, report in variants:
        cells = []
        for name in columns:
            result = next(result for result in report["results"] if result["name"] == name)
            ratio = f" ({result['ratio']:.3f})" if "baseline" in result else ""
            cells.append(f"{result['value']:.4g}{ratio}".rjust(20))
        print(f"{variant.name:<24}" + "".join(cells) + f"{ratios[variant]:20.3f}")


def measure(options):
    with contextlib.ExitStack() as stack:
        stack.enter_context(two_namespaces())
        shape(1000)  # whether that can be done at all
        shape(None)
        memory = ["--kv-memory", "256MiB", "--threads", 1]
        decode = server_in(FAR, "decode", options.model, *memory, "--host", FAR_ADDRESS, "--kv-bind", FAR_ADDRESS)
        stack.callback(decode.stop)
        codecs = options.codecs.split(",")
        variants = [Variant(codec, push, decode, options, stack) for push in PUSHES for codec in codecs]
        baselines = {variant.push: variant for variant in variants if variant.codec == "none"}
        mbit = options.rate or find_rate(baselines["whole"], options, options.num_prompts)
        shape(mbit)
        for repeat in range(options.repeats):
            print(f"repeat {repeat + 1} of {options.repeats}", file=sys.stderr)
            for number, variant in enumerate(variants):
                seed = 1000 * (repeat + 1) + number  # prompts that no worker has seen
                variant.runs.append(variant.measure(options, seed, options.num_prompts))
        ratios = {variant: bytes_ratio(variant.prefill.url) for variant in variants}
    reports = [(variant, median_report(variant, baselines[variant.push])) for variant in variants]
    print(f"link: {mbit:.1f} Mbit/s")
    print_table(reports, ratios)
    if options.json:
        folder = pathlib.Path(options.json)
        folder.mkdir(parents=True, exist_ok=True)
        for variant, report in reports:
            report["command"] += f" # {variant.codec}, --kv-push {variant.push}, link of {mbit:.0f} Mbit/s"
            name = f"request_link_{variant.codec}_{variant.push}.json".replace(":", "_")
            (folder / name).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        print(f"wrote {len(reports)} files in {folder}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model directory")
    parser.add_argument("--codecs", default=",".join(CODECS), help="with none among them")
    parser.add_argument("--input-len", type=int, default=900, help="tokens of a prompt")
    parser.add_argument("--output-len", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--concurrency", type=int, default=1, help="requests at a time")
    parser.add_argument("--num-prompts", type=int, default=20, help="requests of a run")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each variant")
    parser.add_argument("--share", type=float, default=0.3, help="of completion that the link should take")
    parser.add_argument("--rate", type=float, help="Mbit/s, instead of looking for the rate of --share")
    parser.add_argument("--json", metavar="DIR", help="write one file for each variant there")
    options = parser.parse_args()
    if "none" not in options.codecs.split(","):
        parser.error("--codecs needs none, which the others are compared with")
    options.kv_bytes = kv_bytes(options.model, options.input_len)
    try:
        measure(options)
    except (Unavailable, FileNotFoundError) as why:
        print(f"SKIPPED: request_link: {why}; nothing was measured", file=sys.stderr)


if __name__ == "__main__":
    main()
