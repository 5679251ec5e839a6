"""Models that several processes compute: answers are those of one process, whatever the layout of prefill and decode
workers, and no process is left behind.

    python3 -m unittest discover -s tests -p 'test_program_ranks.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import json
import os
import secrets
import signal
import subprocess
import unittest

from program import (
    GQA,
    PATIENCE,
    PROGRAM,
    ROOT,
    ProgramTest,
    call,
    complete,
    environment,
    load_of,
    needs_program,
    run,
    text_of,
    wait_idle,
)

FLAGS = ("--kv-memory", "8MiB", "--threads", "1", "--max-num-seqs", "8", "--port", "0")
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
LAYOUTS = (("--tp", 2), ("--pp", 2), ("--tp", 2, "--pp", 2))


@needs_program
class Ranks(ProgramTest):
    def answers(self, server):
        """Texts of what uses the cache in all ways: long and short prompts, ones that begin alike, several answers."""
        prompts = [TEXT[:1600], TEXT[:1300] + "And then", "The old house", TEXT[:1600]]
        texts = [text_of(complete(server.url, prompt, 24, ignore_eos=True)) for prompt in prompts]
        several = {"prompt": TEXT[:700], "max_tokens": 12, "n": 3, "seed": 5, "temperature": 0.8, "ignore_eos": True}
        answer = call(server.url, "/v1/completions", several)
        self.assertEqual(answer.status, 200, answer.body)
        return texts + [choice["text"] for choice in answer.json()["choices"]]

    def test_every_layout_gives_the_answers_of_one_process(self):
        expected = self.answers(self.server("serve", GQA, *FLAGS))
        for layout in LAYOUTS:
            with self.subTest(layout=layout):
                server = self.server("serve", GQA, *FLAGS, *layout)
                self.assertEqual(self.answers(server), expected)
                server.stop()

    def test_blocks_go_to_host_memory_and_come_back(self):
        # 13 blocks, room for one prompt: the third one needs what the first one had.
        flags = ("--kv-memory", "2600KiB", "--threads", "1", "--port", "0", "--max-num-seqs", "2")
        servers = [self.server("serve", GQA, *flags), self.server("serve", GQA, *flags, "--tp", 2, "--pp", 2)]
        tokens = call(servers[0].url, "/tokenize", {"prompt": TEXT}).json()["tokens"]
        prompts = [tokens[:800], tokens[1000:1800], tokens[:800]]
        texts = []
        for server in servers:
            texts.append([text_of(complete(server.url, prompt, 16, ignore_eos=True)) for prompt in prompts])
        self.assertEqual(texts[0], texts[1])
        usage = complete(servers[1].url, prompts[1], 1).json()["usage"]
        self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 0)

    def test_workers_of_other_layouts_feed_each_other(self):
        expected = self.answers(self.server("serve", GQA, *FLAGS))
        for prefill, decode, codec in (
            (("--tp", 2, "--pp", 2), (), "none"),
            (("--tp", 2, "--pp", 2), ("--tp", 2), "splitzip"),
            ((), ("--pp", 2), "splitzip:channel"),
            (("--pp", 2), ("--tp", 2, "--pp", 2), "none"),
        ):
            with self.subTest(prefill=prefill, decode=decode, codec=codec):
                sender = self.server("prefill", GQA, *FLAGS, *prefill, "--kv-codec", codec)
                receiver = self.server("decode", GQA, *FLAGS, *decode)
                gateway = self.server("gateway", "--prefill", sender.url, "--decode", receiver.url, "--port", 0)
                self.assertEqual(self.answers(gateway), expected)
                for worker in (sender, receiver):
                    wait_idle(worker.url)
                for server in (gateway, sender, receiver):
                    server.stop()

    def test_coded_caches_of_other_layouts_feed_each_other(self):
        tables = self.folder() / "tables.safetensors"
        done = run("calibrate", "tables", GQA, "--text", ROOT / "README.md", "--out", tables, "--tokens", 1000)
        self.assertEqual(done.status, 0, done.err)
        layouts = ((("--tp", 2), ("--pp", 2)), (("--tp", 2, "--pp", 2), ()))
        # Where heads are coded together, a rank has more than what it computes.
        whole = ((("--tp", 2, "--pp", 2), ("--tp", 2)), (("--tp", 2), ()), (("--pp", 2), ("--tp", 2, "--pp", 2)))
        for name, pairs in (("hack", layouts), ("kivi:bits=4,recent=1", layouts), ("int8", layouts),
                            ("kvquant", whole), ("cachegen:level=1,sink=1", whole[:2]),
                            ("fp8_e4m3", layouts[1:]), ("mxfp4", layouts[:1])):  # fmt: skip
            self.feed_each_other(GQA, (*FLAGS, "--kv-format", name, "--kv-tables", tables), pairs, "splitzip")

    def test_rotated_caches_of_other_layouts_feed_each_other(self):
        folder = self.folder()
        text, rotated = folder / "text.md", folder / "rotated"
        text.write_text(TEXT + "".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("spec/*.md"))))
        done = run("calibrate", "zack", GQA, "--text", text, "--out", rotated, "--tokens", 16384, timeout=300)
        self.assertEqual(done.status, 0, done.err)
        for name, pair, codec in (("zack:keep=0.5", (("--tp", 2, "--pp", 2), ("--tp", 2)), "splitzip"),
                                  ("zack:keep=0.5", (("--tp", 2), ("--pp", 2)), "none"),
                                  ("zack:keep=0.5,sink=1+hack", (("--tp", 2, "--pp", 2), ()), "none"),
                                  ("zack:keep=0.7+fp8_e4m3", ((), ("--tp", 2)), "splitzip:channel")):  # fmt: skip
            self.feed_each_other(rotated, (*FLAGS, "--kv-format", name), [pair], codec)

    def feed_each_other(self, model, flags, pairs, codec):
        """Workers in each pair of layouts give the answers of one process."""
        expected = self.answers(self.server("serve", model, *flags))
        for prefill, decode in pairs:
            with self.subTest(flags=flags, prefill=prefill, decode=decode):
                sender = self.server("prefill", model, *flags, *prefill, "--kv-codec", codec)
                receiver = self.server("decode", model, *flags, *decode)
                gateway = self.server("gateway", "--prefill", sender.url, "--decode", receiver.url, "--port", 0)
                self.assertEqual(self.answers(gateway), expected)
                for server in (gateway, sender, receiver):
                    server.stop()

    def test_kv_memory_is_what_all_ranks_take_together(self):
        tables = self.folder() / "tables.safetensors"
        done = run("calibrate", "tables", GQA, "--text", ROOT / "README.md", "--out", tables, "--tokens", 1000)
        self.assertEqual(done.status, 0, done.err)
        flags = ("--threads", "1", "--port", "0", "--kv-tables", tables, "--kv-format")

        def blocks(*more):
            server = self.server("serve", GQA, *flags, *more)
            total = load_of(server.url)["blocks_total"]
            server.stop()
            return total

        self.assertEqual(blocks("int8", "--kv-memory", "8MiB", "--tp", 2), blocks("int8", "--kv-memory", "8MiB"))
        # Each of the two has whole slabs.
        alone = blocks("kvquant", "--kv-memory", "8MiB")
        self.assertEqual(blocks("kvquant", "--kv-memory", "16MiB", "--tp", 2, "--pp", 2), alone)
        self.assertGreater(blocks("kvquant", "--kv-memory", "16MiB", "--pp", 2), alone)
        rows = 2 * (2 * 6 * 2 * 64 * 64 * 2)  # K and V of a block in 16 bits, twice
        little = (*flags[:2], *flags[4:], "kvquant", "--kv-memory", "4MiB", "--tp", 2)
        done = run("generate", GQA, *little, "--prompt", "x")
        self.assert_refused(done, f"needs {2 * 9 * rows} bytes of KV memory at least")

    def test_state_comes_back_after_a_restart_from_the_ranks_own_stores(self):
        history = TEXT[:1500]
        expected = text_of(complete(self.server("serve", GQA, *FLAGS).url, history + " And so", 16, ignore_eos=True))
        for form, layout in (("kv", ("--tp", 2, "--pp", 2)), ("hidden", ("--tp", 2)), ("auto", ("--pp", 2))):
            with self.subTest(form=form, layout=layout):
                store = self.folder() / form
                flags = (*FLAGS, *layout, "--store", store, "--store-form", form)
                server = self.server("serve", GQA, *flags)
                text_of(complete(server.url, history, 1))
                server.stop()
                ranks = sorted(folder.name for folder in store.iterdir())
                tp, pp = (dict(zip(layout[::2], layout[1::2], strict=True)).get(name, 1) for name in ("--tp", "--pp"))
                self.assertEqual(ranks, [f"tp{tp}-pp{pp}-rank{rank}" for rank in range(tp * pp)])
                server = self.server("serve", GQA, *flags)
                answer = complete(server.url, history + " And so", 16, ignore_eos=True)
                self.assertEqual(text_of(answer), expected)
                self.assertGreater(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
                server.stop()

    def test_texts_are_computed_ahead_of_time_into_the_ranks_own_stores(self):
        store = self.folder() / "warm"
        text = self.folder() / "text.txt"
        text.write_text(TEXT[:1500], encoding="utf-8")
        layout = ("--tp", 2, "--pp", 2, "--store", store)
        done = run("store", "warm", GQA, text, *layout, "--threads", 1, "--json")
        self.assertEqual(done.status, 0, done.err)
        self.assertGreater(json.loads(done.out.splitlines()[-1])["summary"]["stored"], 0)
        server = self.server("serve", GQA, *FLAGS, *layout)
        usage = complete(server.url, TEXT[:1500] + " And so", 1).json()["usage"]
        self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 0)

    def test_what_ranks_have_no_store_for_is_refused(self):
        flags = (GQA, "--tp", 2, "--store", self.folder() / "store", "--prompt", "x")
        self.assert_refused(run("generate", *flags, "--store-profile", "x.json"), "computed by several")
        self.assert_refused(run("generate", *flags, "--store-direct", "on"), "for models on a device")
        self.assert_refused(run("generate", *flags, "--store-form", "hidden=99"), "wants N from 1 to 6")

    def test_a_rank_that_is_killed_ends_its_worker(self):
        server = self.server("serve", GQA, *FLAGS, "--tp", 2, "--pp", 2)
        ranks = sorted(server.children())
        self.assertEqual(len(ranks), 4)
        text_of(complete(server.url, "The old house", 8))
        os.kill(ranks[2], signal.SIGKILL)
        self.assertEqual(server.process.wait(PATIENCE), 1)
        self.assertIn("rank 2 has gone", server.stderr())
        server.wait_gone()

    def test_ranks_end_with_their_worker(self):
        for number, status in ((signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)):
            server = self.server("serve", GQA, *FLAGS, "--tp", 2)
            self.assertEqual(len(server.children()), 2)
            self.assertEqual(server.stop(number), status)

    def test_ranks_that_somebody_else_starts(self):
        key = secrets.token_hex(16)
        port = 20000 + os.getpid() % 20000
        flags = (GQA, "--tp", "2", "--threads", "1")
        ranks = []
        for rank in range(2):
            command = [PROGRAM, "rank", *flags, "--rank", str(rank), "--head", f"127.0.0.1:{port}"]
            ranks.append((command, environment(KVLANE_RANKS_KEY=key)))
        server = self.server(
            "serve", *flags, "--kv-memory", "8MiB", "--port", 0, "--ranks-bind", f"127.0.0.1:{port}",
            wait=False, KVLANE_RANKS_KEY=key,
        )  # fmt: skip
        processes = []
        for command, variables in ranks:
            # A rank may come before the worker listens: then it is started again, as a service manager does.
            again = ["/bin/sh", "-c", 'until "$@" 2>/dev/null; do sleep 0.1; done', "sh", *map(str, command)]
            process = subprocess.Popen(again, env=variables)
            processes.append(process)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
        server.wait_ready()
        expected = run("generate", GQA, "--threads", 1, "--prompt", "The old house", "--max-tokens", 9, "--json").json()
        self.assertEqual(text_of(complete(server.url, "The old house", 9)), expected["text"])

    def test_strangers_are_turned_away(self):
        key = secrets.token_hex(16)
        done = run("rank", GQA, "--tp", 2, "--rank", 0, "--head", "127.0.0.1:1", KVLANE_RANKS_KEY=key)
        self.assertEqual(done.status, 1)
        done = run("rank", GQA, "--tp", 2, "--rank", 0, "--head", "127.0.0.1:1")
        self.assert_refused(done, "KVLANE_RANKS_KEY")
        done = run("rank", GQA, "--tp", 2, "--rank", 2, "--head", "127.0.0.1:1", KVLANE_RANKS_KEY=key)
        self.assert_refused(done, "--rank 2 is none of the 2")

    def test_what_the_worker_decides_is_no_flag_of_a_rank(self):
        given = (("--kv-format", "int8"), ("--kv-memory", "8MiB"), ("--max-num-seqs", 4), ("--device", "cpu"))
        for flag, value in given:
            with self.subTest(flag=flag):
                done = run("rank", GQA, "--rank", 0, "--head", "127.0.0.1:1", flag, value)
                self.assertNotEqual(done.status, 0)
                self.assertIn(flag, done.err)

    def test_what_ranks_do_not_do_is_refused_before_any_starts(self):
        for flags, words in (
            (("--tp", 64), "64 tensor-parallel ranks are more than the"),
            (("--pp", 99), "99 pipeline stages are more than the"),
            (("--tp", 2, "--kv-evict", "h2o:keep=0.5"), "evict"),
            (("--tp", 2, "--zack-online", 0.5), "axes"),
            (("--tp", 2, "--device", "cuda"), "devices"),
            (("--ranks-bind", "127.0.0.1:0"), "--tp or --pp as well"),
        ):
            with self.subTest(flags=flags):
                self.assert_refused(run("generate", GQA, *flags, "--prompt", "x"), words)
        done = run("up", GQA, "--tp", 2, "--ranks-bind", "127.0.0.1:0")
        self.assert_refused(done, "start prefill and decode workers by themselves")


if __name__ == "__main__":
    unittest.main()
