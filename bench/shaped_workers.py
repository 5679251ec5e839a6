# SPDX-License-Identifier: Apache-2.0
"""Workers on both sides of a shaped link, for measurements of whole requests.

Two network namespaces of this machine, between them a link whose rate `tc tbf` sets. Needs root, ip and tc (package
iproute2), and a kernel with network namespaces and tbf. KVLANE_PROGRAM is the program, build/release/kvlane if it is
not set. Not a program of its own: see request_link.py and end_to_end.py.
"""

import contextlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

from served import PROGRAM, Server

NEAR, FAR = f"kvlane-near-{os.getpid()}", f"kvlane-far-{os.getpid()}"
NEAR_ADDRESS, FAR_ADDRESS = "10.213.78.1", "10.213.78.2"
PATIENCE = 120  # seconds for anything that should be quick
# The rate is right when the link's share is so near to the one that was asked for.
SHARE_TOLERANCE = 0.03


class Unavailable(Exception):
    """This machine does not allow what is needed."""


def network(*command):
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode != 0:
        raise Unavailable(f"`{shlex.join(command)}`: {done.stderr.strip()}")


@contextlib.contextmanager
def two_namespaces():
    """A pair of namespaces with a link between them."""
    try:
        for name in (NEAR, FAR):
            network("ip", "netns", "add", name)
        network("ip", "-n", NEAR, "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", FAR)
        for name, address in ((NEAR, NEAR_ADDRESS), (FAR, FAR_ADDRESS)):
            network("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "veth0")
            for interface in ("lo", "veth0"):
                network("ip", "-n", name, "link", "set", interface, "up")
        yield
    finally:
        for name in (NEAR, FAR):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def shape(mbit):
    """The link's rate from the prefill workers to the decode worker; None: as it is."""
    if mbit is None:
        subprocess.run(["tc", "-n", NEAR, "qdisc", "del", "dev", "veth0", "root"], capture_output=True, check=False)
        return
    rate = f"{round(mbit * 1000)}kbit"
    shaper = ("tbf", "rate", rate, "burst", "128k", "limit", "4m")
    network("tc", "-n", NEAR, "qdisc", "replace", "dev", "veth0", "root", *shaper)


def inside(namespace, *command):
    return ["ip", "netns", "exec", namespace, PROGRAM, *map(str, command)]


def server_in(namespace, *arguments):
    return Server(*arguments, within=("ip", "netns", "exec", namespace), OMP_WAIT_POLICY="passive")


def value(report, name):
    return next(result["value"] for result in report["results"] if result["name"] == name)


def measure_requests(what, url, options, seed, requests, *more):
    """A run of the load generator near a gateway: random prompts of --input-len tokens; its report."""
    command = ["bench", "serve", "--base-url", url, "--dataset", "random"]
    command += ["--input-len", options.input_len, "--output-len", options.output_len, "--num-prompts", requests]
    command += ["--concurrency", options.concurrency, "--seed", seed, *more, "--json"]
    done = subprocess.run(inside(NEAR, *command), capture_output=True, text=True, check=False, timeout=3600)
    if done.returncode != 0:
        sys.exit(f"{what}: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    if value(report, "failed"):
        sys.exit(f"{what}: {value(report, 'failed'):.0f} requests failed")
    return report


def bytes_ratio(prefill_url):
    """Raw over shipped bytes of all that a prefill worker has sent."""
    code = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"
    text = subprocess.run(
        ["ip", "netns", "exec", NEAR, sys.executable, "-c", code, f"{prefill_url}/metrics"],
        capture_output=True, text=True, check=True, timeout=PATIENCE,
    ).stdout  # fmt: skip

    def total(kind):
        samples = re.findall(rf"^kvlane_transfer_{kind}_bytes_total\S* (\S+)$", text, re.MULTILINE)
        return sum(map(float, samples))

    raw, shipped = total("raw"), total("shipped")
    return raw / shipped if shipped else None


def kv_bytes(model, tokens):
    """Of one prompt's KV in 16 bits, from the model's configuration."""
    config = json.loads((pathlib.Path(model) / "config.json").read_text(encoding="utf-8"))
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    channels = config.get("num_key_value_heads", heads) * head_dim
    return tokens * config["num_hidden_layers"] * channels * 2 * 2
