"""Runs the real program for the end-to-end tests: starts and stops its processes, speaks HTTP to them.

Standard library only. Everything that is started here is stopped by the test that started it, and
whatever a failing test leaves behind is killed with it.
"""
# SPDX-License-Identifier: Apache-2.0
import contextlib
import http.client
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.parse

from test_bench_results import documented_units

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = pathlib.Path(os.environ.get("KVLANE_PROGRAM") or ROOT / "build" / "release" / "kvlane")
TINY = ROOT / "models" / "kvlane-tiny"
GQA = ROOT / "models" / "kvlane-tiny-gqa"

PATIENCE = 60  # seconds; a busy machine is slow, a hanging program is what this is for
# The model's pool is 1 GiB by default; the bundled ones need little.
SMALL = ("--kv-memory", "64MiB", "--threads", "1")
EXCLUSIVE = ("queue", "restore", "prefill", "encode", "wait_for_memory", "transfer", "decode_codec",
             "decode", "other")

needs_program = unittest.skipUnless(
    os.access(PROGRAM, os.X_OK), f"{PROGRAM} is not there: build it, or set KVLANE_PROGRAM"
)


def environment(**variables):
    """Ours without what would change the program's behaviour, plus `variables`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KVLANE_")}
    return kept | variables


class Finished:
    """A command that has ended: exit status, stdout, stderr."""

    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    def json(self):
        return json.loads(self.out)


def run(*arguments, timeout=PATIENCE, **variables):
    """Runs a command of the program to its end."""
    done = subprocess.run(
        [PROGRAM, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout,
        env=environment(**variables),
        check=False,
    )
    return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())


def processes_of_group(group):
    """Ids of the processes of a process group that still run; zombies have ended."""
    found = []
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # "pid (name) state parent group ...", and the name may contain anything.
            state, _, pgrp = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(pgrp) == group and state not in "ZX":
                found.append(int(folder.name))
    return found


def wait_until(condition, what, patience=PATIENCE):
    """Polls `condition` until it gives something true; returns that."""
    deadline = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {patience} seconds")
        time.sleep(0.02)


class Server:
    """A serving command of the program in a process group of its own, ready to take requests. `within` stands before
    the program.
    """

    def __init__(self, *arguments, wait=True, within=(), **variables):
        self.arguments = [str(argument) for argument in arguments]
        # It ends by itself should the tests be killed; `up` has no such flag.
        parent = () if self.arguments[0] == "up" else ("--parent", str(os.getpid()))
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [*within, PROGRAM, *self.arguments, *parent, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment(**variables),
            start_new_session=True,
        )
        self.ready = None
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.close()
                raise

    def wait_ready(self):
        line = b""
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
            byte = os.read(self.process.stdout.fileno(), 1) if readable else b""
            if not byte:
                raise AssertionError(f"{self.arguments} did not get ready: {self.stderr()}")
            line += byte
        self.ready = json.loads(line)

    @property
    def url(self):
        return self.ready["url"]

    def address(self, what="url"):
        """(host, port) of the HTTP side, or of the data plane: address("data_plane")."""
        host, _, port = self.ready[what].removeprefix("http://").rpartition(":")
        return host, int(port)

    def stderr(self):
        self.log.flush()
        with open(f"/proc/self/fd/{self.log.fileno()}", "rb") as log:
            return log.read().decode("utf-8", "replace")

    def children(self):
        return [pid for pid in processes_of_group(self.process.pid) if pid != self.process.pid]

    def stop(self, number=signal.SIGTERM):
        """Asks it to end; returns its exit status. AssertionError when a process of its stays."""
        self.process.send_signal(number)
        status = self.process.wait(PATIENCE)
        self.wait_gone()
        return status

    def wait_gone(self, patience=PATIENCE):
        wait_until(
            lambda: not processes_of_group(self.process.pid),
            f"the end of all processes of {self.arguments}",
            patience,
        )

    def close(self):
        """For clean-up: ends whatever is left, the hard way."""
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None or processes_of_group(self.process.pid):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.log.close()


class Answer:
    """An HTTP response, read to its end."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def error(self):
        return self.json()["error"]


def connect(url, timeout=PATIENCE):
    address = urllib.parse.urlsplit(url)
    return http.client.HTTPConnection(address.hostname, address.port, timeout=timeout)


