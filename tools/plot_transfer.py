#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws where a codec stops to pay, as SVG, from what `kvlane bench transfer --json` printed.

    tools/plot_transfer.py docs/images/codec_crossover.svg unshaped.json 1=shaped_1gbit.json 10=shaped_10gbit.json

Lines follow from the codecs' measured speeds and ratios in the first report; points are measured transfers over links
of so many Gbit/s. The same figures give the same file, byte for byte. Needs matplotlib.
"""

import argparse
import json
import pathlib

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

CODECS = (("splitzip", "splitzip", "#0369a1"), ("splitzip_channel", "splitzip:channel", "#c2410c"))
TEXT, QUIET, GRID = "#475569", "#94a3b8", "#e2e8f0"
STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "svg.hashsalt": "kvlane",  # ids of elements would be random
    "svg.fonttype": "path",  # the same letters everywhere
}
GBIT = 0.125  # GB/s
LEAST, MOST = 0.5, 500  # Gbit/s


class Report:
    """One --json object of `kvlane bench transfer`."""

    def __init__(self, path):
        text = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        self.machine = text["machine"]
        self.values = {figure["name"]: figure["value"] for figure in text["results"]}


def gain(values, codec, gbit, overlapped):
    """Time without the codec over time with it: src/plan/codec_policy."""
    name = f"transfer_{codec}_"
    link = gbit * GBIT
    stages = (
        1 / values[name + "encode_speed"],
        1 / (values[name + "bytes_ratio"] * link),
        1 / values[name + "decode_speed"],
    )
    return 1 / link / (max(stages) if overlapped else sum(stages))


def codec_crossover(unshaped, measured):
    """Gain over the speed of the link. `measured` has (Gbit/s, report) of links of that speed."""
    values = unshaped.values
    figure = Figure(figsize=(7.2, 4.1), layout="none")
    axes = figure.subplots()
    figure.subplots_adjust(left=0.085, right=0.985, top=0.96, bottom=0.2)
    speeds = [LEAST * (MOST / LEAST) ** (step / 400) for step in range(401)]
    axes.axhline(1, color=TEXT, lw=0.8)
    for codec, label, colour in CODECS:
        for overlapped in (True, False):
            gains = [gain(values, codec, speed, overlapped) for speed in speeds]
            stages = "overlapped" if overlapped else "one after another"
            look = {"lw": 1.8, "ls": "-"} if overlapped else {"lw": 1.1, "ls": (0, (4, 2))}
            axes.plot(speeds, gains, color=colour, label=f"{label}, {stages}", **look)
            edge = values[f"transfer_{codec}_crossover" + ("" if overlapped else "_serial")] / GBIT
            if LEAST <= edge <= MOST:
                axes.plot(edge, 1, "o", ms=5, color=colour, mec="white", mew=1, zorder=4)
                place = {"xytext": (0, -13 if codec == "splitzip_channel" else 6), "textcoords": "offset points"}
                axes.annotate(f"{edge:.0f}", (edge, 1), ha="center", color=colour, **place)
        for speed, report in measured:
            reached = report.values[f"transfer_{codec}_time_ratio"]
            axes.plot(speed, reached, "D", ms=5.5, color=colour, mec="white", mew=1, zorder=5)
    axes.plot([], [], "D", color=QUIET, ms=5.5, label="measured, one prompt of 8K tokens")
    axes.set_xscale("log")
    axes.set_xlim(LEAST, MOST)
    axes.set_ylim(0.4, 1.6)
    axes.set_xticks([1, 2, 5, 10, 20, 50, 100, 200, 500])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(which="both", length=0)
    axes.set_xlabel("speed of the link, Gbit/s")
    axes.set_ylabel("times as fast as no codec")
    axes.grid(axis="y", color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="lower left", fontsize=8, labelcolor=TEXT)
    note = f"One core encodes, one decodes. K and V of a trained model, Llama 3.1 8B's shape.\n{unshaped.machine}."
    figure.text(0.012, 0.018, note, fontsize=7, color=QUIET, ha="left", va="bottom")
    return figure


def speed_and_report(text):
    speed, _, path = text.partition("=")
    return float(speed), Report(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="SVG file to write")
    parser.add_argument("unshaped", type=Report, help="report with the codecs' speeds")
    parser.add_argument("measured", nargs="*", type=speed_and_report, metavar="GBIT=REPORT", help="measured links")
    options = parser.parse_args()
    matplotlib.rcParams.update(STYLE)
    figure = codec_crossover(options.unshaped, options.measured)
    figure.savefig(options.out, format="svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
