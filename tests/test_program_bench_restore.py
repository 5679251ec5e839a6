"""`kvlane bench restore` on so little that no figure of speed means anything."""
# SPDX-License-Identifier: Apache-2.0
import unittest

import program
from program import GQA, TINY, run

PURE = ("tokens", "kv", "kv_splitzip", "hidden")


@program.needs_program
class BenchRestore(program.ProgramTest):
    def test_all_strategies_bring_the_sequence_back(self):
        for model in (TINY, GQA):
            folder = self.folder()
            flags = ("--dir", folder, "--tokens", 512, "--repeats", 1, "--json")
            done = run("bench", "restore", model, *flags, timeout=300)
            figures = self.figures_of(done)
            self.assertEqual(list(folder.iterdir()), [], "something was left behind")
            # At least one rate is one that any disk has.
            slow = "restore_512_slow_disk_"
            self.assertIn(slow + "read_rate", figures)
            if slow + "plan" not in figures:
                continue
            pure = min(figures[slow + name]["value"] for name in PURE)
            ratio = figures[slow + "plan_over_pure"]["value"]
            self.assertAlmostEqual(ratio, pure / figures[slow + "plan"]["value"], places=3)
            self.assertEqual("goal" in figures[slow + "plan_over_kv"], model == TINY)

    def test_what_is_wrong_is_one_sentence(self):
        for tokens in (100, 0, 1 << 20):
            done = run("bench", "restore", TINY, "--dir", self.folder(), "--tokens", tokens)
            self.assert_refused(done, f"not {tokens}")
        done = run("bench", "restore", TINY, "--dir", "/nowhere", "--tokens", 64)
        self.assert_refused(done, "/nowhere")


if __name__ == "__main__":
    unittest.main()
