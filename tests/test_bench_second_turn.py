"""bench/second_turn.py with the real program: every way answers alike, and the store is what brings histories back.

    python3 -m unittest discover -s tests -p 'test_bench_second_turn.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import json
import subprocess
import sys
import unittest

from program import GQA, PATIENCE, PROGRAM, ROOT, ProgramTest, environment, needs_program


@needs_program
class SecondTurnTest(ProgramTest):
    def test_all_ways(self):
        folder = self.folder()
        figures = folder / "figures.json"
        done = subprocess.run(
            [sys.executable, ROOT / "bench" / "second_turn.py", GQA, "--history", "200", "--turn", "20",
             "--sessions", "2", "--forms", "kv+splitzip", "hidden:int8", "--kv-memory", "64MiB", "--store", folder,
             "--json", figures],
            capture_output=True, text=True, check=False, timeout=2 * PATIENCE,
            env=environment() | {"KVLANE_PROGRAM": str(PROGRAM)},
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line.split() for line in done.stdout.splitlines()]
        self.assertEqual([row[0] for row in rows], ["recompute", "memory", "kv+splitzip", "hidden:int8"])
        # Blocks of 64 tokens, of which the first turn has computed three.
        self.assertEqual([float(row[3]) for row in rows], [0, 0, 192, 192])
        results = json.loads(figures.read_text(encoding="utf-8"))["results"]
        names = [result["name"].removeprefix("turn_200_") for result in results]
        self.assertEqual(names, ["recompute", "memory", "kv_splitzip", "hidden_int8"])
        self.assertTrue(all(result["value"] > 0 for result in results))
        # Only what the program made is in the way, and that is gone.
        self.assertEqual(list(folder.iterdir()), [figures])


if __name__ == "__main__":
    unittest.main()
