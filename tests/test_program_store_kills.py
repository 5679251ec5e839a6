"""Engines that are killed while they save: what they had said to be in the store is there, and whole, and right.

    python3 -m unittest discover -s tests -p 'test_program_store_kills.py'

KVLANE_KILLS=500 kills each of them so often, instead of 10 times. Standard library only.
"""
# SPDX-License-Identifier: Apache-2.0
import http.client
import itertools
import json
import os
import random
import signal
import subprocess
import threading
import time
import unittest

from program import GQA, PATIENCE, PROGRAM, ProgramTest, complete, environment, needs_program, run, text_of
from test_program_state import metric

KILLS = int(os.environ.get("KVLANE_KILLS", "10"))
KILLS_EACH = 3  # of one store; the next one has another form
FORMS = (
    ("--store-form", "kv"),
    ("--store-form", "hidden"),
    ("--store-form", "hidden=3", "--store-codec", "splitzip"),
    ("--store-form", "kv", "--store-max", "8MiB"),
)
# Little, so that what was answered leaves memory and comes back from the store.
MEMORY = ("--threads", "1", "--kv-memory", "6MiB", "--host-memory", "0")
PAGE = 4096
CLIENTS = 3
ANSWER = 16  # tokens
WORDS = "the old sailor told his story of a sea and of storm that took ship from shore where fish are by night".split()


def prompts(rng):
    """Texts of up to some 900 tokens, of which many begin as earlier ones."""
    texts = []
    while True:
        begin = rng.choice(texts) if texts and rng.random() < 0.4 else ""
        words = begin.split()[: rng.randint(100, 400)] + rng.choices(WORDS, k=rng.randint(100, 400))
        texts = [*texts[-20:], " ".join(words)]
        yield texts[-1]


class Clients:
    """Ask a server one thing after the other until it is gone."""

    def __init__(self, url, texts):
        self.url, self.texts = url, texts
        self.lock = threading.Lock()
        self.answers = []  # prompt and text of those that came whole
        self.wrong = []
        self.threads = [threading.Thread(target=self.ask) for _ in range(CLIENTS)]
        for thread in self.threads:
            thread.start()

    def ask(self):
        while True:
            with self.lock:
                prompt = next(self.texts)
            try:
                answer = complete(self.url, prompt, ANSWER, ignore_eos=True)
            except (OSError, http.client.HTTPException):
                return
            with self.lock:
                if answer.status == 200:
                    self.answers.append((prompt, text_of(answer)))
                else:
                    self.wrong.append(answer.body)

    def join(self):
        for thread in self.threads:
            thread.join(PATIENCE)


