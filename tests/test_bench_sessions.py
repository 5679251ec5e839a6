"""bench/sessions.py with the real program: histories leave memory, come back, and answers are the same.

    python3 -m unittest discover -s tests -p 'test_bench_sessions.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import json
import subprocess
import sys
import unittest

from program import GQA, PATIENCE, PROGRAM, ROOT, ProgramTest, environment, needs_program


@needs_program
class SessionsTest(ProgramTest):
    def sessions(self, *arguments):
        """Ten sessions of three rounds, of which the last has 400 tokens or so."""
        self.files = self.folder()
        return subprocess.run(
            [sys.executable, ROOT / "bench" / "sessions.py", GQA, "--requests", "30", "--request-rate", "40",
             "--think-time", "0.7", "--prefix-len", "64", "--num-prefixes", "2", "--input-len", "100", "--output-len",
             "16", "--kv-memory", "2MiB", "--ideal-memory", "64MiB", "--store", self.files,
             "--json", self.files / "figures.json", *arguments],
            capture_output=True, text=True, check=False, timeout=4 * PATIENCE,
            env=environment() | {"KVLANE_PROGRAM": str(PROGRAM)},
        )  # fmt: skip

    def test_all_ways(self):
        ways = ["recompute", "memory", "kv+splitzip", "hidden", "hidden:int8"]
        done = self.sessions("--ways", *ways)
        self.assertEqual(done.returncode, 0, done.stderr)
        head, *rows = [line.split() for line in done.stdout.splitlines()]
        self.assertEqual(head[:2], ["TTFT,", "ms"])
        self.assertEqual([row[0] for row in rows], ways)
        results = json.loads((self.files / "figures.json").read_text(encoding="utf-8"))["results"]
        value = {result["name"]: result["value"] for result in results}
        for way in ("recompute", "memory", "kv_splitzip", "hidden", "hidden_int8"):
            for rounds in ("first", "later"):
                p50, p90, p99 = [value[f"sessions_{way}_{rounds}_ttft_p{percent}"] for percent in (50, 90, 99)]
                self.assertTrue(0 < p50 <= p90 <= p99, way)
            self.assertGreater(value[f"sessions_{way}_tpot_p50"], 0)
        for way in ("recompute", "memory"):
            self.assertEqual((value[f"sessions_{way}_store_hits"], value[f"sessions_{way}_bytes_read"]), (0, 0))
        self.assertEqual([value[f"sessions_{way}_found"] for way in ("recompute", "memory")], [0, 1])
        for way in ("kv_splitzip", "hidden", "hidden_int8"):
            self.assertGreater(value[f"sessions_{way}_store_hits"], 0)
            self.assertGreater(value[f"sessions_{way}_bytes_read"], 0)
            self.assertGreater(value[f"sessions_{way}_restore_mean"], 0)
        # Less is read of what is smaller.
        self.assertLess(value["sessions_hidden_int8_bytes_read"], value["sessions_hidden_bytes_read"])
        # Only what the program made is in the way, and that is gone.
        self.assertEqual([path.name for path in self.files.iterdir()], ["figures.json"])

    def test_a_way_that_did_not_do_it_fails(self):
        for arguments, sentence in (
            (("--ways", "kv", "--kv-memory", "64MiB"), "had not left memory"),
            (("--ways", "memory", "--ideal-memory", "2MiB"), "of the histories was found"),
            (("--ways", "recompute", "--rounds", "1"), "no round has a history"),
            (("--ways", "recompute", "--input-len", "900", "--kv-memory", "64MiB"), "do not fit the model's context"),
        ):
            done = self.sessions(*arguments)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(sentence, done.stderr)
            self.assertEqual(list(self.files.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
