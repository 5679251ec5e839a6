"""`kvlane calibrate zack`: a directory that computes the same with V rotated, and tables of rotations.

    python3 -m unittest discover -s tests -p 'test_program_zack.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import json
import math
import pathlib
import subprocess
import sys
import unittest

from program import GQA, PROGRAM, ROOT, ProgramTest, environment, needs_program, run, wait_until

sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "spec" / "decoder"))

import kv_tables  # noqa: E402

TOKENS = 16384
LAYERS, KV_HEADS, HEAD_DIM = 6, 2, 64  # of kvlane-tiny-gqa


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@needs_program
class CalibrateZack(ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.shared = cls.class_folder()
        cls.text = cls.shared / "text"
        pages = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "spec").glob("*.md")), ROOT / "README.md"]
        cls.text.write_text("\n".join(page.read_text() for page in pages))
        cls.out = cls.shared / "out"
        cls.report = cls.shared / "report.json"
        cls.done = cls.calibrate(cls.out, "--report", cls.report, "--other-text", cls.text, "--json")

    @classmethod
    def arguments(cls, out, *flags, text=None, model=GQA, tokens=TOKENS):
        text = text or cls.text
        return ("calibrate", "zack", model, "--text", text, "--out", out, "--tokens", tokens, *flags)

    @classmethod
    def calibrate(cls, out, *flags, **fields):
        return run(*cls.arguments(out, *flags, **fields))

    def test_writes_a_model_and_its_tables(self):
        self.assertEqual(self.done.status, 0, self.done.err)
        summary = self.done.json()
        identity, tables = kv_tables.read((self.out / "kvlane" / "zack.safetensors").read_bytes())
        self.assertEqual(summary["folded_model"], identity.hex())
        self.assertNotEqual(summary["model"], identity.hex())
        self.assertEqual(summary["tokens"], TOKENS)
        self.assertEqual(len(tables), 4 * LAYERS)
        for layer in range(LAYERS):
            for part in "kv":
                rotations = tables[f"zack.layers.{layer}.{part}.rotation"]
                self.assertEqual(len(rotations), KV_HEADS * HEAD_DIM**2)
                # Columns of the first head have length 1.
                for column in range(HEAD_DIM):
                    squares = sum(rotations[row * HEAD_DIM + column] ** 2 for row in range(HEAD_DIM))
                    self.assertAlmostEqual(squares, 1, delta=1e-5)
                values = tables[f"zack.layers.{layer}.{part}.singular_values"]
                for head in range(KV_HEADS):
                    own = values[head * HEAD_DIM : (head + 1) * HEAD_DIM]
                    self.assertEqual(sorted(own, reverse=True), list(own))
        inspected = run("inspect", self.out, "--json")
        self.assertEqual(inspected.status, 0, inspected.err)
        rates = inspected.json()["zack"]
        self.assertLessEqual(rates["keep=0.5"]["kept"], 0.5)
        self.assertLess(rates["keep=0.75"]["threshold"], rates["keep=0.5"]["threshold"])
        shares = [step["share"] for step in rates["steps"]]
        self.assertEqual(sorted(set(shares), reverse=True), shares)
        self.assertEqual(shares[-1], 16 / HEAD_DIM)
        self.assertNotIn("steps", run("inspect", self.out).out)
        self.assertFalse(pathlib.Path(f"{self.out}.partial").exists())
        self.assertFalse(pathlib.Path(f"{self.out}.other.partial").exists())

    def test_the_model_says_what_the_original_says(self):
        answers = [
            run("generate", model, "--prompt", "Once upon a time", "--max-tokens", 8, "--temperature", 0)
            for model in (GQA, self.out)
        ]
        for answer in answers:
            self.assertEqual(answer.status, 0, answer.err)
        self.assertEqual(answers[0].out.split()[:4], answers[1].out.split()[:4])

    def test_the_report_has_the_studies(self):
        report = json.loads(self.report.read_text())
        self.assertEqual(len(report["layers"]), LAYERS)
        for layer in report["layers"]:
            for stack in ("k", "v", "qk", "vw"):
                spectrum = layer["spectra"][stack]
                self.assertEqual(len(spectrum), HEAD_DIM)
                self.assertEqual(sorted(spectrum, reverse=True), spectrum)
                self.assertAlmostEqual(spectrum[0], 1)
                self.assertGreaterEqual(layer["largest"][stack]["max_over_min"], 1)
        self.assertEqual([entry["tokens"] for entry in report["fewer_tokens"]], [1024, 2048, 4096, 8192])
        for pair in ("qk", "vw"):
            distances = [entry[pair]["subspace"] for entry in report["fewer_tokens"]]
            self.assertEqual(sorted(distances, reverse=True), distances)
            self.assertTrue(all(0 < distance < 1 for distance in distances))
            # The other text was the same one.
            self.assertEqual(report["other_text"][pair]["subspace"], 0)
            self.assertLess(report["other_text"][pair]["magnitude"], 1 / math.sqrt(HEAD_DIM))

    def test_goes_on_where_it_was_killed_to_the_same_bytes(self):
        out = self.folder() / "killed"
        state = pathlib.Path(f"{out}.partial")
        arguments = [str(argument) for argument in self.arguments(out)]
        process = subprocess.Popen([PROGRAM, *arguments], stdout=subprocess.DEVNULL, env=environment())
        wait_until(lambda: state.exists() or process.poll() is not None, "a state is saved")
        process.kill()
        process.wait()
        self.assertTrue(state.exists())
        self.assertFalse(out.exists())
        # The state of another text is not taken.
        other = self.calibrate(out, tokens=TOKENS + 1)
        self.assert_refused(other, "over another text or number of tokens; delete it to begin anew")
        again = self.calibrate(out)
        self.assertEqual(again.status, 0, again.err)
        self.assertRegex(again.out, r"\Awrote .* with V rotated to .*, from 16384 tokens in .* s\n\Z")
        self.assertEqual(files_of(out), files_of(self.out))
        self.assertEqual(list(out.parent.iterdir()), [out])

    def test_what_is_wrong_gets_one_sentence(self):
        folder = self.folder()
        out = folder / "out"
        self.assert_refused(self.calibrate(out, tokens=1000), "--tokens is 1000, at least 16384 are needed")
        short = folder / "short"
        short.write_text("Too short. " * 100)
        self.assert_refused(self.calibrate(out, text=short), "tokens, at least 16384 are needed")
        self.assert_refused(self.calibrate(self.out), "is there already")
        self.assert_refused(self.calibrate(folder / "none" / "out"), "there is no directory")
        pathlib.Path(f"{out}.partial").write_text("something else")
        self.assert_refused(self.calibrate(out), "no complete state of a calibration; delete it")
        self.assertFalse(out.exists())
        self.assertEqual(self.calibrate(out, "--other-text", short).status, 2)

    def test_tables_belong_to_the_folded_model_alone(self):
        tables = self.out / "kvlane" / "zack.safetensors"
        done = run("calibrate", "tables", GQA, "--text", self.text, "--out", "none", "--weights", tables)
        self.assert_refused(done, "belong to another model")

    def test_help_has_an_example(self):
        self.assertIn("Example: kvlane calibrate zack", run("calibrate", "zack", "--help").out)


if __name__ == "__main__":
    unittest.main()