def call(url, path, body=None, method=None, headers=None):
    """One request. `body` is bytes, or anything JSON can say."""
    if body is not None and not isinstance(body, bytes):
        body = json.dumps(body).encode()
    with contextlib.closing(connect(url)) as connection:
        head = {"Content-Type": "application/json"} | (headers or {})
        connection.request(method or ("GET" if body is None else "POST"), path, body, head)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())


def complete(url, prompt, max_tokens=16, **fields):
    """A completion; greedy unless told otherwise."""
    return call(url, "/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0} | fields)


def text_of(answer):
    if answer.status != 200:
        raise AssertionError(f"{answer.status}: {answer.body.decode('utf-8', 'replace')}")
    return answer.json()["choices"][0]["text"]


def counts_of(body):
    """The usage of an answer or event that does not depend on what the cache held before."""
    return {name: count for name, count in body["usage"].items() if name != "prompt_tokens_details"}


class Stream:
    """A streamed answer. Iterating gives the JSON objects; `done` tells whether [DONE] came."""

    def __init__(self, url, path, body, headers=None):
        self.connection = connect(url)
        head = {"Content-Type": "application/json"} | (headers or {})
        self.connection.request("POST", path, json.dumps(body | {"stream": True}), head)
        self.response = self.connection.getresponse()
        self.done = False

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        # The response owns a file of the socket: only closing both closes it.
        self.response.close()
        self.connection.close()

    def __iter__(self):
        while line := self.response.readline():
            field, _, value = line.decode().rstrip("\r\n").partition(": ")
            if field == "data" and value == "[DONE]":
                self.done = True
            elif field == "data":
                yield json.loads(value)
            elif line.strip():
                raise AssertionError(f"not an event: {line!r}")


def stream_completion(url, prompt, max_tokens=16, **fields):
    return Stream(
        url, "/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0} | fields
    )


def load_of(url):
    return call(url, "/health").json()["load"]


def idle(load):
    return load["running"] == load["queued"] == 0 and load["blocks_free"] == load["blocks_total"]


def wait_idle(url):
    """Until the worker holds no request and no block."""
    wait_until(lambda: idle(load_of(url)), f"{url} is idle")


def closed_port():
    """A port of the loopback address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ProgramTest(unittest.TestCase):
    """Tests that start servers: each is closed at the end of the test, or of the class."""

    def server(self, *arguments, **variables):
        server = Server(*arguments, **variables)
        self.addCleanup(server.close)
        return server

    @classmethod
    def class_server(cls, *arguments, **variables):
        server = Server(*arguments, **variables)
        cls.addClassCleanup(server.close)
        return server

    @classmethod
    def class_folder(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        return pathlib.Path(folder.name)

    def folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return pathlib.Path(folder.name)

    def assert_error(self, answer, status, fragment, param=None, code=None):
        """An error in OpenAI's form, told in one sentence that contains `fragment`."""
        self.assertEqual(answer.status, status, answer.body)
        self.assertEqual(answer.headers["Content-Type"], "application/json")
        error = answer.error()
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertIn(fragment, error["message"])
        self.assertNotIn("\n", error["message"])
        if param is not None:
            self.assertEqual(error["param"], param)
        if code is not None:
            self.assertEqual(error["code"], code)

    def assert_refused(self, finished, fragment, status=1):
        """A command that ended with one sentence on stderr and nothing on stdout."""
        self.assertEqual((finished.status, finished.out), (status, ""), finished.err)
        self.assertIn(fragment, finished.err)
        self.assertEqual(len(finished.err.splitlines()), 1, finished.err)
        self.assertTrue(finished.err.startswith("kvlane: "), finished.err)

    def figures_of(self, finished, signs=(1,)):
        """Figures of a `bench ... --json` by name: each once, documented, and of one of these signs."""
        self.assertEqual(finished.status, 0, finished.err)
        results = finished.json()["results"]
        figures = {figure["name"]: figure for figure in results}
        self.assertEqual(len(figures), len(results), "a name stands for one figure")
        units = documented_units()
        for name, figure in figures.items():
            self.assertEqual(units.get(name), figure["unit"], name)
            self.assertIn((figure["value"] > 0) - (figure["value"] < 0), signs, name)
        return figures

    def assert_account(self, extension):
        """The exclusive intervals add up to the total, none is negative."""
        account = extension["account"]
        for name, seconds in account.items():
            self.assertGreaterEqual(seconds, 0, name)
        together = sum(account[name] for name in EXCLUSIVE)
        self.assertGreater(account["total"], 0)
        self.assertAlmostEqual(together, account["total"], delta=0.01 * account["total"] + 1e-6)