@needs_program
class StoreKillsTest(ProgramTest):
    def setUp(self):
        self.rng = random.Random(11)
        self.texts = prompts(self.rng)
        self.files = self.folder()
        self.numbers = itertools.count()  # of files
        self.killed = 0

    def each_kill(self, turn):
        """Calls turn() for each kill. With each form self.store is a new one, of which nothing is known yet."""
        for number in range(KILLS):
            if number % KILLS_EACH == 0:
                self.store = self.files / f"store{number}"
                self.form = FORMS[number // KILLS_EACH % len(FORMS)]
                self.bounded = "--store-max" in self.form
                self.durable = set()  # extents
                self.asked = []  # prompts
                self.promised = {}  # tokens by file
            with self.subTest(kill=number, form=self.form):
                turn()
        self.assertGreater(self.killed, KILLS // 2)

    def listed(self):
        """Extents that the store shows to whoever looks: these are durable, the process that writes may end now."""
        done = run("store", "ls", "--json", self.store)
        if not (self.store / "kvlane-store").exists():
            return set()  # not begun
        self.assertEqual(done.status, 0, done.err)
        extents = map(json.loads, done.out.splitlines())
        return {(extent["name"], extent["kind"], extent["layer"]) for extent in extents}

    def assert_whole(self):
        """Nothing is damaged or lost, and what was written in vain takes no room."""
        if not (self.store / "kvlane-store").exists():
            return  # not begun; the next process begins it
        done = run("store", "verify", "--json", self.store)
        self.assertEqual(done.status, 0, done.out + done.err)
        shown = done.json()
        self.assertEqual((shown["damaged"], shown["lost"], shown["rebuilt"]), ([], 0, False))
        self.assertEqual(shown["whole"], len(self.listed()))
        collected = run("store", "gc", "--json", self.store)
        self.assertEqual(collected.status, 0, collected.err)
        self.assertEqual(collected.json()["bytes"], shown["bytes"])
        segments = list(self.store.rglob("*.seg"))
        taken = sum(512 * path.stat().st_blocks for path in segments)
        # A file of many holes has an index in its file system, which is counted with it.
        self.assertLessEqual(taken, shown["bytes"] + PAGE * len(segments))

    def test_a_server_that_saves_while_it_answers(self):
        without_store = self.server("serve", GQA, "--port", 0, "--threads", "1", "--kv-memory", "64MiB")
        truths = {}
        restored = []

        def turn():
            server = self.server("serve", GQA, "--port", 0, *MEMORY, "--store", self.store, *self.form)
            again = self.rng.sample(self.asked, min(CLIENTS, len(self.asked)))
            clients = Clients(server.url, itertools.chain(again, self.texts))
            time.sleep(self.rng.uniform(0, 0.8))
            restored.append(metric(server, "kvlane_store_hit_tokens_total"))
            self.assertEqual(metric(server, "kvlane_restores_failed_total"), 0)
            self.durable |= self.listed()
            time.sleep(self.rng.uniform(0, 0.05))
            server.process.send_signal(signal.SIGKILL)
            self.killed += server.process.wait(PATIENCE) == -signal.SIGKILL
            clients.join()
            self.assertEqual(clients.wrong, [])
            self.assert_whole()
            if not self.bounded:
                self.assertLessEqual(self.durable, self.listed())
            for prompt, text in clients.answers:
                if prompt not in truths:
                    truths[prompt] = text_of(complete(without_store.url, prompt, ANSWER, ignore_eos=True))
                self.assertEqual(text, truths[prompt])
                self.asked.append(prompt)

        self.each_kill(turn)
        self.assertGreater(len(truths), KILLS)
        self.assertGreater(sum(restored), 0)

    def new_files(self):
        paths = [self.files / f"{next(self.numbers)}.txt" for _ in range(8)]
        for path in paths:
            path.write_text(next(self.texts), encoding="utf-8")
        return paths

    def warm(self, paths):
        """A process that computes these files ahead of time."""
        given = ["store", "warm", GQA, *paths, "--store", self.store, *self.form, *MEMORY, "--json"]
        return subprocess.Popen([PROGRAM, *map(str, given)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=environment())  # fmt: skip

    def test_computing_ahead_of_time(self):
        self.store, self.form = self.files / "timed", FORMS[0]
        start = time.monotonic()
        self.warm(self.new_files()).communicate(timeout=PATIENCE)
        whole_run = time.monotonic() - start

        def turn():
            process = self.warm(self.new_files())
            time.sleep(self.rng.uniform(0, 1.1 * whole_run))
            process.send_signal(signal.SIGKILL)
            out, err = process.communicate(timeout=PATIENCE)
            self.killed += process.returncode == -signal.SIGKILL
            self.assert_whole()
            if self.bounded:
                return  # what is told may have to go for what comes later
            self.assertEqual(err, b"")
            # A file that was told of is stored; a line that was cut off is no promise.
            lines = [json.loads(line) for line in out.decode().split("\n")[:-1]]
            self.promised |= {line["file"]: line["stored"] for line in lines if "file" in line}
            if not self.promised:
                return
            out, err = self.warm(self.promised).communicate(timeout=PATIENCE)
            self.assertEqual(err, b"")
            files = [json.loads(line) for line in out.splitlines()][:-1]
            self.assertEqual({file["file"]: file["found"] for file in files}, self.promised)
            self.assertEqual({file["computed"] for file in files}, {0})

        self.each_kill(turn)


if __name__ == "__main__":
    unittest.main()
