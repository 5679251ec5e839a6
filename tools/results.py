#!/usr/bin/env python3
"""Writes docs/results.md from the reports that `kvlane eval --out` left in bench/eval.

Usage: tools/results.py [--check]

Each report is bench/eval/NAME.json, `eval.json` of one run with its curves left out; add one with
`tools/results.py --add NAME FOLDER`, where FOLDER is that of --out. The page holds nothing that is not in
these files.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPORTS = ROOT / "bench" / "eval"
PAGE = ROOT / "docs" / "results.md"

INTRODUCTION = """# What KV formats cost in quality

Written by `tools/results.py` from the reports in `bench/eval`: change those, not this page. What the figures
are: [eval.md](eval.md). Values in brackets are 95 % intervals (paired bootstrap over windows of text, Wilson's
for shares of prompts). All formats keep kvlane's rule: a query reads its own block of up to 64 tokens in 16 bits
and every earlier block in the format (but for `ktail`, `rqe` and `diag` of `hack`, which are about that block).
So figures are comparable with each other; with those of papers that keep other windows they are not.

The models are small, and so are these conclusions: a model of some millions of parameters has other K and V than one of
billions. What is measured here is the code, on models anybody can run it on.

Not measured: models of a billion parameters and more; contexts beyond 4,096 tokens, which no bundled model has;
GSM8K and HumanEval, which these models cannot do. Every format
is measured alone, one sequence at a time; speed is in [bench.md](bench.md).

The texts are the held-out books and articles of `tools/train/texts.py`; tables of `kvquant` and `cachegen` come from
its calibration part (`kvlane calibrate tables DIR --text fiction_calibration.txt --tokens 65536`, behind `zack` with
`--for`), which shares no book or article with what is read here. Models whose name ends in `-zack` or `-product` are
what `kvlane calibrate zack DIR` made of the model from the same text, 32,768 tokens of it (65,536 for the run on
Wikipedia), the latter with `--rotation product`.
"""

# Tasks in this order, then others; and how their figures are headed.
TASKS = {
    "text": "Reading text",
    "similarity": "Continuing text, compared with the output in bf16",
    "passkey": "Passkey",
    "needles": "One of several needles",
}
METRICS = {
    "found": "found",
    "log_probability": "log p of the value (nat/token)",
    "log_probability_lost": "lost to bf16",
    "top_tokens": "its tokens that are most likely",
    "perplexity": "perplexity",
    "ratio": "to bf16's",
    "divergence": "KL (nat/token)",
    "worst": "largest KL",
    "agreement": "same top token",
    "bits": "bits a value",
    "bytes": "bytes a token",
}


def brief(value):
    """Three digits that count, four where the first may be no news (1.002, 0.9513)."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    text = f"{value:.4g}" if abs(value) >= 0.5 else f"{value:.3g}"
    return f"{value:.0f}" if "e+" in text else text


def cell(measure):
    text = brief(measure["value"])
    if measure["low"] is not None and measure["low"] != measure["high"]:
        text += f" [{brief(measure['low'])}, {brief(measure['high'])}]"
    return text


def distinct(values):
    return list(dict.fromkeys(values))


def table(measures):
    metrics = distinct(measure["metric"] for measure in measures)
    cells = {(measure["format"], measure["metric"]): cell(measure) for measure in measures}
    lines = [
        "| format | " + " | ".join(METRICS.get(metric, metric) for metric in metrics) + " |",
        "|---|" + "---|" * len(metrics),
    ]
    for name in distinct(measure["format"] for measure in measures):
        lines.append(f"| `{name}` | " + " | ".join(cells.get((name, metric), "-") for metric in metrics) + " |")
    return lines


def section(name, report):
    facts = report["facts"]
    lines = [
        f"## {name}",
        "",
        f"`{report['command']}`",
        "",
        f"{report['machine']}; commit {report['commit']}.",
        "",
        "; ".join(f"{key}: {value}" for key, value in facts.items()) + ".",
        "",
    ]
    # "passkey, 512 tokens" and the like are details that the report has.
    tasks = distinct(measure["task"] for measure in report["measures"] if ", " not in measure["task"])
    for task in sorted(tasks, key=lambda task: (list(TASKS).index(task) if task in TASKS else len(TASKS), task)):
        lines += [f"### {TASKS.get(task, task)}", ""]
        lines += [*table([measure for measure in report["measures"] if measure["task"] == task]), ""]
    for sentence in report["not_measured"]:
        lines += [f"Not measured: {sentence}", ""]
    return lines


def page():
    lines = INTRODUCTION.splitlines() + [""]
    for path in sorted(REPORTS.glob("*.json")):
        lines += section(path.stem, json.loads(path.read_text(encoding="utf-8")))
    return "\n".join(lines).rstrip() + "\n"


def without_folders(text):
    """Where files lay on the machine that measured means nothing on another one."""
    return re.sub(r"(?<!\S)/(?:\S*/)?", "", text)


def add(name, folder):
    report = json.loads((pathlib.Path(folder) / "eval.json").read_text(encoding="utf-8"))
    report["curves"] = []
    report["command"] = without_folders(report["command"])
    report["facts"] = {key: without_folders(value) for key, value in report["facts"].items()}
    REPORTS.mkdir(parents=True, exist_ok=True)
    (REPORTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if the page is not what the reports say")
    parser.add_argument("--add", nargs=2, metavar=("NAME", "FOLDER"), help="take the report of a run in")
    arguments = parser.parse_args()
    if arguments.add:
        add(*arguments.add)
    if arguments.check:
        if PAGE.read_text(encoding="utf-8") != page():
            sys.exit("docs/results.md is not what bench/eval says: run tools/results.py")
        return
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
