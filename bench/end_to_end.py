#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a KV format is worth to a whole job: a long prompt computed here, its KV sent over a slow link, answered there.

A prefill worker in one network namespace, a decode worker in another, between them a link that `tc tbf` shapes. Its
rates are those at which KV in 16 bits takes --shares of a job's completion, found from one job over an unshaped link.
Every variant then does one job at each rate (--ablations: at the last), in turns, --repeats times; workers are started
anew for each. KV leaves when the prompt is computed (--kv-push whole), so that intervals follow each other. Figures
are medians, in seconds of the request's own time account.

    kvlane synth --config tests/fixtures/configs/llama-3.1-8b.json --layers 2 --out /tmp/llama
    bench/end_to_end.py /tmp/llama --json job.json
    bench/end_to_end.py /tmp/llama --variants bf16 bf16+splitzip hack --repeats 3

A variant is a KV format, and behind "+" a codec for what travels as values: rows, and sealed slabs of `zack:keep=..`
without codes. In `zack:keep=0.5+hack:k=4,v=4` the "+" belongs to the format. `cachegen` and `kvquant` need --kv-tables,
which `kvlane calibrate tables --weights none` makes with any tokenizer in the model's folder (gradients change nothing
that is timed here, and take minutes in this shape). Prompts are random token ids. Needs root, ip and tc (package
iproute2), and a kernel with network namespaces and tbf: without one of them nothing is measured, and this program says
so. KVLANE_PROGRAM is the program, build/release/kvlane if it is not set.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import statistics
import sys

from shaped_workers import (
    FAR,
    FAR_ADDRESS,
    NEAR,
    NEAR_ADDRESS,
    Unavailable,
    bytes_ratio,
    kv_bytes,
    measure_requests,
    server_in,
    shape,
    two_namespaces,
    value,
)

VARIANTS = (
    "bf16",
    "bf16+splitzip",
    "kivi:bits=2,group=64",
    "cachegen",
    "hack",
)
ABLATIONS = (
    "hack:compute=dequantise",
    "hack:paper",
    "hack:paper,compute=complete",
    "hack:paper,compute=complete,sums=computed",
    "hack:paper,rqe=0",
    "hack:paper,ktail=code,diag=int8",
)
CODECS = ("none", "splitzip", "splitzip:channel", "auto")
# Intervals of the account, and what is left of those that have parts.
PARTS = {
    "prefill": ("prefill_attention", "prefill_quantise", "prefill_dequantise"),
    "decode": ("decode_attention", "decode_dequantise"),
}
INTERVALS = ("prefill", "encode", "transfer", "decode_codec", "decode")


def seconds_of(report):
    """The account of a run's only request: exclusive intervals that add up to `total`."""
    total = value(report, "mean_e2el_ms") / 1000

    def interval(name):
        return value(report, f"account_share_{name}") * total

    account = {"total": total}
    for name in INTERVALS:
        parts = {part: interval(part) for part in PARTS.get(name, ())}
        account |= parts
        account[f"{name}_rest" if parts else name] = interval(name) - sum(parts.values())
    account["other"] = total - sum(seconds for name, seconds in account.items() if name != "total")
    return account


def format_and_codec(text):
    """What stands before the last "+" and behind it, if that is a codec; else the text and no codec."""
    name, _, codec = text.rpartition("+")
    return (name, codec) if name and codec in CODECS else (text, "none")


class Variant:
    """What is measured: a format, and a codec for values."""

    def __init__(self, text):
        self.text = text
        self.format, self.codec = format_and_codec(text)
        self.jobs = {}  # link: [account]
        self.ratio = None
        self.report = None

    @property
    def word(self):
        return re.sub("[:,=+.]", "_", self.text)

    def run(self, options, links, seed):
        """One job for each link, whose rates are in Mbit/s or None."""
        with contextlib.ExitStack() as stack:
            flags = ["--kv-format", self.format, "--kv-memory", options.kv_memory, "--threads", options.threads]
            if options.kv_tables and self.format.startswith(("cachegen", "kvquant")):
                flags += ["--kv-tables", options.kv_tables]

            def start(namespace, address, role, *more):
                flags_there = (*flags, "--host", address, "--kv-bind", address, *more)
                server = server_in(namespace, role, options.model, *flags_there)
                stack.callback(server.stop)
                return server

            decode = start(FAR, FAR_ADDRESS, "decode")
            prefill = start(NEAR, NEAR_ADDRESS, "prefill", "--kv-codec", self.codec, "--kv-push", "whole")
            ends = ("--prefill", prefill.url, "--decode", decode.url)
            gateway = server_in(NEAR, "gateway", "--host", NEAR_ADDRESS, *ends)
            stack.callback(gateway.stop)
            for number, (link, mbit) in enumerate(links.items()):
                shape(mbit)
                self.report = measure_requests(self.text, gateway.url, options, seed + number, 1)
                self.jobs.setdefault(link, []).append(seconds_of(self.report))
                print(f"  {self.text}, {link}: {self.jobs[link][-1]['total']:.1f} s", file=sys.stderr, flush=True)
            self.ratio = bytes_ratio(prefill.url)

    def median(self, link, interval):
        return statistics.median(job[interval] for job in self.jobs[link])


