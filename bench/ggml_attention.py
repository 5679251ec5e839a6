#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention of one token on one core: kvlane's formats beside ggml's types, in turns.

    bench/ggml_attention.py [--tokens N,...] [--groups N,...] [--rounds N] [--core N] [--json FILE] PROGRAM

PROGRAM is bench/peers/ggml_attention.cpp, built against ggml (bench/peers/README.md). In every round it and `kvlane
bench attention` run once for each length of the cache, on core --core, the one first that was last before; both have
8 KV heads of 128 channels in 256 MiB, were they in 16 bits, and say how many KV tokens they attend to per second of
processor time. bf16, int8 and int4 are compared with types of their size, f16 and bf16, q8_0, q4_0; `hack`, which is
smaller than any of ggml's types, with f16 and q4_0. Figures are medians over the rounds, ratios those
of the rounds' ratios (docs/bench.md). KVLANE_PROGRAM is the program, build/release/kvlane if it is not set.
"""

import argparse
import collections
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("KVLANE_PROGRAM") or str(ROOT / "build" / "release" / "kvlane")
PATIENCE = 600  # seconds for one run
# Names in figures, and the types of ggml that each is compared with.
PAIRS = (
    ("bf16", "f16"),
    ("bf16", "bf16"),
    ("int8_sym_1", "q8_0"),
    ("int4_sym_0", "q4_0"),
    ("hack_k_2_v_2", "f16"),
    ("hack_k_2_v_2", "q4_0"),
)
FORMATS = "int8,int4,hack"
TYPES = "f16,bf16,q8_0,q4_0"


def report_of(options, *command):
    pinned = ["taskset", "--cpu-list", str(options.core), *map(str, command)]
    done = subprocess.run(pinned, capture_output=True, text=True, check=False, timeout=PATIENCE)
    if done.returncode != 0:
        sys.exit(f"ggml_attention: `{shlex.join(pinned)}`: {done.stderr.strip()}")
    return json.loads(done.stdout)


class Turns:
    """Speeds so far, of each round in order, by the figure's name."""

    def __init__(self, options):
        self.options = options
        self.speeds = collections.defaultdict(list)
        self.machine = self.commit = ""

    def ours(self, tokens):
        command = ["bench", "attention", "--threads", 1, "--formats", FORMATS, "--tokens", tokens, "--groups"]
        report = report_of(self.options, PROGRAM, *command, *self.options.groups, "--repeats", 1, "--json")
        self.machine, self.commit = report["machine"], report["commit"]
        for result in report["results"]:
            if result["unit"] == "tokens/s":
                self.speeds[result["name"]].append(result["value"])

    def ggml(self, tokens):
        groups = ",".join(map(str, self.options.groups))
        for entry in report_of(self.options, self.options.program, tokens, groups, TYPES, 1)["results"]:
            name = f"ggml_attention_{tokens}_{entry['type']}_group{entry['group']}"
            self.speeds[name].append(entry["tokens_per_second"])

    def run(self):
        order = [self.ggml, self.ours]
        for number in range(self.options.rounds):
            print(f"ggml_attention: round {number + 1} of {self.options.rounds}", file=sys.stderr)
            for tokens in self.options.tokens:
                for program in order:
                    program(tokens)
            order.reverse()

    def results(self):
        for name, speeds in self.speeds.items():
            yield {"name": name, "value": statistics.median(speeds), "unit": "tokens/s"}
        for tokens in self.options.tokens:
            for group in self.options.groups:
                for kv_format, kind in PAIRS:
                    ours = self.speeds[f"attention_{tokens}_{kv_format}_group{group}"]
                    theirs = self.speeds[f"ggml_attention_{tokens}_{kind}_group{group}"]
                    ratio = statistics.median(a / b for a, b in zip(ours, theirs))
                    name = f"attention_{tokens}_{kv_format}_group{group}_over_ggml_{kind}"
                    yield {"name": name, "value": ratio, "unit": "ratio"}


def numbers(text):
    return [int(word) for word in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description="Attention of one token on one core, beside ggml's.")
    parser.add_argument("program", metavar="PROGRAM", help="bench/peers/ggml_attention.cpp, built")
    parser.add_argument("--tokens", type=numbers, default=[4096, 32768], help="lengths of the cache")
    parser.add_argument("--groups", type=numbers, default=[1, 4], help="query heads of a KV head")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="where to write the report")
    options = parser.parse_args()
    turns = Turns(options)
    turns.run()
    report = {
        "machine": turns.machine,
        "commit": turns.commit,
        "command": shlex.join(["bench/ggml_attention.py", *sys.argv[1:]]),
        "results": list(turns.results()),
    }
    for result in report["results"]:
        print(f"{result['name']:56} {result['value']:12.4g}  {result['unit']}")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
