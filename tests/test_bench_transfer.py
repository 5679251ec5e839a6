"""`kvlane bench transfer`: within one process, between two, and what it refuses."""
# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import unittest

import program
from program import GQA, PROGRAM, ROOT, run

TEXT = ROOT / "README.md"
SMALL = ("--tokens", 100, "--layers", 2, "--rounds", 2)
CODECS = ("none", "splitzip", "splitzip_channel", "auto")


def transfer(*flags):
    return run("bench", "transfer", *flags)


@program.needs_program
class BenchTransfer(program.ProgramTest):
    def check(self, report, flags):
        """All figures of a comparison of all codecs on a link that is as it is."""
        figures = {result["name"]: result for result in report["results"]}
        self.assertEqual(figures["transfer_bytes"]["value"], 100 * 2 * 8 * 128 * 4)
        for codec in CODECS:
            self.assertGreater(figures[f"transfer_{codec}_seconds"]["value"], 0)
            self.assertGreater(figures[f"transfer_{codec}_speed"]["value"], 0)
        for codec in CODECS[1:]:
            self.assertGreater(figures[f"transfer_{codec}_time_ratio"]["value"], 0)
        self.assertGreater(figures["transfer_splitzip_bytes_ratio"]["value"], 1.25)
        self.assertGreater(
            figures["transfer_splitzip_channel_bytes_ratio"]["value"], figures["transfer_splitzip_bytes_ratio"]["value"]
        )
        self.assertEqual(figures["transfer_auto_slowdown"]["goal"], 1.02)
        self.assertEqual(report["command"].split()[:3], ["kvlane", "bench", "transfer"])
        for flag in flags:
            self.assertIn(str(flag), report["command"])

    def test_names_are_documented(self):
        page = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
        names = ("bytes_ratio", "time_ratio", "seconds", "speed", "cpu", "efficiency", "crossover", "crossover_serial")
        for name in names:
            self.assertIn(f"`transfer_splitzip_channel_{name}`", page)

    def test_one_process(self):
        done = transfer(GQA, "--text", TEXT, *SMALL, "--json")
        self.assertEqual(done.status, 0, done.err)
        self.check(done.json(), SMALL)
        table = transfer(GQA, "--text", TEXT, *SMALL, "--codecs", "none,splitzip", "--shaped")
        self.assertEqual(table.status, 0, table.err)
        self.assertRegex(table.out, r"transfer_splitzip_efficiency +\S+ +ratio +>= 0.97")
        self.assertNotIn("channel", table.out)

    def test_two_processes(self):
        with subprocess.Popen(
            [PROGRAM, "bench", "transfer", "--listen", "127.0.0.1:0", *map(str, SMALL), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=program.environment(),
        ) as receiver:
            self.addCleanup(receiver.kill)
            told = receiver.stdout.readline().decode()
            self.assertRegex(told, r"^listening at 127\.0\.0\.1:\d+\n$")
            done = transfer(GQA, "--text", TEXT, *SMALL, "--json", "--send-to", told.split()[-1])
            self.assertEqual(done.status, 0, done.err)
            self.check(done.json(), SMALL)
            self.assertEqual(receiver.wait(program.PATIENCE), 0, receiver.stderr.read())
            told = {figure["name"]: figure for figure in json.loads(receiver.stdout.read())["results"]}
            self.assertEqual(set(told), {f"transfer_{codec}_cpu" for codec in CODECS})
            for figure in told.values():
                self.assertGreater(figure["value"], 0)

    def test_over_several_connections(self):
        few = ("--tokens", 2048, "--layers", 8, "--rounds", 2, "--codecs", "none")
        off = ("--kv-shared-memory", "off", "--json")
        done = transfer(GQA, "--text", TEXT, *few, *off, "--kv-streams", 4)
        self.assertEqual(done.status, 0, done.err)
        self.assertRegex(done.json()["machine"], "over 4 TCP connections$")
        done = transfer(GQA, "--text", TEXT, *few, *off)
        self.assertNotIn("connections", done.json()["machine"])

    def test_a_receiver_that_expects_another_prompt_fails_both(self):
        with subprocess.Popen(
            [PROGRAM, "bench", "transfer", "--listen", "127.0.0.1:0", *map(str, ("--tokens", 64, *SMALL[2:]))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=program.environment(),
        ) as receiver:
            self.addCleanup(receiver.kill)
            address = receiver.stdout.readline().decode().split()[-1]
            done = transfer(GQA, "--text", TEXT, *SMALL, "--send-to", address)
            self.assert_refused(done, "100 tokens")
            self.assertEqual(receiver.wait(program.PATIENCE), 1)
            self.assertRegex(receiver.stderr.read().decode(), "100 tokens.* 64")

    def test_what_makes_no_sense_is_refused(self):
        self.assert_refused(transfer(GQA), "--text")
        self.assert_refused(transfer("--listen", "127.0.0.1:0", "--send-to", "127.0.0.1:1"), "two processes")
        self.assert_refused(transfer(GQA, "--text", TEXT, "--send-to", "127.0.0.1:0"), "--send-to")
        for address in ("127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1:-1"):
            self.assert_refused(transfer(GQA, "--text", TEXT, "--send-to", address), f"'{address}' is no HOST:PORT")
        self.assert_refused(transfer(GQA, "--text", TEXT, *SMALL, "--codecs", "none,zip"), "zip")
        self.assert_refused(transfer(GQA, "--text", "/no/such/file", *SMALL), "/no/such/file")


if __name__ == "__main__":
    unittest.main()
