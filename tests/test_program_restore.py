"""`kvlane profile` and `kvlane plan restore`: measured once, planned from.

    python3 -m unittest discover -s tests -p 'test_program_restore.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib
import sys
import tempfile
import unittest

from program import TINY, needs_program, run

sys.dont_write_bytecode = True
QUICK = ("--tokens-max", 64, "--repeats", 1, "--threads", 1)


@needs_program
class Restore(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.folder = pathlib.Path(directory.name)
        cls.file = cls.folder / "profiles.json"
        cls.done = run("profile", TINY, "--out", cls.file, *QUICK)

    def plan(self, *flags):
        return run("plan", "restore", TINY, "--tokens", 500, *QUICK, *flags)

    def assert_refused(self, done, words, status=1):
        self.assertEqual((done.status, done.out), (status, ""))
        self.assertIn(words, done.err)
        self.assertEqual(done.err.count("\n"), 1, done.err)

    def test_a_profile_is_measured_once(self):
        self.assertEqual(self.done.status, 0, self.done.err)
        self.assertIn("prefill of 64", self.done.out)
        self.assertIn(f"written to {self.file}", self.done.out)
        before = self.file.read_bytes()
        again = run("profile", TINY, "--out", self.file, *QUICK)
        self.assertIn("measured before", again.out)
        self.assertEqual(self.file.read_bytes(), before)
        copy = self.folder / "copy.json"
        copy.write_bytes(before)
        shown = run("profile", TINY, "--out", copy, "--force", "--json", *QUICK).json()
        self.assertEqual(shown, json.loads(copy.read_text()))
        self.assertEqual(len(shown["profiles"]), 1)
        other = run("profile", TINY, "--out", copy, "--kv-format", "int8", "--json", *QUICK).json()
        self.assertRegex(other["profiles"][0]["forms"][0]["name"], "^int8")
        self.assertEqual(len(json.loads(copy.read_text())["profiles"]), 2)

    def test_a_plan_covers_all_layers_and_loses_little_to_a_single_source(self):
        for rate in (0.001, 1, 1000):
            told = self.plan("--profile", self.file, "--read-rate", rate, "--lossy", "--json").json()
            first = 0
            for part in told["plan"]["layers"]:
                self.assertEqual(part["first"], first)
                first += part["layers"]
            self.assertEqual(first, 6)
            self.assertEqual(
                set(told["pure"]), {"tokens", "kv", "kv+splitzip", "kv+splitzip:channel", "hidden", "hidden:int8"}
            )
            for pure in told["pure"].values():
                self.assertLessEqual(told["plan"]["seconds"], 1.1 * pure["seconds"])
            self.assertEqual(told["read_rate"], rate * 1e9)
            self.assertIn(told["plan"]["limited_by"], ("reading", "computing"))
        exact = self.plan("--profile", self.file, "--read-rate", 1, "--json").json()
        self.assertNotIn("hidden:int8", exact["pure"])
        # Reading a byte takes forever: nothing is read.
        slow = self.plan("--profile", self.file, "--read-rate", 0.000001, "--json").json()
        self.assertEqual(slow["plan"]["layers"], [{"from": "tokens", "first": 0, "layers": 6}])
        # Reading takes no time: nothing is computed but where that is as fast.
        fast = self.plan("--profile", self.file, "--read-rate", 100000, "--json").json()
        self.assertLess(fast["plan"]["seconds"], 0.2 * fast["pure"]["tokens"]["seconds"])

    def test_a_plan_for_people(self):
        shown = self.plan("--profile", self.file, "--read-rate", 1).out
        self.assertIn("plan: layers 0", shown)
        self.assertIn("limited by", shown)

    def test_a_directory_is_measured_where_the_profile_lacks_it(self):
        file = self.folder / "with_directory.json"
        told = self.plan("--profile", file, "--dir", self.folder, "--json").json()
        self.assertGreater(told["read_rate"], 0)
        profile = json.loads(file.read_text())["profiles"][0]
        self.assertEqual(profile["directories"], [{"path": str(self.folder), "read_rate": told["read_rate"]}])
        self.assertEqual(list(self.folder.glob("kvlane-read-rate*")), [])

    def test_what_is_missing_or_wrong_is_said(self):
        self.assert_refused(self.plan(), "--read-rate, or a --dir")
        self.assert_refused(self.plan("--profile", self.file), "without a directory")
        self.assert_refused(self.plan("--dir", "/nonexistent"), "/nonexistent")
        self.assert_refused(self.plan("--read-rate", "nan"), "--read-rate", status=2)
        bad = self.folder / "bad.json"
        bad.write_text("{}")
        self.assert_refused(self.plan("--profile", bad, "--read-rate", 1), "no file of profiles")
        self.assert_refused(run("profile", TINY, "--out", bad, *QUICK), "no file of profiles")
        self.assert_refused(run("profile", TINY), "--out is required", status=2)
        self.assertIn("Example: kvlane plan restore", run("plan", "restore", "--help").out)
        self.assertIn("Example: kvlane profile", run("profile", "--help").out)


if __name__ == "__main__":
    unittest.main()
