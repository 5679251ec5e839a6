#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Appends what a benchmark printed with --json to bench/results.csv (docs/bench.md has the rules for a line).

    kvlane bench model DIR --json | python3 tools/record.py --model llama-3.1-8b-2layers
    kvlane bench serve ... --json | python3 tools/record.py --note 'on kvlane up llama-3.1-8b-2layers'

--model stands in the recorded command in place of DIR, which means nothing on another machine; --note says behind it
what the command line does not. --only keeps the figures whose names match a regular expression: not every one is
worth a line.
"""

import argparse
import csv
import datetime
import json
import pathlib
import re
import sys

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "bench" / "results.csv"


def field(value):
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def lines(report, model, note, only, date):
    words = report["command"].split()
    if model:
        if words[:1] != ["kvlane"]:
            sys.exit("--model is for reports of kvlane bench WHAT DIR")
        words[3] = model
    if note:
        words += ["#", note]
    for result in report["results"]:
        if not re.fullmatch(only, result["name"]):
            continue
        yield [
            date,
            report["commit"],
            report["machine"],
            " ".join(words),
            result["name"],
            *(field(result.get(name)) for name in ("value", "unit", "ratio", "goal", "met")),
        ]


def main():
    parser = argparse.ArgumentParser(
        description="Appends a benchmark's --json output, from standard input, to bench/results.csv."
    )
    parser.add_argument("--model", help="what to call the model directory in the recorded command")
    parser.add_argument("--note", help="what else belongs to the command")
    parser.add_argument("--only", default=".*", help="regular expression of names (default: all)")
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    options = parser.parse_args()
    report = json.load(sys.stdin)
    if report["commit"].endswith("-dirty") or report["commit"] == "unknown":
        sys.exit(f"record: the program was built from '{report['commit']}', not from a committed tree")
    with open(RESULTS, "a", encoding="utf-8", newline="") as file:
        rows = lines(report, options.model, options.note, options.only, options.date)
        csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
