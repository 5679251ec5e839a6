"""Engines with a state store, with the real program: conversations that go on after a restart and after a kill.

    python3 -m unittest discover -s tests -p 'test_program_state.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import json
import signal
import unittest

from program import GQA, SMALL, ProgramTest, call, complete, needs_program, run, text_of, wait_until

WORDS = "The old sailor told his story of the sea and of the storm that took his ship. " * 12


def metric(server, name):
    for line in call(server.url, "/metrics").body.decode().splitlines():
        if line.startswith((name + " ", name + "{")):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"there is no metric {name}")


@needs_program
class StateTest(ProgramTest):
    def setUp(self):
        self.files = self.folder()
        self.store = self.files / "store"

    def generate(self, *arguments, store=True):
        given = ("--store", self.store) if store else ()
        done = run("generate", GQA, *SMALL, *given, "--prompt", WORDS, "-n", "20", "--json", *arguments)
        self.assertEqual(done.status, 0, done.err)
        return done.json()

    def test_every_form_comes_back_in_the_next_process(self):
        truth = self.generate(store=False)
        whole = truth["prompt_tokens"] // 64 * 64
        self.assertGreaterEqual(whole, 128)
        for number, form in enumerate(("kv", "hidden", "hidden=3", "auto")):
            self.store = self.files / f"store{number}"
            first = self.generate("--store-form", form)
            again = self.generate("--store-form", form)
            self.assertEqual(first["tokens"], truth["tokens"], form)
            self.assertEqual(again["tokens"], truth["tokens"], form)
            self.assertEqual(first["cached_tokens"], 0, form)
            if form != "auto":  # whose plan may rather compute
                self.assertEqual(again["cached_tokens"], whole, form)
                self.assertGreater(again["account"]["restore"], 0, form)

    def test_slabs_in_a_codec_and_encrypted(self):
        key = self.files / "key"
        key.write_text("5a" * 32 + "\n")
        given = ("--store-form", "kv", "--store-codec", "splitzip", "--store-key", key)
        truth = self.generate(*given)
        self.assertEqual(self.generate(*given)["tokens"], truth["tokens"])
        self.assertGreater(self.generate(*given)["cached_tokens"], 0)
        # Without the key it is computed, and said nowhere what it is.
        self.assertEqual(self.generate("--store-form", "kv")["tokens"], truth["tokens"])
        for segment in self.store.glob("segments/*.seg"):
            self.assertNotIn(WORDS.encode()[:40], segment.read_bytes())

    def test_what_was_saved_when_a_server_is_killed_serves_the_next_one(self):
        given = ("serve", GQA, *SMALL, "--port", 0, "--store", self.store, "--store-form", "kv")
        server = self.server(*given)
        first = complete(server.url, WORDS, 100, ignore_eos=True)
        # Saving is behind answering, but not for long.
        wait_until(lambda: self.extents() >= 4, "blocks in the store")
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        server = self.server(*given)
        again = complete(server.url, WORDS, 100, ignore_eos=True)
        self.assertEqual(text_of(again), text_of(first))
        self.assertGreaterEqual(metric(server, "kvlane_store_hit_tokens_total"), 64)
        self.assertEqual(metric(server, "kvlane_restores_total"), 1)
        self.assertEqual(metric(server, "kvlane_restores_failed_total"), 0)
        server.stop()
        done = run("store", "verify", self.store)
        self.assertEqual(done.status, 0, done.out + done.err)

    def extents(self):
        done = run("store", "stat", self.store, "--json")
        return json.loads(done.out)["extents"] if done.status == 0 else 0

    def test_what_is_wrong_is_one_sentence(self):
        for arguments, sentence in (
            (("--store-form", "pickle"), "unknown form of stored state 'pickle'"),
            (("--store-form", "hidden=99"), "hidden=N wants N from 1 to 6"),
            (("--store-codec", "zip"), "zip"),
            (("--kv-evict", "h2o:keep=0.5", "--store-form", "kv"), "state store keeps blocks by their names"),
            (("--no-enable-prefix-caching", "--store-form", "kv"), "state store keeps blocks by their names"),
            (("--store-key", "/nowhere"), "/nowhere"),
            (("--store-direct", "on"), "--store-direct on is for models on a device"),
        ):
            done = run("generate", GQA, *SMALL, "--store", self.store, "--prompt", "x", *arguments)
            self.assert_refused(done, sentence)
        done = run("generate", GQA, "--store", self.store, "--prompt", "x", "--store-direct", "maybe")
        self.assert_refused(done, "--store-direct: maybe not in", status=2)
        done = run("generate", GQA, "--store", self.store, "--prompt", "x", "--store-max", 100)
        self.assert_refused(done, "--store-max: must be 0 or at least 1MiB", status=2)


if __name__ == "__main__":
    unittest.main()
