#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of a transfer pushing layer by layer hides behind the prefill, on a link that is --speed times as fast as
the prefill makes KV.

A gateway and prefill workers in one network namespace, a decode worker in another one. First the prefill is timed over
the link as it is; then `tc tbf` shapes it, and requests with KV pushed as a whole and layer by layer take turns,
--repeats times, one request at a time. What a transfer could take is its bytes over the rate; what of it stuck out is
`transfer` in the time accounts; the rest is hidden.

    bench/hidden_push.py --input-len 2000 models/kvlane-small

Needs root, ip and tc (package iproute2), and a kernel with network namespaces and tbf. KVLANE_PROGRAM is the program,
build/release/kvlane if it is not set.
"""

import argparse
import contextlib
import statistics
import sys

from request_link import Variant
from served import write_report
from shaped_workers import FAR, FAR_ADDRESS, Unavailable, kv_bytes, server_in, shape, two_namespaces, value

GOAL = 0.9


def seconds(report, interval):
    return value(report, f"account_share_{interval}") * value(report, "mean_e2el_ms") / 1000


def measure(options):
    with contextlib.ExitStack() as stack:
        stack.enter_context(two_namespaces())
        memory = ["--kv-memory", "256MiB", "--threads", 1]
        decode = server_in(FAR, "decode", options.model, *memory, "--host", FAR_ADDRESS, "--kv-bind", FAR_ADDRESS)
        stack.callback(decode.stop)
        variants = {push: Variant("none", push, decode, options, stack) for push in ("whole", "layer")}
        prefill = seconds(variants["layer"].measure(options, 1, options.num_prompts), "prefill")
        full = prefill / options.speed
        mbit = kv_bytes(options.model, options.input_len) * 8e-6 / full
        print(f"prefill {prefill:.3f} s, link {mbit:.0f} Mbit/s: a transfer takes {full:.3f} s at least")
        shape(mbit)
        exposed = {push: [] for push in variants}
        for repeat in range(options.repeats):
            for number, (push, variant) in enumerate(variants.items()):
                seed = 1000 * (repeat + 1) + number  # prompts that no worker has seen
                exposed[push].append(seconds(variant.measure(options, seed, options.num_prompts), "transfer"))
        figures = [{"name": "hidden_push_prefill", "value": prefill, "unit": "s"},
                   {"name": "hidden_push_transfer", "value": full, "unit": "s"}]  # fmt: skip
        for push, values in exposed.items():
            median = statistics.median(values)
            hidden = 1 - median / full
            print(f"--kv-push {push:6} {median:.4f} s stick out, {hidden:.1%} of the transfer is hidden")
            figures.append({"name": f"hidden_push_{push}_exposed", "value": median, "unit": "s"})
            if push == "layer":
                figures.append({"name": "hidden_push_layer_hidden", "value": hidden, "unit": "share", "goal": GOAL,
                                "met": hidden >= GOAL})  # fmt: skip
        if options.json:
            write_report(options.json, figures)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model directory")
    parser.add_argument("--input-len", type=int, default=2000, help="tokens of a prompt")
    parser.add_argument("--output-len", type=int, default=4, help="tokens of an answer")
    parser.add_argument("--num-prompts", type=int, default=10, help="requests of a run")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each way")
    parser.add_argument("--speed", type=float, default=2, help="of the link, in that of the prefill")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, as tools/record.py takes them")
    options = parser.parse_args()
    options.concurrency = 1
    try:
        measure(options)
    except (Unavailable, FileNotFoundError) as why:
        print(f"SKIPPED: hidden_push: {why}; nothing was measured", file=sys.stderr)


if __name__ == "__main__":
    main()
