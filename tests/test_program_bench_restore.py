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

    def test_splits_by_tokens_bring_it_back_too(self):
        flags = ("--dir", self.folder(), "--tokens", 512, "--repeats", 1, "--ablations", "--json")
        figures = self.figures_of(run("bench", "restore", TINY, *flags, timeout=300), signs=(0, 1))
        slow = "restore_512_slow_disk_"
        if slow + "plan" not in figures:
            return  # no disk is so slow
        times = [figures[slow + name]["value"] for name in ("layerwise", "tokenwise")]
        self.assertGreater(min(times), 0)
        ratio = figures[slow + "layerwise_over_tokenwise"]["value"]
        self.assertAlmostEqual(ratio, times[1] / times[0], places=3)
        exact, rounded = (figures[slow + name + "expected"]["value"] for name in ("tokenwise_exact_", "tokenwise_"))
        self.assertLessEqual(exact, rounded)
        self.assertEqual(figures[slow + "tokenwise_hidden_tokens"]["value"] % 64, 0)

    def test_what_is_wrong_is_one_sentence(self):
        for tokens in (100, 0, 1 << 20):
            done = run("bench", "restore", TINY, "--dir", self.folder(), "--tokens", tokens)
            self.assert_refused(done, f"not {tokens}")
        done = run("bench", "restore", TINY, "--dir", "/nowhere", "--tokens", 64)
        self.assert_refused(done, "/nowhere")


if __name__ == "__main__":
    unittest.main()
