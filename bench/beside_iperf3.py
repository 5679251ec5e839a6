#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How near transfers come to iperf3 with as many streams, between the same endpoints in the same run.

In turns, --repeats times: iperf3 for some seconds, then `kvlane bench transfer` with codec `none` between two
processes, both with each of --streams, over loopback also through shared memory, and with --ucx everywhere once more
over UCX; slabs are 256 KiB, a layer's run of them 2 MiB for every 512 tokens. Over loopback and, where this machine
permits (root, ip and tc of package iproute2, a kernel with network namespaces and tbf), over a link between two
namespaces at each of --rates. Needs iperf3. Prints GB/s, the ratio (median of the turns' ratios) and what both ends
take of the processor, in seconds for every GB.

    bench/beside_iperf3.py models/kvlane-tiny-gqa README.md
    bench/beside_iperf3.py --streams 1,2,4 models/kvlane-tiny-gqa README.md
    bench/beside_iperf3.py --rates 1000,5000 --delay 0.5ms --tokens 2048 --repeats 5 models/kvlane-tiny-gqa README.md

--delay makes every answer wait (netem), which lengthens the round trip by as much. --json writes a report that
tools/record.py takes. KVLANE_PROGRAM is the program, build/release/kvlane if it is not set.
"""

import argparse
import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import time

from served import PROGRAM, write_report
from shaped_workers import FAR, FAR_ADDRESS, NEAR, PATIENCE, Unavailable, network, shape, two_namespaces

GOAL = 0.9


def within(namespace, *command):
    inside = ["ip", "netns", "exec", namespace] if namespace else []
    return [*inside, *map(str, command)]


def figures_of(text):
    return {figure["name"]: figure["value"] for figure in json.loads(text)["results"]}


def iperf3(near, far, address, seconds, streams):
    """GB/s that arrive, and s/GB of sender and receiver."""
    server = subprocess.Popen(
        within(far, "iperf3", "-s", "-1", "-B", address), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        time.sleep(0.5)
        client = within(near, "iperf3", "-c", address, "-t", seconds, "-P", streams, "-J")
        done = subprocess.run(client, capture_output=True, text=True, check=True, timeout=PATIENCE)
    finally:
        server.terminate()
        server.wait()
    end = json.loads(done.stdout)["end"]
    speed = end["sum_received"]["bits_per_second"] / 8e9
    used = end["cpu_utilization_percent"]
    return speed, used["host_total"] / 100 / speed, used["remote_total"] / 100 / speed


def transfer(near, far, address, options, *transport):
    """The same of ours."""
    flags = ("--codecs", "none", "--tokens", options.tokens, "--rounds", options.rounds, "--json", *transport)
    receiver = subprocess.Popen(
        within(far, PROGRAM, "bench", "transfer", "--listen", f"{address}:0", *flags), stdout=subprocess.PIPE, text=True
    )
    where = receiver.stdout.readline().split()[-1]
    sender = within(near, PROGRAM, "bench", "transfer", options.model, "--text", options.text, "--send-to", where)
    done = subprocess.run([*sender, *map(str, flags)], capture_output=True, text=True, check=False, timeout=PATIENCE)
    if done.returncode != 0:
        receiver.kill()
        sys.exit(done.stderr)
    sent, received = figures_of(done.stdout), figures_of(receiver.communicate()[0])
    return sent["transfer_none_speed"], sent["transfer_none_cpu"], received["transfer_none_cpu"]


def figures(name, rows, ratios):
    """Of a path over a link: medians of its turns, and of their ratios to what stands in their names."""
    columns = zip(("speed", "sender_cpu", "receiver_cpu"), ("GB/s", "s/GB", "s/GB"), zip(*rows, strict=True))
    for what, unit, column in columns:
        yield {"name": f"{name}_{what}", "value": statistics.median(column), "unit": unit}
    for other, ratio in ratios.items():
        figure = {"name": f"{name}_of_{other}", "value": ratio, "unit": "ratio"}
        if other == "iperf3":
            figure |= {"goal": GOAL, "met": ratio >= GOAL}
        yield figure


def compare(name, options, near=None, far=None, address="127.0.0.1"):
    """Measures, tells and returns the figures of one link."""
    counts = options.streams
    theirs, ours, shared, ucx = {n: [] for n in counts}, {n: [] for n in counts}, [], []
    for _ in range(options.repeats):
        for n in counts:
            theirs[n].append(iperf3(near, far, address, options.seconds, n))
            tcp = ("--kv-shared-memory", "off", "--kv-streams", n)
            ours[n].append(transfer(near, far, address, options, *tcp))
        if near is None:
            shared.append(transfer(near, far, address, options))
        if options.ucx:
            device = "veth0" if near else "lo"
            over_ucx = ("--kv-transport", "ucx", "--kv-ucx-device", device)
            ucx.append(transfer(near, far, address, options, *over_ucx))

    def medians(rows):
        speed, sender, receiver = (statistics.median(column) for column in zip(*rows, strict=True))
        return f"{speed:7.3f} GB/s, {sender:.2f} + {receiver:.2f} s/GB"

    def ratio(rows, others):
        return statistics.median(mine[0] / its[0] for mine, its in zip(rows, others, strict=True))

    link = name.replace(" Mbit/s", "mbit")
    first = counts[0]
    found = []
    for n in counts:
        of_iperf3, of_first = ratio(ours[n], theirs[n]), ratio(ours[n], ours[first])
        told = f"iperf3 {medians(theirs[n])}   kvlane {medians(ours[n])}   ratio {of_iperf3:.2f}"
        if n != first:
            told += f"   of that over {first}: {of_first:.2f}"
        print(f"{name:12} {n:2}  {told}", flush=True)
        found += figures(f"{link}_iperf3_{n}", theirs[n], {})
        found += figures(f"{link}_tcp_{n}", ours[n], {"iperf3": of_iperf3})
    for path, word, rows in (("through shared memory", "shared_memory", shared), ("over UCX", "ucx", ucx)):
        if rows:
            of_tcp, of_iperf3 = ratio(rows, ours[first]), ratio(rows, theirs[first])
            told = f"of that over TCP {of_tcp:.2f}, of iperf3's {of_iperf3:.2f}"
            print(f"{'':12}  {path} {medians(rows)}   {told}", flush=True)
            found += figures(f"{link}_{word}", rows, {"tcp": of_tcp, "iperf3": of_iperf3})
    return found


def measure(options):
    found = compare("loopback", options)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(two_namespaces())
            if options.delay:
                # The answers wait; what is shaped has its queue on the other side.
                network("tc", "-n", FAR, "qdisc", "add", "dev", "veth0", "root", "netem", "delay", options.delay)
            for rate in map(float, options.rates.split(",")):
                shape(rate)
                found += compare(f"{rate:.0f} Mbit/s", options, NEAR, FAR, FAR_ADDRESS)
            shape(None)
            found += compare("veth", options, NEAR, FAR, FAR_ADDRESS)
    except Unavailable as reason:
        print(f"SKIPPED the links between namespaces: {reason}", file=sys.stderr)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--rates", default="1000,10000", help="Mbit/s of the link between namespaces, with commas")
    parser.add_argument(
        "--streams",
        type=lambda text: [int(each) for each in text.split(",")],
        default=[1],
        help="TCP connections, with commas: each in turn, the first is what the others are compared with",
    )
    parser.add_argument("--delay", help="of the round trip on that link, as netem takes it: 0.5ms")
    parser.add_argument("--tokens", type=int, default=2048, help="of the prompt: 128 KiB each")
    parser.add_argument("--rounds", type=int, default=3, help="transfers that are measured, of each process")
    parser.add_argument("--repeats", type=int, default=5, help="turns")
    parser.add_argument("--ucx", action="store_true", help="over UCX as well: needs its library")
    parser.add_argument("--seconds", type=float, default=3, help="that iperf3 runs")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    if not shutil.which("iperf3"):
        sys.exit("iperf3 is not there")
    found = measure(options)
    if options.json:
        write_report(options.json, found)


if __name__ == "__main__":
    main()
