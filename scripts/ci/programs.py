"""Runs GoogleTest programs: a process for some dozens of tests at a time, as many processes as cores.

A process for each test, as ctest has it, spends more on starting under a sanitizer than most tests take. A test that
ends its process, or that says nothing for TIMEOUT seconds, has failed; those behind it run in a process of their own.
"""
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import subprocess
import tempfile
import threading

TESTS_MAX = 40  # of one process: what waits for a long one at the end stays short
TIMEOUT = 300  # seconds, for one test
RAN = re.compile(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] ([\w/]+\.[\w/]+)(?:,.*?)?(?: \((\d+) ms\))?\s*$")


@dataclasses.dataclass
class Outcome:
    """What became of tests, by "program:Suite.Name"; `output` of those that failed."""

    seconds: dict = dataclasses.field(default_factory=dict)
    passed: set = dataclasses.field(default_factory=set)
    skipped: set = dataclasses.field(default_factory=set)
    failed: dict = dataclasses.field(default_factory=dict)


def environment(variables):
    # Threads that spin while they wait take the cores from those they wait for.
    return os.environ | {"OMP_WAIT_POLICY": "passive"} | variables


def list_tests(program, variables):
    """Names of all tests but disabled ones, in the program's order."""
    done = subprocess.run([program, "--gtest_list_tests"], env=environment(variables), capture_output=True,
                          text=True, timeout=TIMEOUT, check=True)
    names, suite = [], ""
    for line in done.stdout.splitlines():
        name = line.split("#")[0].rstrip()
        if name.startswith("  "):
            if "DISABLED_" not in suite + name:
                names.append(suite + name.strip())
        elif name.endswith("."):
            suite = name
    return names


def chunks(names):
    """Runs of at most TESTS_MAX names; suites stay together where they fit, for what they set up once."""
    for first in range(0, len(names), TESTS_MAX):
        yield names[first:first + TESTS_MAX]


class Run:
    """One process at a time over a list of tests, until each has an outcome."""

    def __init__(self, program, variables):
        self.program = pathlib.Path(program)
        self.variables = variables
        self.outcome = Outcome()

    def run(self, names):
        left = list(names)
        while left:
            ended = self._process(left)
            left = [name for name in left if name not in ended]
        return self.outcome

    def _process(self, names):
        """Runs `names` in one process; returns those that have an outcome then, at least one."""
        with tempfile.NamedTemporaryFile("w", suffix=".flags") as flags:
            flags.write("--gtest_filter=" + ":".join(names) + "\n")
            flags.flush()
            with subprocess.Popen([self.program, f"--gtest_flagfile={flags.name}", "--gtest_color=no"],
                                  env=environment(self.variables), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, errors="replace") as process:
                ended, blamed = self._follow(process)
        if blamed is None:
            # Nothing was running: a process that ends badly after tests that passed (a leak) is the last one's fault.
            failed = any(self._key(name) in self.outcome.failed for name in ended)
            if not ended:
                blamed = names[0]
            elif process.returncode != 0 and not failed:
                blamed = ended[-1]
        if blamed is not None:
            self.outcome.passed.discard(self._key(blamed))
            status = f"[the process ended with status {process.returncode}]\n"
            self.outcome.failed[self._key(blamed)] = self.tail + status
        return {*ended, blamed}

    def _key(self, name):
        return f"{self.program.name}:{name}"

    def _follow(self, process):
        """Reads what the process says; returns the tests that ended and the one that was running when it did."""
        ended, current, self.tail = [], None, ""
        alarm = threading.Timer(TIMEOUT, process.kill)
        alarm.start()
        for line in process.stdout:
            match = RAN.search(line)
            if not match:
                self.tail += line
                continue
            what, name, milliseconds = match.groups()
            if what == "RUN":
                current, self.tail = name, ""
                alarm.cancel()
                alarm = threading.Timer(TIMEOUT, process.kill)
                alarm.start()
            elif name == current:
                self.outcome.seconds[self._key(name)] = int(milliseconds or 0) / 1000
                if what == "FAILED":
                    self.outcome.failed[self._key(name)] = self.tail
                else:
                    (self.outcome.passed if what == "OK" else self.outcome.skipped).add(self._key(name))
                ended.append(name)
                current, self.tail = None, ""
        process.wait()
        alarm.cancel()
        return ended, current


def run_programs(programs, variables=None, tell=print):
    """Runs all tests of `programs` (paths); `tell` gets each failure as it comes. Returns the Outcome."""
    variables = variables or {}
    whole = Outcome()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        lists = dict(zip(programs, pool.map(lambda program: list_tests(program, variables), programs)))
        waiting = [(program, names) for program in programs for names in chunks(lists[program])]
        for outcome in pool.map(lambda work: Run(work[0], variables).run(work[1]), waiting):
            whole.seconds |= outcome.seconds
            whole.passed |= outcome.passed
            whole.skipped |= outcome.skipped
            whole.failed |= outcome.failed
            for name, said in outcome.failed.items():
                tell(f"{name} failed:\n{said}")
    return whole
