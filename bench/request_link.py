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
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("KVLANE_PROGRAM") or str(ROOT / "build" / "release" / "kvlane")
NEAR, FAR = f"kvlane-near-{os.getpid()}", f"kvlane-far-{os.getpid()}"
NEAR_ADDRESS, FAR_ADDRESS = "10.213.78.1", "10.213.78.2"
PATIENCE = 120  # seconds for anything that should be quick
CODECS = ("none", "splitzip", "splitzip:channel", "auto")
PUSHES = ("layer", "whole")
LATENCIES = ("median_ttft_ms", "median_e2el_ms", "request_throughput")
# The rate is right when the link's share is so near to the one that was asked for.
SHARE_TOLERANCE = 0.03


class Unavailable(Exception):
    """This machine does not allow what is needed."""


def network(*command):
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode != 0:
        raise Unavailable(f"`{shlex.join(command)}`: {done.stderr.strip()}")


@contextlib.contextmanager
def two_namespaces():
    """A pair of namespaces with a link between them."""
    try:
        for name in (NEAR, FAR):
            network("ip", "netns", "add", name)
        network("ip", "-n", NEAR, "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", FAR)
        for name, address in ((NEAR, NEAR_ADDRESS), (FAR, FAR_ADDRESS)):
            network("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "veth0")
            for interface in ("lo", "veth0"):
                network("ip", "-n", name, "link", "set", interface, "up")
        yield
    finally:
        for name in (NEAR, FAR):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def shape(mbit):
    """The link's rate from the prefill workers to the decode worker; None: as it is."""
    if mbit is None:
        subprocess.run(["tc", "-n", NEAR, "qdisc", "del", "dev", "veth0", "root"], capture_output=True, check=False)
        return
    rate = f"{round(mbit * 1000)}kbit"
    shaper = ("tbf", "rate", rate, "burst", "128k", "limit", "4m")
    network("tc", "-n", NEAR, "qdisc", "replace", "dev", "veth0", "root", *shaper)


def inside(namespace, *command):
    return ["ip", "netns", "exec", namespace, PROGRAM, *map(str, command)]


class Server:
    """A serving command of the program; ends with this process."""

    def __init__(self, namespace, *arguments):
        self.process = subprocess.Popen(
            inside(namespace, *arguments, "--port", 0, "--parent", os.getpid(), "--json"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_WAIT_POLICY": "passive"},
        )
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"request_link: `{shlex.join(map(str, arguments))}` did not start")
        self.url = json.loads(line)["url"]

    def stop(self):
        self.process.terminate()
        self.process.wait(PATIENCE)


class Variant:
    """A way of sending KV: its prefill worker, a gateway before it, and what was measured."""

    def __init__(self, codec, push, decode, options, stack):
        self.codec, self.push = codec, push
        worker = ["--kv-memory", "256MiB", "--threads", 1, "--host", NEAR_ADDRESS]
        worker += ["--kv-bind", NEAR_ADDRESS, "--kv-codec", codec, "--kv-push", push]
        self.prefill = Server(NEAR, "prefill", options.model, *worker)
        stack.callback(self.prefill.stop)
        self.gateway = Server(
            NEAR, "gateway", "--host", NEAR_ADDRESS, "--prefill", self.prefill.url, "--decode", decode.url
        )
        stack.callback(self.gateway.stop)
        self.runs = []

    @property
    def name(self):
        return f"{self.codec}, {self.push}"

    def measure(self, options, seed, requests):
        """One run of the load generator; its report."""
        command = ["bench", "serve", "--base-url", self.gateway.url, "--dataset", "random"]
        command += ["--input-len", options.input_len, "--output-len", options.output_len, "--warmup", 2]
        command += ["--concurrency", options.concurrency, "--num-prompts", requests, "--seed", seed, "--json"]
        done = subprocess.run(inside(NEAR, *command), capture_output=True, text=True, check=False, timeout=3600)
        if done.returncode != 0:
            sys.exit(f"request_link: {self.name}: {done.stderr.strip()}")
        report = json.loads(done.stdout)
        if value(report, "failed"):
            sys.exit(f"request_link: {self.name}: {value(report, 'failed'):.0f} requests failed")
        return report

    def bytes_ratio(self):
        """Of all that its worker has sent."""
        code = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"
        text = subprocess.run(
            ["ip", "netns", "exec", NEAR, sys.executable, "-c", code, f"{self.prefill.url}/metrics"],
            capture_output=True, text=True, check=True, timeout=PATIENCE,
        ).stdout

        def total(kind):
            samples = re.findall(rf"^kvlane_transfer_{kind}_bytes_total\S* (\S+)$", text, re.MULTILINE)
            return sum(map(float, samples))

        raw, shipped = total("raw"), total("shipped")
        return raw / shipped if shipped else None


def value(report, name):
    return next(result["value"] for result in report["results"] if result["name"] == name)


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
        decode = Server(FAR, "decode", options.model, *memory, "--host", FAR_ADDRESS, "--kv-bind", FAR_ADDRESS)
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
        ratios = {variant: variant.bytes_ratio() for variant in variants}
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


def kv_bytes(options):
    """Of one prompt's KV, from the model's configuration."""
    config = json.loads((pathlib.Path(options.model) / "config.json").read_text(encoding="utf-8"))
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    channels = config.get("num_key_value_heads", heads) * head_dim
    return options.input_len * config["num_hidden_layers"] * channels * 2 * 2


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
    options.kv_bytes = kv_bytes(options)
    try:
        measure(options)
    except (Unavailable, FileNotFoundError) as why:
        print(f"SKIPPED: request_link: {why}; nothing was measured", file=sys.stderr)


if __name__ == "__main__":
    main()
