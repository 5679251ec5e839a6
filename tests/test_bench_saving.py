"""bench/saving.py with the real program, briefly: everything is saved, and the figures fit each other.

    python3 -m unittest discover -s tests -p 'test_bench_saving.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import json
import subprocess
import sys
import unittest

from program import GQA, PATIENCE, PROGRAM, ROOT, ProgramTest, environment, needs_program, run


@needs_program
class SavingTest(ProgramTest):
    def saving(self, *arguments):
        return subprocess.run(
            [sys.executable, ROOT / "bench" / "saving.py", GQA, "--batch", "3", "--turns", "2", "--kv-memory", "64MiB",
             *arguments],
            capture_output=True, text=True, check=False, timeout=2 * PATIENCE,
            env=environment() | {"KVLANE_PROGRAM": str(PROGRAM)},
        )  # fmt: skip

    def test_forms(self):
        folder = self.folder()
        done = self.saving("--forms", "kv", "hidden", "--input-len", "100", "--output-len", "100", "--store", folder,
                           "--json", folder / "figures.json")  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line.split() for line in done.stdout.splitlines()]
        self.assertEqual([row[0] for row in rows[1:]], ["kv", "hidden"])
        report = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
        program = run("version", "--json").json()
        self.assertEqual((report["machine"], report["commit"]), (program["machine"], program["commit"]))
        self.assertTrue(report["command"].startswith("bench/saving.py "), report["command"])
        self.assertIn("--input-len 100", report["command"])
        self.assertNotIn("json", report["command"])
        results = report["results"]
        figures = {result["name"]: result for result in results}
        for form in ("kv", "hidden"):
            step = figures[f"saving_{form}_step"]
            self.assertGreater(step["value"], 0)
            self.assertAlmostEqual(step["ratio"], step["value"] / step["baseline"])
            cost = figures[f"saving_{form}_cost"]
            self.assertEqual(cost["met"], cost["value"] <= cost["goal"])
            self.assertEqual(figures[f"saving_{form}_not_saved"]["value"], 0)
        self.assertEqual([path.name for path in folder.iterdir()], ["figures.json"])

    def test_answers_that_do_not_overlap_are_no_measurement(self):
        done = self.saving("--forms", "kv", "--input-len", "900", "--output-len", "2", "--store", self.folder())
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("answers did not decode together", done.stderr)


if __name__ == "__main__":
    unittest.main()
