# SPDX-License-Identifier: Apache-2.0
"""Servers as measurements of them start them, ask them how it went, and write down what they found."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import urllib.request

PROGRAM = os.environ.get("KVLANE_PROGRAM", str(pathlib.Path(__file__).parent.parent / "build/release/kvlane"))
PATIENCE = 600  # seconds


class Server:
    """A serving command of the program on a free port; ends with this process. `within` stands before the program."""

    def __init__(self, *arguments, within=(), **variables):
        command = [*within, PROGRAM, *arguments, "--port", 0, "--parent", os.getpid(), "--json"]
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=os.environ | variables
        )
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"`{shlex.join(map(str, command))}` did not start")
        self.url = json.loads(line)["url"]

    def stop(self):
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.process.stdout.close()

    def metric(self, name):
        """The sum of a metric's values, whatever their labels."""
        text = urllib.request.urlopen(f"{self.url}/metrics", timeout=PATIENCE).read().decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{\S*}})? (\S+)$", text, re.MULTILINE))


@contextlib.contextmanager
def served(model, *flags):
    """`kvlane serve` with these flags."""
    server = Server("serve", model, *flags)
    try:
        yield server
    finally:
        server.stop()


def load(server, folder, *flags):
    """Drives a server with `kvlane bench serve`; what that saves of its run, with each request's latencies."""
    path = pathlib.Path(folder) / "load.json"
    command = [PROGRAM, "bench", "serve", "--base-url", server.url, "--save-result", path, "--save-detailed"]
    done = subprocess.run([*command, *map(str, flags)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"`{shlex.join(map(str, [*command, *flags]))}` failed")
    return json.loads(path.read_text(encoding="utf-8"))


def store_flags(form, folder):
    """Flags for a store in `folder` of this form: a --store-form, and behind "+" a --store-codec."""
    name, _, codec = form.partition("+")
    return ["--store", folder, "--store-form", name, *(["--store-codec", codec] if codec else [])]


def is_lossless(form):
    """Whether what comes back has the bits it had."""
    return form != "hidden:int8"


def figure_word(way):
    """A way as part of a figure's name."""
    return re.sub("[:+=]", "_", way)


def write_report(path, figures):
    """What `kvlane bench --json` writes of itself, of the script that runs: tools/record.py takes it."""
    script, *words = sys.argv
    # Where the report goes is nothing that was measured.
    told = [word for before, word in zip(["", *words], words) if "--json" not in (before, word.partition("=")[0])]
    done = subprocess.run([PROGRAM, "version", "--json"], capture_output=True, text=True, check=True)
    program = json.loads(done.stdout)
    report = {
        "machine": program["machine"],
        "commit": program["commit"],
        "command": " ".join(["bench/" + pathlib.Path(script).name, *told]),
        "results": list(figures),
    }
    pathlib.Path(path).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
