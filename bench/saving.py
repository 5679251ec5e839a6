#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs answers that their state is saved: decode time of a step of --batch answers, with a store and without.

For each form of a store two servers, one without, take turns: in each both answer the same --batch prompts of
--input-len random tokens with --output-len tokens each, all sent at once. What counts is the time in which all of them
decode: from the last one's first token to the first one's last, and the tokens that come in it. Medians of --turns; the
ratio is that of each turn's two. Who begins takes turns as well.

    bench/saving.py models/kvlane-small
    bench/saving.py models/kvlane-small --forms kv --turns 5 --json saving.json

The store is written while answers go on; NOT SAVED counts tokens that it did not take, because it was behind: state
that is not saved costs nothing, and a figure with many of them is worth nothing. Memory is enough for all. Whoever
decodes and whoever saves share the processors. KVLANE_PROGRAM is the program, build/release/kvlane if it is not set.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile

from served import figure_word, load, served, store_flags, write_report

BLOCK = 64  # tokens
GOAL = 1.04  # of a step without saving


def step_seconds(result, batch):
    """Seconds of a step, in the time in which all answers decode."""
    if result["completed"] != batch or result["shortened_prompts"]:
        sys.exit(f"{result['completed']} of {batch} prompts were answered, {result['shortened_prompts']} cut")
    times = []  # of each answer's tokens
    for start, first, gaps in zip(result["start_times"], result["ttfts"], result["itls"]):
        times.append([start + first])
        for gap in gaps:
            times[-1].append(times[-1][-1] + gap)
    begin, end = max(each[0] for each in times), min(each[-1] for each in times)
    tokens = sum(begin < time <= end for each in times for time in each)
    if tokens < batch:
        sys.exit("answers did not decode together: a longer --output-len")
    return (end - begin) * batch / tokens


def measure(form, options):
    """Seconds of a step without and with the store, in each turn; tokens that were not saved."""
    flags = ["--kv-memory", options.kv_memory, "--host-memory", "0", "--max-num-seqs", options.batch]
    with tempfile.TemporaryDirectory(dir=options.store) as folder:
        stored = store_flags(form, pathlib.Path(folder) / "store")
        with served(options.model, *flags) as without, served(options.model, *flags, *stored) as saving:
            seconds = {without: [], saving: []}
            for turn in range(-1, options.turns):
                for server in (without, saving)[:: 1 if turn % 2 else -1]:
                    result = load(server, folder, "--num-prompts", options.batch, "--input-len", options.input_len,
                                  "--output-len", options.output_len, "--seed", turn + 2)  # fmt: skip
                    seconds[server].append(step_seconds(result, options.batch))
            lost = BLOCK * saving.metric("kvlane_store_save_failures_total")
            lost += saving.metric("kvlane_store_hidden_tokens_lost_total")
            # The first turn is to warm up.
            return seconds[without][1:], seconds[saving][1:], lost


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model directory")
    parser.add_argument("--forms", nargs="+", default=["kv", "kv+splitzip", "hidden", "auto"])
    parser.add_argument("--batch", type=int, default=16, help="answers at once (%(default)s)")
    parser.add_argument("--input-len", type=int, default=128, help="tokens of a prompt (%(default)s)")
    parser.add_argument("--output-len", type=int, default=512, help="tokens of an answer (%(default)s)")
    parser.add_argument("--turns", type=int, default=11, help="of each server (%(default)s)")
    parser.add_argument("--kv-memory", default="1GiB", help="of each server (%(default)s)")
    parser.add_argument("--store", default=".", metavar="DIR", help="stores are made in it, and removed (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    print(f"{'ms a step':<14}{'without':>10}{'saving':>10}{'ratio':>8}{'NOT SAVED':>12}", flush=True)
    figures = []
    for form in options.forms:
        without, saving, lost = measure(form, options)
        ratio = statistics.median(one / other for one, other in zip(saving, without))
        medians = [1000 * statistics.median(seconds) for seconds in (without, saving)]
        print(f"{form:<14}{medians[0]:>10.3f}{medians[1]:>10.3f}{ratio:>8.3f}{lost:>12.0f}", flush=True)
        name = f"saving_{figure_word(form)}"
        figures.append({"name": f"{name}_step", "value": medians[1], "unit": "ms", "baseline": medians[0],
                        "ratio": medians[1] / medians[0]})  # fmt: skip
        figures.append({"name": f"{name}_cost", "value": ratio, "unit": "ratio", "goal": GOAL, "met": ratio <= GOAL})
        figures.append({"name": f"{name}_not_saved", "value": lost, "unit": "tokens"})
    if options.json:
        write_report(options.json, figures)


if __name__ == "__main__":
    main()
