#!/usr/bin/env python3
"""Measures how restoring depends on disks, lengths and threads, and writes what docs/restore.md shows of it.

Usage: tools/restore_plots.py measure NAME MODEL --dir DIR --tokens N... [--program build/release/kvlane]
       tools/restore_plots.py draw [--check]

`measure` runs `kvlane bench restore` with one thread and with two (one thread: the middle length alone), and lets
`kvlane plan restore` compute from profiles what lies between and behind these points; all of it goes to
bench/restore/NAME.json. `draw` writes docs/images/restore_NAME.svg of each such file, and the tables between the
marks in docs/restore.md; the same files give the same bytes. Measured points are dots, computed ones lines.

Example: tools/restore_plots.py measure kvlane-small models/kvlane-small --dir /tmp --tokens 512 1024 2048
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = ROOT / "bench" / "restore"
PAGE = ROOT / "docs" / "restore.md"
IMAGES = ROOT / "docs" / "images"
BEGIN, END = "<!-- written by tools/restore_plots.py -->", "<!-- until here -->"

REGIMES = ("slow_disk", "balanced", "slow_compute")
WAYS = {"tokens": "computed again", "kv": "K and V", "hidden": "hidden states", "plan": "as planned"}
COLOURS = {"tokens": "#475569", "kv": "#0369a1", "hidden": "#a16207", "plan": "#c2410c"}
THREAD_COLOURS = {1: "#0369a1", 2: "#c2410c"}
TEXT, QUIET, GRID = "#475569", "#94a3b8", "#e2e8f0"

# --- measuring ------------------------------------------------------------------------------------


def run_json(program, *arguments):
    done = subprocess.run([program, *map(str, arguments), "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def computed(options, profile, threads, tokens, rate):
    """What a plan would take, and each source alone; seconds."""
    wanted = ("--threads", threads, "--tokens", tokens, "--read-rate", f"{rate:.6g}")
    known = ("--profile", profile, "--tokens-max", max(options.tokens))
    plan = run_json(options.program, "plan", "restore", options.model, *wanted, *known)
    seconds = {way: plan["pure"][way]["seconds"] for way in WAYS if way != "plan"}
    return {"threads": threads, "tokens": tokens, "rate": rate, "seconds": {**seconds, "plan": plan["plan"]["seconds"]}}


def measure(options):
    lengths = sorted(options.tokens)
    middle = lengths[len(lengths) // 2]
    context = json.loads((options.model / "config.json").read_text(encoding="utf-8"))["max_position_embeddings"]
    measured, plans = {}, []
    with tempfile.TemporaryDirectory() as folder:
        profile = pathlib.Path(folder) / "profiles.json"
        for threads in (1, 2):
            tokens = lengths if threads == 2 else [middle]
            shared = ("--dir", options.dir, "--threads", threads, "--repeats", options.repeats)
            report = run_json(
                options.program, "bench", "restore", options.model, *shared, "--tokens", *tokens, "--ablations"
            )
            del report["command"]  # paths of this machine
            measured[str(threads)] = report
            limit = ("--tokens-max", lengths[-1], "--threads", threads, "--out", profile)
            run_json(options.program, "profile", options.model, "--dir", options.dir, *limit)
            balanced = Figures(report)[f"restore_{middle}_balanced_read_rate"]
            for step in range(-8, 9):
                rate = balanced * 2 ** (step / 2)
                plans.append(computed(options, profile, threads, middle, rate))
            length = lengths[0]
            while threads == 2 and length <= context:
                plans.append(computed(options, profile, threads, length, balanced))
                length *= 2
    RUNS.mkdir(exist_ok=True)
    text = json.dumps({"middle": middle, "measured": measured, "computed": plans}, indent=1)
    (RUNS / f"{options.name}.json").write_text(text + "\n", encoding="utf-8")


# --- what was measured ----------------------------------------------------------------------------


class Figures(dict):
    """Values of a --json report by name."""

    def __init__(self, report):
        super().__init__((figure["name"], figure["value"]) for figure in report["results"])
        self.lengths = sorted({int(re.match(r"restore_(\d+)_", name)[1]) for name in self})


class Run:
    """One file of bench/restore."""

    def __init__(self, path):
        text = json.loads(path.read_text(encoding="utf-8"))
        self.name = path.stem
        self.middle = text["middle"]
        self.figures = {int(threads): Figures(report) for threads, report in text["measured"].items()}
        report = text["measured"]["2"]
        self.machine, self.commit = report["machine"], report["commit"]
        self.plans = text["computed"]

    def balanced_rate(self):
        return self.figures[2][f"restore_{self.middle}_balanced_read_rate"]

    def on_balanced_disk(self):
        """What was computed for two threads and all lengths."""
        return [plan for plan in self.plans if (plan["threads"], plan["rate"]) == (2, self.balanced_rate())]

    def ratio(self, above, below, regime):
        """Seconds of one way over those of another, of the middle length on two threads; None: not measured."""
        prefix = f"restore_{self.middle}_{regime}_"
        figures = self.figures[2]
        return figures[prefix + above] / figures[prefix + below] if prefix + above in figures else None


# --- pictures -------------------------------------------------------------------------------------


class Panel:
    """Axes, both logarithmic, from `least` to `most` (x, y), in a box of an SVG."""

    WIDTH, HEIGHT, TOP = 290, 210, 48

    def __init__(self, left, title, labels, least, most):
        self.left, self.least, self.most = left, least, most
        self.parts = []
        self.text(left, 22, title, TEXT, size=12, weight="bold")
        self.text(left + self.WIDTH / 2, self.TOP + self.HEIGHT + 32, labels[0], TEXT, anchor="middle")
        self.text(left - 4, self.TOP - 10, labels[1], TEXT)

    def at(self, point):
        x, y = (
            math.log(value / least) / math.log(most / least)
            for value, least, most in zip(point, self.least, self.most)
        )
        return self.left + x * self.WIDTH, self.TOP + (1 - y) * self.HEIGHT

    def text(self, x, y, text, colour, size=10, anchor="start", weight="normal"):
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{text}</text>'
        )

    def ticks(self, xs, ys):
        for x in xs:
            at = self.at((x, self.least[1]))
            self.text(at[0], at[1] + 15, f"{x:g}", TEXT, anchor="middle")
        for y in ys:
            x, at = self.at((self.least[0], y))
            self.parts.append(f'<path d="M{x:.1f} {at:.1f}h{self.WIDTH}" stroke="{GRID}"/>')
            self.text(x - 6, at + 3, f"{y:g}", TEXT, anchor="end")

    def line(self, points, colour):
        path = " ".join("{:.1f},{:.1f}".format(*self.at(point)) for point in sorted(points))
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-dasharray="4 3"/>')

    def dots(self, points, colour):
        for point in sorted(points):
            x, y = self.at(point)
            self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}" stroke="white"/>')

    def legend(self, names):
        for index, (name, colour) in enumerate(names):
            self.text(self.left + self.WIDTH + 8, self.TOP + 12 + 16 * index, name, colour, weight="bold")


def powers(least, most, base=2):
    """Powers of `base` between the two, and their range: least and most to which axes go."""
    first, last = math.floor(math.log(least, base)), math.ceil(math.log(most, base))
    return [float(base) ** power for power in range(first, last + 1)]


def panel_of_rates(run, left):
    """How much a plan gains over reading K and V, by the disk."""
    dots, lines = {}, {}
    for threads, figures in sorted(run.figures.items()):
        prefixes = [f"restore_{run.middle}_{regime}_" for regime in REGIMES]
        dots[threads] = [
            (figures[prefix + "read_rate"], figures[prefix + "plan_over_kv"])
            for prefix in prefixes
            if prefix + "plan" in figures
        ]
        lines[threads] = [
            (plan["rate"], plan["seconds"]["kv"] / plan["seconds"]["plan"])
            for plan in run.plans
            if (plan["threads"], plan["tokens"]) == (threads, run.middle)
        ]
    points = [point for all_of in (*dots.values(), *lines.values()) for point in all_of]
    xs = powers(min(x for x, _ in points), max(x for x, _ in points))
    ys = powers(min(y for _, y in points), max(y for _, y in points))
    labels = ("GB/s", "times as fast as reading K and V")
    panel = Panel(left, f"Disks and processors, {run.middle} tokens", labels, (xs[0], ys[0]), (xs[-1], ys[-1]))
    panel.ticks(xs[::2], ys)
    for threads in dots:
        panel.line(lines[threads], THREAD_COLOURS[threads])
        panel.dots(dots[threads], THREAD_COLOURS[threads])
    panel.legend([("1 thread", THREAD_COLOURS[1]), ("2 threads", THREAD_COLOURS[2])])
    return panel


def panel_of_lengths(run, left):
    """Tokens a second by the length of the sequence, on the balanced disk."""
    figures = run.figures[2]
    dots = {
        way: [(length, length / figures[f"restore_{length}_balanced_{way}"] / 1e3) for length in figures.lengths]
        for way in WAYS
    }
    lines = {
        way: [(plan["tokens"], plan["tokens"] / plan["seconds"][way] / 1e3) for plan in run.on_balanced_disk()]
        for way in WAYS
    }
    points = [point for all_of in (*dots.values(), *lines.values()) for point in all_of]
    xs = powers(min(x for x, _ in points), max(x for x, _ in points))
    ys = powers(min(y for _, y in points), max(y for _, y in points))
    labels = ("tokens", "thousands of tokens a second")
    title = f"Lengths, {run.balanced_rate():.2f} GB/s, 2 threads"
    panel = Panel(left, title, labels, (xs[0], ys[0]), (xs[-1], ys[-1]))
    panel.ticks(xs, ys[::2])
    for way in WAYS:
        panel.line(lines[way], COLOURS[way])
        panel.dots(dots[way], COLOURS[way])
    panel.legend([(WAYS[way], COLOURS[way]) for way in ("plan", "hidden", "kv", "tokens")])
    return panel


def picture(run):
    panels = [panel_of_rates(run, 40), panel_of_lengths(run, 470)]
    note = f"Dots: measured. Lines: computed from a profile of the machine. {run.machine}, commit {run.commit}"
    panels[0].text(12, 318, note, QUIET, size=9)
    body = "\n".join(part for panel in panels for part in panel.parts)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="890" height="328" viewBox="0 0 890 328" '
        f'font-family="DejaVu Sans, sans-serif">\n<rect width="890" height="328" fill="white"/>\n{body}\n</svg>\n'
    )


# --- tables ---------------------------------------------------------------------------------------


# What the paper says, where it says it, and of which of our figures: a ratio of seconds.
STUDIES = (
    ("split by layers, over reading K and V", "1.33 to 1.81 (Fig. 11a-c), 1.45 to 2.66 (Fig. 12)", "kv", "layerwise"),
    ("as planned (slabs may be coded), over reading K and V", "", "kv", "plan"),
    ("split by layers, over computing again", "5.04 to 9.05 (Fig. 11a-c), 5.46 to 6.08 (Fig. 11d-f)", "tokens",
     "layerwise"),
    ("split by layers, over the best of tokens and K and V (\"naive hybrid\")", "1.28 to 1.42 (Fig. 12)", "no_hidden",
     "layerwise"),
    ("split by layers, over hidden states alone", "1.35 to 1.64 where one machine waits (Fig. 12)", "hidden",
     "layerwise"),
    ("hidden states alone, over reading K and V", "0.87 on fast disks (Fig. 12)", "kv", "hidden"),
    ("split by layers, over split by tokens at whole blocks", "1.07 (Fig. 13)", "tokenwise", "layerwise"),
)


def tables(runs):
    heads = [f"`{run.name}`, {run.middle} tokens" for run in runs]
    rows = [f"| times as fast | HCache | {' | '.join(heads)} |", "|---|---|" + "---|" * len(runs)]
    for what, paper, above, below in STUDIES:
        cells = []
        for run in runs:
            values = [run.ratio(above, below, regime) for regime in REGIMES]
            cells.append(" / ".join("-" if value is None else f"{value:.2f}" for value in values))
        rows.append(f"| {what} | {paper} | {' | '.join(cells)} |")
    what, paper = "computing again: tokens a second of long sequences, over short ones", "0.72, 1K to 16K (Fig. 11g-i)"
    rows.append(f"| {what} | {paper} | {' | '.join(map(slower_by_length, runs))} |")
    return "\n".join(rows)


def slower_by_length(run):
    figures = run.figures[2]
    rates = [length / figures[f"restore_{length}_balanced_tokens"] for length in figures.lengths]
    plans = sorted((plan["tokens"], plan["tokens"] / plan["seconds"]["tokens"]) for plan in run.on_balanced_disk())
    measured = f"{rates[-1] / rates[0]:.2f}, {figures.lengths[0]} to {figures.lengths[-1]}"
    return f"{measured}; computed: {plans[-1][1] / plans[0][1]:.2f}, to {plans[-1][0]}"


def draw(check):
    runs = [Run(path) for path in sorted(RUNS.glob("*.json"))]
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    shown = "\n\n".join(f"![How restoring {run.name} depends on disks and lengths](images/restore_{run.name}.svg)"
                        for run in runs)
    wanted = {PAGE: f"{before}{BEGIN}\n{shown}\n\n{tables(runs)}\n{END}{after}"}
    for run in runs:
        wanted[IMAGES / f"restore_{run.name}.svg"] = picture(run)
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is not what tools/restore_plots.py writes", file=sys.stderr)
        else:
            path.write_text(wanted[path], encoding="utf-8")
    return 1 if check and stale else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    measuring = commands.add_parser("measure", help="run the benchmark and plans, keep what they print")
    measuring.add_argument("name", help="of the file in bench/restore")
    measuring.add_argument("model", type=pathlib.Path, help="Hugging Face model directory")
    measuring.add_argument("--dir", required=True, help="directory for the store")
    measuring.add_argument("--tokens", required=True, type=int, nargs="+", help="lengths, multiples of 64")
    measuring.add_argument("--repeats", type=int, default=3, help="medians are over so many rounds")
    measuring.add_argument("--program", default=str(ROOT / "build" / "release" / "kvlane"), help="kvlane")
    drawing = commands.add_parser("draw", help="write pictures and tables; the default")
    drawing.add_argument("--check", action="store_true", help="write nothing; 1 where something is not up to date")
    options = parser.parse_args(sys.argv[1:] or ["draw"])
    if options.command == "measure":
        return measure(options)
    return draw(options.check)


if __name__ == "__main__":
    sys.exit(main())