def find_rates(variant, options):
    """Rates in Mbit/s by the share of completion that 16 bits would take."""
    variant.run(options, {"unshaped": None}, 1)
    account = variant.jobs.pop("unshaped")[0]
    others = account["total"] - account["transfer"]
    return {
        f"{share:.0%}": options.kv_bytes * 8e-6 / (others * share / (1 - share))
        for share in map(float, options.shares.split(","))
    }


def figures(variants):
    """In the form of `kvlane bench --json`."""
    for variant in variants:
        yield {"name": f"job_{variant.word}_bytes_ratio", "value": variant.ratio, "unit": "ratio"}
        for link in variant.jobs:
            for interval in variant.jobs[link][0]:
                figure = {
                    "name": f"job_{link.rstrip('%')}_{variant.word}_{interval}",
                    "value": variant.median(link, interval),
                    "unit": "s",
                }
                if interval == "total" and variant is not variants[0]:
                    figure["baseline"] = variants[0].median(link, interval)
                    figure["ratio"] = figure["value"] / figure["baseline"]
                yield figure


def print_table(variants, links):
    names = list(next(iter(variants[0].jobs.values()))[0])
    for link, mbit in links.items():
        print(f"\n{mbit:.1f} Mbit/s: KV in 16 bits takes {link} of a job\n")
        print(f"{'':<34}" + "".join(f"{name:>19}" for name in names))
        for variant in (variant for variant in variants if link in variant.jobs):
            cells = [f"{variant.median(link, name):.2f}" for name in names]
            print(f"{variant.text:<34}" + "".join(f"{cell:>19}" for cell in cells))


def measure(options):
    variants = [Variant(text) for text in options.variants + options.ablations]
    with contextlib.ExitStack() as stack:
        stack.enter_context(two_namespaces())
        shape(1000)  # whether that can be done at all
        links = find_rates(variants[0], options)
        print(", ".join(f"{link}: {mbit:.1f} Mbit/s" for link, mbit in links.items()), file=sys.stderr)
        for repeat in range(options.repeats):
            print(f"repeat {repeat + 1} of {options.repeats}", file=sys.stderr)
            for number, variant in enumerate(variants):
                everywhere = number < len(options.variants)
                measured = links if everywhere else dict(list(links.items())[-1:])
                variant.run(options, measured, 1000 * (repeat + 1) + 10 * number)
    print_table(variants, links)
    if options.json:
        report = {name: variants[0].report[name] for name in ("machine", "commit")}
        # What sends requests uses one core.
        report["machine"] = re.sub(r"\d+ of", f"{options.threads} of", report["machine"], count=1)
        rates = ", ".join(f"{link} {mbit:.1f} Mbit/s" for link, mbit in links.items())
        model = pathlib.Path(options.model).name
        by = f"bench/end_to_end.py --repeats {options.repeats} --threads {options.threads} {model}"
        report["command"] = (
            f"kvlane bench serve --dataset random --input-len {options.input_len} --output-len {options.output_len}"
            f" --num-prompts 1 # {by}: {rates}"
        )
        report["results"] = list(figures(variants))
        pathlib.Path(options.json).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model directory")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), metavar="FORMAT[+CODEC]",
                        help="bf16 first, which the others are compared with")  # fmt: skip
    parser.add_argument("--ablations", nargs="*", default=list(ABLATIONS), metavar="FORMAT[+CODEC]",
                        help="over the last link only")  # fmt: skip
    parser.add_argument("--kv-tables", help="for cachegen and kvquant")
    parser.add_argument("--input-len", type=int, default=16384, help="tokens of a prompt")
    parser.add_argument("--output-len", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--shares", default="0.2,0.4", help="of completion that the link takes with bf16")
    parser.add_argument("--repeats", type=int, default=3, help="jobs of each variant and link")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each worker: they take turns")
    parser.add_argument("--kv-memory", default="1GiB", help="of each worker")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    if options.variants[0] != "bf16":
        parser.error("the first variant is bf16, which the others are compared with")
    options.concurrency = 1
    options.kv_bytes = kv_bytes(options.model, options.input_len)
    try:
        measure(options)
    except (Unavailable, FileNotFoundError) as why:
        print(f"SKIPPED: end_to_end: {why}; nothing was measured", file=sys.stderr)


if __name__ == "__main__":
    main()
