"""`kvlane calibrate tables`: from a model and a text to a file that a reader of spec/kv_tables.md understands.

    python3 -m unittest discover -s tests -p 'test_program_tables.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import pathlib
import sys
import tempfile
import unittest

from program import GQA, ROOT, TINY, needs_program, run

sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "spec" / "decoder"))

import kv_tables  # noqa: E402

TEXT = ROOT / "README.md"
TOKENS = 1000


@needs_program
class CalibrateTables(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.folder = pathlib.Path(directory.name)
        cls.file = cls.folder / "tables.safetensors"
        cls.done = cls.calibrate(cls.file, "--json")

    @classmethod
    def calibrate(cls, out, *flags, text=TEXT, model=GQA, threads=1):
        given = ("--text", text, "--out", out, "--tokens", TOKENS, "--threads", threads)
        return run("calibrate", "tables", model, *given, *flags)

    def assert_refused(self, done, words):
        self.assertEqual((done.status, done.out), (1, ""))
        self.assertIn(words, done.err)
        self.assertEqual(done.err.count("\n"), 1, done.err)

    def test_the_file_holds_the_tables_of_both_formats(self):
        self.assertEqual(self.done.status, 0, self.done.err)
        summary = self.done.json()
        identity, tables = kv_tables.read(self.file.read_bytes())
        self.assertEqual(summary["model"], identity.hex())
        self.assertEqual(summary["tables"], len(tables))
        self.assertEqual(summary["bytes"], self.file.stat().st_size)
        self.assertEqual(summary["weights"], "gradients")
        for layer in range(summary["layers"]):
            for part in "kv":
                for name in ("o0.b2.signposts", "o1.b3.values", "o1.b4.signposts"):
                    table = tables[f"kvquant.layers.{layer}.{part}.{name}"]
                    self.assertEqual(sorted(table), list(table))
                # 15 complete blocks of 1,000 tokens, 7 anchors each.
                channels = len(tables[f"cachegen.layers.{layer}.{part}.deviation"])
                self.assertEqual(sum(tables[f"cachegen.layers.{layer}.{part}.bins16"]), 960 * channels)
                self.assertEqual(sum(tables[f"cachegen.layers.{layer}.{part}.anchor"]), 105 * channels)
                self.assertEqual(sum(tables[f"cachegen.layers.{layer}.{part}.delta"]), 855 * channels)
            low, high = (tables[f"kvquant.layers.{layer}.k.o1.{end}"] for end in ("low", "high"))
            self.assertTrue(all(a <= b for a, b in zip(low, high)))

    def test_the_same_text_gives_the_same_file(self):
        again = self.folder / "again"
        self.assertEqual(self.calibrate(again).status, 0)
        self.assertEqual(again.read_bytes(), self.file.read_bytes())

    def test_threads_change_nothing_and_weights_move_signposts_alone(self):
        threads = self.folder / "threads"
        self.assertEqual(self.calibrate(threads, threads=3).status, 0)
        self.assertEqual(threads.read_bytes(), self.file.read_bytes())
        alike = self.folder / "alike"
        self.assertEqual(self.calibrate(alike, "--weights", "none").status, 0)
        weighted, plain = (kv_tables.read(file.read_bytes())[1] for file in (self.file, alike))
        self.assertEqual(weighted.keys(), plain.keys())
        for name in plain:
            moved = name.startswith("kvquant.") and name.endswith((".signposts", ".values"))
            self.assertEqual(list(weighted[name]) != list(plain[name]), moved, name)

    def test_without_json_it_says_what_it_did(self):
        done = self.calibrate(self.folder / "said")
        said = r"\Awrote 240 tables for formats cachegen and kvquant to .*, from 1000 tokens in .* s\n\Z"
        self.assertRegex(done.out, said)
        self.assertEqual(done.err, "")

    def test_what_is_wrong_gets_one_sentence(self):
        short = self.folder / "short.txt"
        short.write_text("Not a block of tokens.")
        self.assert_refused(self.calibrate(self.folder / "out", text=short), "needs from 64 to 2^24 tokens")
        self.assert_refused(self.calibrate(self.folder / "out", text=self.folder / "none"), "none")
        refused = self.calibrate(self.folder / "out", "--weights", "values")
        self.assertEqual((refused.status, refused.out), (2, ""))
        self.assertIn("--weights: values not in {gradients,none}", refused.err)
        self.assertFalse((self.folder / "out").exists())

    def test_only_tables_of_the_same_model_are_written_over(self):
        out = self.folder / "text.txt"
        out.write_text("Something else. " * 500)
        self.assert_refused(self.calibrate(out, text=out), "text.txt is there already")
        self.assertEqual(out.read_text(), "Something else. " * 500)
        other = self.folder / "other"
        other.write_bytes(self.file.read_bytes())
        self.assert_refused(self.calibrate(other, model=TINY), "other is there already")
        self.assertEqual(self.calibrate(other).status, 0)
        self.assertEqual(other.read_bytes(), self.file.read_bytes())

    def test_help_has_an_example(self):
        self.assertIn("Example: kvlane calibrate tables", run("calibrate", "tables", "--help").out)


if __name__ == "__main__":
    unittest.main()
