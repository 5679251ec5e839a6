#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to the first token of a conversation's second turn, by where its history is.

The real server answers a prompt of --history tokens, then, after a restart, the same prompt with --turn tokens behind
it: the time from sending it to the first event of the answer is what counts. Ways, for --sessions conversations each,
medians:

    memory      the same process, nothing was evicted: what no way can beat (HCache's "Ideal")
    recompute   a process that has never seen the history, and no store
    FORM        a process that finds it in the store: kv, kv+splitzip, hidden, hidden:int8, auto ...

    bench/second_turn.py models/kvlane-small --history 3072
    bench/second_turn.py models/kvlane-small --forms kv auto --json turns.json

Answers are the same in all ways but hidden:int8, or this program says so and fails. Prompts are random token ids. Every
process answers one other prompt before it is measured. --store is a directory on the disk to measure; it is read past
the system's caches where it lets us. KVLANE_PROGRAM is the program, build/release/kvlane if it is not set.
"""

import argparse
import contextlib
import http.client
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time

from served import PATIENCE, figure_word, is_lossless, served, store_flags, write_report

ANSWER = 16  # tokens


def turn(server, tokens):
    """Seconds to the first event of the answer, and its text."""
    body = {"prompt": tokens, "max_tokens": ANSWER, "temperature": 0, "stream": True, "ignore_eos": True}
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE)
    with contextlib.closing(connection):
        start = time.monotonic()
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            sys.exit(f"the server answers {response.status}: {response.read().decode()}")
        first, text = None, ""
        for line in response:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            first = first or time.monotonic() - start
            choices = json.loads(line[6:])["choices"]
            text += choices[0]["text"] if choices else ""
        return first, text


@contextlib.contextmanager
def warm_server(options, *flags):
    with served(options.model, "--kv-memory", options.kv_memory, *flags) as one:
        turn(one, options.random.choices(range(options.vocab), k=256))
        yield one


def second_turns(one, sessions):
    """Medians of seconds, and all texts."""
    turns = [turn(one, history + question) for history, question in sessions]
    return statistics.median(seconds for seconds, _ in turns), [text for _, text in turns]


def measure(options):
    """Rows: way, seconds, tokens that came back from the store."""
    ids = range(options.vocab)
    sessions = [
        (options.random.choices(ids, k=options.history), options.random.choices(ids, k=options.turn))
        for _ in range(options.sessions)
    ]
    with warm_server(options) as one:
        seconds, texts = second_turns(one, sessions)
        yield "recompute", seconds, 0
    with warm_server(options) as one:
        for history, _ in sessions:
            turn(one, history)
        yield "memory", second_turns(one, sessions)[0], 0
    for form in options.forms:
        with tempfile.TemporaryDirectory(dir=options.store) as folder:
            with warm_server(options, *store_flags(form, folder)) as one:
                for history, _ in sessions:
                    turn(one, history)
            with warm_server(options, *store_flags(form, folder)) as one:
                seconds, restored = second_turns(one, sessions)
                hits = one.metric("kvlane_store_hit_tokens_total")
            if is_lossless(form) and restored != texts:
                sys.exit(f"{form}: the answers are others than those of a process that computed the history")
            yield form, seconds, hits / len(sessions)


def figures(rows, options):
    recompute = next(seconds for way, seconds, _ in rows if way == "recompute")
    for way, seconds, _ in rows:
        name = f"turn_{options.history}_{figure_word(way)}"
        figure = {"name": name, "value": seconds, "unit": "s"}
        if way != "recompute":
            figure |= {"baseline": recompute, "ratio": seconds / recompute}
        yield figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model directory")
    parser.add_argument("--history", type=int, default=3072, help="tokens of the first turn")
    parser.add_argument("--turn", type=int, default=64, help="tokens of the second turn")
    parser.add_argument("--sessions", type=int, default=9, help="conversations of each way")
    parser.add_argument("--forms", nargs="*", default=["kv", "kv+splitzip", "hidden", "hidden:int8", "auto"])
    parser.add_argument("--kv-memory", default="1GiB", help="of each server")
    parser.add_argument("--store", default=".", metavar="DIR", help="stores are made in here, and removed")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    options.random = random.Random(1)
    options.vocab = json.loads((pathlib.Path(options.model) / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    rows = []
    for row in measure(options):
        rows.append(row)
        print(f"{row[0]:<16}{1000 * row[1]:>10.1f} ms{row[2]:>10.0f} tokens from the store", flush=True)
    if options.json:
        write_report(options.json, figures(rows, options))


if __name__ == "__main__":
    main()
