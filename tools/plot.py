#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what benchmarks printed with --json as SVG; the same figures give the same file, byte for byte.

    scripts/setup plots
    kvlane bench codec DIR --text FILE --json > report.json
    build/plots/bin/python tools/plot.py codec-frontier report.json docs/images/codec_frontier.svg
    build/plots/bin/python tools/plot.py codec-crossover unshaped.json 1=1gbit.json 10=10gbit.json \\
        docs/images/codec_crossover.svg
    build/plots/bin/python tools/plot.py jobs job.json docs/images/jobs.svg
    build/plots/bin/python tools/plot.py rates simulated_*.json docs/images/simulated_rates.svg

A plot is a function of reports that returns a figure, and a line in PLOTS. A report measured over a link of known
speed is named with its Gbit/s before it.
"""

import argparse
import json
import pathlib
from typing import NamedTuple

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

OURS = "#c2410c"
OTHERS = "#475569"
QUIET = "#94a3b8"
GRID = "#e2e8f0"

STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": OTHERS,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": OTHERS,
    "ytick.color": OTHERS,
    "svg.hashsalt": "kvlane",  # ids of elements would be random
    "svg.fonttype": "path",  # the same letters everywhere
}


class Report:
    """One --json object of `kvlane bench`, or of `kvlane simulate`."""

    def __init__(self, named):
        speed, _, path = named.rpartition("=")
        self.gbit = float(speed) if speed else None
        text = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        self.simulated = text if "last_arrival" in text else None
        if not self.simulated:
            self.machine = text["machine"]
            self.values = {figure["name"]: figure["value"] for figure in text["results"]}


# --- pieces that plots share ----------------------------------------------------------------------


def speed_axis(axes, least, most):
    """A logarithmic axis of speeds from left to right, with ticks that people count in."""
    axes.set_xscale("log")
    axes.set_xlim(least, most)
    axes.set_xticks([tick for tick in (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if least <= tick <= most])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(which="both", length=0)


def footnote(figure, text):
    figure.text(0.012, 0.018, text, fontsize=7, color=QUIET, ha="left", va="bottom")


# --- bench codec ----------------------------------------------------------------------------------


class Mark(NamedTuple):
    codec: str  # as figures name it
    label: str
    ours: bool = False
    # Where the label stands, in points from the mark, for encoding and for decoding.
    encode: tuple = (7, 0)
    decode: tuple = (7, 0)


FRONTIER = (
    Mark("splitzip_channel", "splitzip:channel", ours=True, encode=(9, 1), decode=(9, 1)),
    Mark("splitzip", "splitzip", ours=True, encode=(9, 1), decode=(9, 1)),
    Mark("bytesplit_zstd1", "byte split + zstd −1", encode=(-2, 8), decode=(-2, 8)),
    Mark("bytesplit_huffman", "byte split + Huffman", encode=(-2, -12), decode=(-26, -12)),
    Mark("bitshuffle_lz4", "bit shuffle + LZ4", encode=(7, -1), decode=(5, 8)),
    Mark("zstd3", "zstd −3", encode=(-2, 8), decode=(-12, 8)),
    Mark("zstd1", "zstd −1", encode=(-2, -12), decode=(-2, -12)),
    Mark("lz4", "LZ4", encode=(0, 8), decode=(0, 8)),
)


def draw_frontier(axes, report, direction):
    """Ratio against speed; up and to the right is better."""
    copy = report.values["codec_memcpy_slabs"]
    points = []
    for mark in FRONTIER:
        name = f"codec_frontier_{mark.codec}_"
        if name + "ratio" not in report.values:
            continue
        speed, ratio = report.values[name + direction], report.values[name + "ratio"]
        points.append((speed, ratio))
        colour = OURS if mark.ours else OTHERS
        axes.plot(speed, ratio, "o", ms=8 if mark.ours else 5.5, color=colour, mec="white", mew=1, zorder=3)
        x, y = getattr(mark, direction)
        beside = x > 0 and abs(y) < 6
        axes.annotate(
            mark.label,
            (speed, ratio),
            xytext=(x, y),
            textcoords="offset points",
            color=colour,
            ha="left" if beside else "center",
            va="center" if abs(y) < 6 else "bottom" if y > 0 else "baseline",
            fontweight="bold" if mark.ours else "normal",
            zorder=4,
        )
    axes.plot(copy, 1, "D", ms=5, color=QUIET, mec="white", mew=1, zorder=3)
    axes.annotate("memcpy", (copy, 1), xytext=(9, 0), textcoords="offset points", color=OTHERS, va="center")
    # The staircase that nothing lies above, to the right of.
    stairs = [
        (speed, ratio)
        for speed, ratio in sorted([*points, (copy, 1)])
        if all(other <= ratio or faster < speed for faster, other in points)
    ]
    axes.step(*zip((0.2, stairs[0][1]), *stairs), where="pre", color=QUIET, lw=0.8, zorder=1)
    axes.axvspan(5, 100, color="#fff7ed", zorder=0, lw=0)
    axes.set_title({"encode": "Encoding", "decode": "Decoding"}[direction], loc="left", color="#0f172a", fontsize=10)
    axes.set_xlabel("GB/s of raw values, one core")
    axes.grid(axis="y", color=GRID, lw=0.8)
    axes.set_axisbelow(True)


def codec_frontier(reports):
    """How small and how fast, ours and what else one could use: K and V of a trained model."""
    (report,) = reports
    figure = Figure(figsize=(9, 4.1), layout="none")
    left, right = figure.subplots(1, 2, sharey=True)
    figure.subplots_adjust(left=0.065, right=0.985, top=0.91, bottom=0.19, wspace=0.06)
    for axes, direction in ((left, "encode"), (right, "decode")):
        draw_frontier(axes, report, direction)
        speed_axis(axes, 0.22, 45)
    left.set_ylim(0.96, 1.58)
    left.set_ylabel("raw bytes over coded bytes")
    footnote(figure, f"K and V of a trained model, bfloat16. {report.machine}. Shaded: 5 GB/s and more.")
    return figure


# --- bench transfer -------------------------------------------------------------------------------

CROSSOVER = (("splitzip", "splitzip", "#0369a1"), ("splitzip_channel", "splitzip:channel", OURS))
GBIT = 0.125  # GB/s
LEAST, MOST = 0.5, 500  # Gbit/s


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


def codec_crossover(reports):
    """Gain over the speed of the link: lines from the first report's speeds, points from the others' links."""
    unshaped, *measured = reports
    values = unshaped.values
    figure = Figure(figsize=(7.2, 4.1), layout="none")
    axes = figure.subplots()
    figure.subplots_adjust(left=0.085, right=0.985, top=0.96, bottom=0.2)
    speeds = [LEAST * (MOST / LEAST) ** (step / 400) for step in range(401)]
    axes.axhline(1, color=OTHERS, lw=0.8)
    for codec, label, colour in CROSSOVER:
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
        for report in measured:
            reached = report.values[f"transfer_{codec}_time_ratio"]
            axes.plot(report.gbit, reached, "D", ms=5.5, color=colour, mec="white", mew=1, zorder=5)
    axes.plot([], [], "D", color=QUIET, ms=5.5, label="measured, one prompt of 8K tokens")
    speed_axis(axes, LEAST, MOST)
    axes.set_ylim(0.4, 1.6)
    axes.set_xlabel("speed of the link, Gbit/s")
    axes.set_ylabel("times as fast as no codec")
    axes.grid(axis="y", color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="lower left", fontsize=8, labelcolor=OTHERS)
    note = f"One core encodes, one decodes. K and V of a trained model, Llama 3.1 8B's shape.\n{unshaped.machine}."
    footnote(figure, note)
    return figure


# --- bench/end_to_end.py --------------------------------------------------------------------------

# What the parts of a bar are, in the order of a job.
JOB_PARTS = (
    ("prefill: products", ("prefill_rest", "other"), "#cbd5e1"),
    ("prefill: attention", ("prefill_attention",), "#94a3b8"),
    ("quantise, encode", ("prefill_quantise", "encode"), "#facc15"),
    ("dequantise, decode", ("prefill_dequantise", "decode_codec", "decode_dequantise"), "#dc2626"),
    ("transfer", ("transfer",), OURS),
    ("decode: attention", ("decode_attention",), "#0369a1"),
    ("decode: products", ("decode_rest",), "#7dd3fc"),
)


def draw_jobs(axes, values, link, variants):
    for place, variant in enumerate(variants):
        if f"job_{link}_{variant}_total" not in values:
            continue
        left = 0
        for label, names, colour in JOB_PARTS:
            width = sum(values[f"job_{link}_{variant}_{name}"] for name in names)
            axes.barh(place, width, left=left, height=0.68, color=colour, label=label if place == 0 else None)
            left += width
        beside = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(f"{left:.0f} s", (left, place), color=OTHERS, **beside)
    axes.set_title(f"16-bit KV takes {link} % of a job", loc="left", color="#0f172a", fontsize=10)
    axes.set_xlabel("seconds of a job")
    axes.set_xlim(0, 1.13 * max(values.get(f"job_{link}_{variant}_total", 0) for variant in variants))
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0)
    axes.grid(axis="x", color=GRID, lw=0.8)
    axes.set_axisbelow(True)


def jobs(reports):
    """Where the time of a job goes, format by format, over two links."""
    (report,) = reports
    names = [name.removeprefix("job_").removesuffix("_bytes_ratio") for name in report.values if "bytes_ratio" in name]
    links = sorted({name.split("_")[1] for name in report.values if name.endswith("_total")})
    figure = Figure(figsize=(9.6, 1.5 + 0.34 * len(names)), layout="none")
    figure.subplots_adjust(left=0.345, right=0.985, top=0.8, bottom=0.2, wspace=0.05)
    all_axes = figure.subplots(1, len(links), sharey=True, squeeze=False)[0]
    for axes, link in zip(all_axes, links, strict=True):
        draw_jobs(axes, report.values, link, names)
    labels = [f"{name} ({report.values[f'job_{name}_bytes_ratio']:.1f}x)" for name in names]
    all_axes[0].set_yticks(range(len(names)), labels, fontsize=9)
    all_axes[0].invert_yaxis()
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, ncols=4, loc="upper left", fontsize=8, labelcolor=OTHERS)
    footnote(figure, f"In brackets: how much less is sent. One job at a time. {report.machine}.")
    return figure


# --- simulate -------------------------------------------------------------------------------------


RATE_COLOURS = (OTHERS, "#0369a1", OURS)


def draw_rates(axes, by_rate, title, value):
    """A line for each format over requests a second."""
    for place, colour in enumerate(RATE_COLOURS[: len(by_rate[0])]):
        points = [(results[place]["request_rate"], value(results[place])) for results in by_rate]
        axes.plot(*zip(*points, strict=True), color=colour, lw=1.6, marker="o", ms=3, label=by_rate[0][place]["kv"])
    axes.set_title(title, loc="left", color="#0f172a", fontsize=10)
    axes.set_xlabel("requests a second")
    axes.set_ylim(bottom=0)
    axes.tick_params(length=0)
    axes.grid(color=GRID, lw=0.8)
    axes.set_axisbelow(True)


def rates(reports):
    """What a simulated cluster does as more and more requests come, format by format."""
    runs = sorted((report.simulated for report in reports), key=lambda run: run["last_arrival"], reverse=True)
    by_rate = [run["results"] for run in runs]
    goals = ", ".join(f"{name.upper()} of {seconds:g} s" for name, seconds in runs[0]["goals"].items())
    figure = Figure(figsize=(9.6, 3.4), layout="none")
    figure.subplots_adjust(left=0.06, right=0.985, top=0.8, bottom=0.26, wspace=0.16)
    left, right = figure.subplots(1, 2)
    draw_rates(left, by_rate, "requests that reach their goals, %", lambda result: 100 * result["good"])
    draw_rates(right, by_rate, "first token, mean, s", lambda result: result["ttft"]["mean"])
    right.set_ylim(0, 10)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, ncols=4, loc="upper left", fontsize=8, labelcolor=OTHERS)
    footnote(
        figure,
        f"Simulated: {runs[0]['model'].removesuffix('.json')}, {runs[0]['workload']}, goals {goals}.\n"
        f"Prefill {runs[0]['prefill']}; decode {runs[0]['decode']}.",
    )
    return figure


PLOTS = {"codec-frontier": codec_frontier, "codec-crossover": codec_crossover, "jobs": jobs, "rates": rates}


def main():
    parser = argparse.ArgumentParser(description="Draws what benchmarks printed with --json as SVG.")
    parser.add_argument("plot", choices=PLOTS)
    parser.add_argument("reports", nargs="+", help="--json output of kvlane bench, or GBIT=FILE")
    parser.add_argument("out", help="SVG file to write")
    options = parser.parse_args()
    matplotlib.rcParams.update(STYLE)
    figure = PLOTS[options.plot]([Report(path) for path in options.reports])
    figure.savefig(options.out, format="svg", metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
