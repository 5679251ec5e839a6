#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to the first token in sessions of several rounds, by how the history comes back.

HCache's figures 9 and 15 are the model: sessions begin at random times, each behind one of --num-prefixes contexts that
are chosen by Zipf's law; between an answer and the next round somebody thinks, and others are answered. For each way
this program starts `kvlane serve` and drives it with `kvlane bench serve --rounds`:

    recompute   no prefix cache and no store: every round computes all of its prompt
    memory      one process with memory for everything: what no way can beat (HCache's "Ideal")
    FORM        little memory, and a store: kv, kv+splitzip, hidden, hidden:int8, auto ...

    bench/sessions.py models/kvlane-small
    bench/sessions.py models/kvlane-small --ways recompute kv --requests 30 --think-time 10 --json sessions.json

With a FORM histories leave memory between rounds: KV memory (--kv-memory) holds about four of them, while a think time
sees dozens; there is no memory behind it (--host-memory 0, --store-memory 0), and the store is read past the system's
caches where the disk lets us. The contexts that are asked for most may stay in KV memory: that is what a skew is worth.
Not left to belief: every request must be answered; later rounds must find nine tenths of their history, with
`recompute` nothing, with `memory` nothing in a store; and what came back from the store must be nine tenths of all that
is the sessions' own (histories without contexts) or more. Only `auto` may compute what it finds quicker to compute.
Answers are the same in all ways but hidden:int8. Where one of these does not hold, this program says so and fails.

Latencies are in milliseconds, from when a request was due; first rounds apart from later ones. FOUND is the share of
later rounds' histories that was in memory or in the store; RESTORE the mean time from a restore's first read until it
is back. Prompts are random token ids. KVLANE_PROGRAM is the program, build/release/kvlane if it is not set.
"""

import argparse
import collections
import pathlib
import statistics
import sys
import tempfile

from served import figure_word, is_lossless, load, served, store_flags, write_report

WAYS = ("recompute", "memory", "kv", "kv+splitzip", "hidden", "auto")
BLOCK = 64  # tokens; only whole blocks are kept
FOUND_MIN = 0.9
PERCENTS = (50, 90, 99)

Request = collections.namedtuple("Request", "history input cached ttft tpot text")
Row = collections.namedtuple("Row", "way first later tpot found hits bytes_read restore")


class Wrong(Exception):
    """What was measured is not what it is meant to be."""


def percentiles(values):
    """P50, P90 and P99, between the nearest two as `kvlane bench serve` has them."""
    if len(values) == 1:
        return values * len(PERCENTS)
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return [cuts[percent - 1] for percent in PERCENTS]


def server_flags(way, options, folder):
    flags = ["--kv-memory", options.ideal_memory if way == "memory" else options.kv_memory, "--host-memory", "0"]
    if way == "memory":
        return flags
    if way == "recompute":
        return [*flags, "--no-enable-prefix-caching"]
    return [*flags, *store_flags(way, folder), "--store-memory", "0"]


def load_flags(options):
    flags = ["--num-prompts", options.requests, "--warmup", "2"]
    for name in ("rounds", "think_time", "prefix_len", "num_prefixes", "prefix_zipf", "input_len", "output_len",
                 "range_ratio", "request_rate", "seed"):  # fmt: skip
        flags += ["--" + name.replace("_", "-"), getattr(options, name)]
    return flags


def requests_of(result):
    """Requests by session and round. A history is what the rounds before have left: whole blocks, without the last
    token, of which nobody has computed K and V."""
    if result["failed"] or result["unfinished"]:
        raise Wrong(f"{result['failed'] + result['unfinished']} requests were not answered")
    if result["shortened_prompts"]:
        raise Wrong(f"{result['shortened_prompts']} requests do not fit the model's context: make them shorter")
    requests = {}
    names = ("conversations", "rounds", "input_lens", "output_lens", "cached_lens", "ttfts", "latencies",
             "generated_texts")  # fmt: skip
    behind = {}  # tokens of a session so far
    for session, turn, given, made, cached, ttft, latency, text in sorted(zip(*(result[name] for name in names))):
        history = max(behind.get(session, 0) - 1, 0) // BLOCK * BLOCK
        tpot = (latency - ttft) / (made - 1) if made > 1 else None
        requests[session, turn] = Request(history, given, cached, ttft, tpot, text)
        behind[session] = given + made
    return requests


def found_share(requests):
    """Of the tokens of later rounds' histories."""
    later = [request for (_, turn), request in requests.items() if turn > 1]
    history = sum(request.history for request in later)
    return sum(min(request.cached, request.history) for request in later) / history if history else 0


def check(way, requests, hits, options):
    """Raises Wrong unless the way did what its name says."""
    found = found_share(requests)
    later = [request for (_, turn), request in requests.items() if turn > 1]
    if not any(request.history for request in later):
        raise Wrong("no round has a history of a block: more rounds, or longer ones")
    if way == "recompute":
        if any(request.cached for request in requests.values()):
            raise Wrong("a prompt was found in memory, which should have none")
        return
    if way == "memory":
        if hits:
            raise Wrong(f"{hits:.0f} tokens came from a store that should not be there")
    elif way == "auto":
        if not hits:
            raise Wrong("nothing came back from the store")
        return
    else:
        own = sum(max(request.history - options.prefix_len, 0) for request in later)
        if hits < FOUND_MIN * own:
            raise Wrong(f"{hits:.0f} tokens came back from the store, but histories have {own} tokens of their own: "
                        "the others had not left memory (less --kv-memory?) or were not stored")  # fmt: skip
    if found < FOUND_MIN:
        raise Wrong(f"only {found:.0%} of the histories was found: more --ideal-memory, or a faster disk")


def measure(way, options):
    """A row of the table, and answers by session and round."""
    with tempfile.TemporaryDirectory(dir=options.store) as folder:
        with served(options.model, *server_flags(way, options, pathlib.Path(folder) / "store")) as server:
            requests = requests_of(load(server, folder, *load_flags(options)))
            hits = server.metric("kvlane_store_hit_tokens_total")
            bytes_read = server.metric("kvlane_restore_bytes_total")
            restore = server.metric("kvlane_restore_seconds_total")
            restores = server.metric("kvlane_restores_total")
            failed = server.metric("kvlane_restores_failed_total")
            preemptions = server.metric("kvlane_preemptions_total")
    if failed:
        raise Wrong(f"{failed:.0f} restores failed")
    if preemptions:
        print(f"{way}: {preemptions:.0f} times memory did not hold what ran: more --kv-memory?", file=sys.stderr)
    check(way, requests, hits, options)

    def latencies(rounds):
        return percentiles([1000 * request.ttft for (_, turn), request in requests.items() if rounds(turn)])

    tpots = [1000 * request.tpot for request in requests.values() if request.tpot is not None]
    row = Row(way, latencies(lambda turn: turn == 1), latencies(lambda turn: turn > 1),
              statistics.median(tpots) if tpots else 0, found_share(requests), hits, bytes_read,
              1000 * restore / restores if restores else 0)  # fmt: skip
    return row, {key: (request.input, request.text) for key, request in requests.items()}


def measure_all(options):
    truth = None
    for number, way in enumerate(options.ways, 1):
        print(f"{way}: {number} of {len(options.ways)} ways", file=sys.stderr, flush=True)
        try:
            row, answers = measure(way, options)
            truth = truth or (answers if is_lossless(way) else None)
            if is_lossless(way) and answers != truth:
                raise Wrong(f"answers are others than those of {options.ways[0]}")
        except Wrong as why:
            sys.exit(f"{way}: {why}")
        yield row


def figures(rows):
    def figure(row, name, value, unit):
        return {"name": f"sessions_{figure_word(row.way)}_{name}", "value": value, "unit": unit}

    for row in rows:
        for rounds in ("first", "later"):
            for percent, value in zip(PERCENTS, getattr(row, rounds)):
                yield figure(row, f"{rounds}_ttft_p{percent}", value, "ms")
        yield figure(row, "tpot_p50", row.tpot, "ms")
        yield figure(row, "found", row.found, "share")
        yield figure(row, "store_hits", row.hits, "tokens")
        yield figure(row, "bytes_read", row.bytes_read, "bytes")
        yield figure(row, "restore_mean", row.restore, "ms")


def print_head():
    columns = "".join(f"{f'{rounds} p{percent}':>11}" for rounds in ("first", "later") for percent in PERCENTS)
    ends = f"{'TPOT p50':>10}{'FOUND':>8}{'from store':>12}{'MB read':>9}{'RESTORE':>9}"
    print(f"{'TTFT, ms':<14}{columns}{ends}", flush=True)


def print_row(row):
    columns = "".join(f"{value:>11.1f}" for value in [*row.first, *row.later])
    ends = f"{row.tpot:>10.2f}{row.found:>8.2f}{row.hits:>12.0f}{row.bytes_read / 1e6:>9.1f}{row.restore:>9.1f}"
    print(f"{row.way:<14}{columns}{ends}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model directory")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help=f"of them, in turn (default: {' '.join(WAYS)})")
    parser.add_argument("--rounds", type=int, default=3, help="of each session (%(default)s)")
    parser.add_argument("--requests", type=int, default=45, help="rounds of all sessions (%(default)s)")
    parser.add_argument("--request-rate", type=float, default=0.9, help="of them, a second (%(default)s)")
    parser.add_argument("--think-time", type=float, default=30, help="seconds between rounds (%(default)s)")
    parser.add_argument("--prefix-len", type=int, default=2816, help="tokens of a context (%(default)s)")
    parser.add_argument("--num-prefixes", type=int, default=32, help="contexts (%(default)s)")
    parser.add_argument("--prefix-zipf", type=float, default=1, help="the k-th is as likely as k^-this (%(default)s)")
    parser.add_argument("--input-len", type=int, default=160, help="new tokens of a round (%(default)s)")
    parser.add_argument("--output-len", type=int, default=128, help="tokens of an answer (%(default)s)")
    parser.add_argument("--range-ratio", type=float, default=0.25, help="both vary by this share (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all random choices (%(default)s)")
    parser.add_argument("--kv-memory", default="96MiB", help="of all ways but `memory` (%(default)s)")
    parser.add_argument("--ideal-memory", default="1GiB", help="KV memory of the way `memory` (%(default)s)")
    parser.add_argument("--store", default=".", metavar="DIR", help="stores are made in it, and removed (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    print_head()
    rows = []
    for row in measure_all(options):
        rows.append(row)
        print_row(row)
    if options.json:
        write_report(options.json, figures(rows))


if __name__ == "__main__":
    main()
