"""`kvlane calibrate zack`: a directory that computes the same with V rotated, and tables of rotations.

    python3 -m unittest discover -s tests -p 'test_program_zack.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import json
import math
import pathlib
import struct
import subprocess
import sys
import unittest

from program import (
    GQA, PROGRAM, ROOT, SMALL, ProgramTest, call, complete, environment, needs_program, run, wait_until,
)  # fmt: skip

sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "spec" / "decoder"))

import kv_tables  # noqa: E402
import slab_zack  # noqa: E402
from binary32 import from_bf16  # noqa: E402

TOKENS = 16384
LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 6, 4, 2, 64, 256  # of kvlane-tiny-gqa


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tensors_of(folder):
    """The bytes of each tensor of a directory, and what its header says: type and shape."""
    data = (folder / "model.safetensors").read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", data)
    header, body = json.loads(data[8 : 8 + header_bytes]), data[8 + header_bytes :]
    header.pop("__metadata__", None)
    return {
        name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])]) for name, entry in header.items()
    }


def matrix_of(tensor):
    """[rows][columns] of a tensor in BF16."""
    _, (rows, columns), data = tensor
    assert len(data) == 2 * rows * columns
    values = [from_bf16(bits) for (bits,) in struct.iter_unpack("<H", data)]
    return [values[i : i + columns] for i in range(0, len(values), columns)]


def matrix_in(table, head):
    """[d][d] of a head, of a table of rotations."""
    at = range(head * HEAD_DIM**2, (head + 1) * HEAD_DIM**2, HEAD_DIM)
    return [table[i : i + HEAD_DIM] for i in at]


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
        # Computes 16,384 tokens, or twice as many.
        return run(*cls.arguments(out, *flags, **fields), timeout=300)

    def test_writes_a_model_and_its_tables(self):
        self.assertEqual(self.done.status, 0, self.done.err)
        summary = self.done.json()
        identity, tables = kv_tables.read((self.out / "kvlane" / "zack.safetensors").read_bytes())
        self.assertEqual(summary["folded_model"], identity.hex())
        self.assertNotEqual(summary["model"], identity.hex())
        self.assertEqual(summary["tokens"], TOKENS)
        self.assertEqual(len(tables), 6 * LAYERS)
        for layer in range(LAYERS):
            for part in "kv":
                rotations = tables[f"zack.layers.{layer}.{part}.rotation"]
                self.assertEqual(len(rotations), KV_HEADS * HEAD_DIM**2)
                # Columns of the first head have length 1.
                for column in range(HEAD_DIM):
                    squares = sum(rotations[row * HEAD_DIM + column] ** 2 for row in range(HEAD_DIM))
                    self.assertAlmostEqual(squares, 1, delta=1e-5)
                errors = tables[f"zack.layers.{layer}.{part}.errors"]
                self.assertEqual(len(errors), KV_HEADS * 3 * HEAD_DIM // 16)
                self.assertTrue(all(error > 0 for error in errors))
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

    def test_attention_is_measured_with_its_widths(self):
        options = ("--tokens", 4096, "--groups", 1, "--size", 8, "--repeats", 1)
        done = run("bench", "attention", "--model", self.out, "--formats", "zack:keep=0.5", *options, "--json")
        self.assertEqual(done.status, 0, done.err)
        figures = {figure["name"]: figure["value"] for figure in done.json()["results"]}
        self.assertEqual(figures["attention_4096_bf16_bytes_per_token"], 4 * HEAD_DIM)
        # Layers come over and over, perhaps not all of them equally often.
        kept = run("inspect", self.out, "--json").json()["zack"]["keep=0.5"]["kept"]
        size = figures["attention_4096_zack_keep_0_5_bytes_per_token"]
        self.assertAlmostEqual(size / (4 * HEAD_DIM), kept, delta=0.1)

    def rotation(self, layer, part, head):
        """R, [d][d]."""
        _, tables = kv_tables.read((self.out / "kvlane" / "zack.safetensors").read_bytes())
        return matrix_in(tables[f"zack.layers.{layer}.{part}.rotation"], head)

    def test_rotations_are_orthogonal_with_signs_as_the_page_says(self):
        # An entry is at most 2^-25 off, and the magnitudes of a column add up to sqrt(d) at most.
        off = 2 * 2**-25 * math.sqrt(HEAD_DIM) * 1.001
        for layer, part, head in ((0, "k", 0), (0, "v", 1), (LAYERS - 1, "k", 1), (LAYERS - 1, "v", 0)):
            columns = list(zip(*self.rotation(layer, part, head)))
            for i, a in enumerate(columns):
                self.assertEqual(max(a), max(map(abs, a)))
                for j, b in enumerate(columns[: i + 1]):
                    self.assertAlmostEqual(sum(x * y for x, y in zip(a, b)), i == j, delta=off)

    def test_values_and_outputs_are_folded_and_nothing_else(self):
        before, after = tensors_of(GQA), tensors_of(self.out)
        self.assertEqual(list(before), list(after))
        folded = {
            f"model.layers.{layer}.self_attn.{name}_proj.weight" for layer in range(LAYERS) for name in ("v", "o")
        }
        for name, tensor in before.items():
            self.assertEqual(tensor[:2], after[name][:2], name)
            self.assertEqual(tensor[2] != after[name][2], name in folded, name)
        for layer, head in ((0, 1), (LAYERS - 1, 0)):
            rotation = self.rotation(layer, "v", head)
            names = [f"model.layers.{layer}.self_attn.{name}_proj.weight" for name in ("v", "o")]
            (v, v_folded), (o, o_folded) = ([matrix_of(side[name]) for side in (before, after)] for name in names)
            rows = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
            for column in (0, 1, HIDDEN // 2, HIDDEN - 1):
                own, found = ([row[column] for row in matrix[rows]] for matrix in (v, v_folded))
                self.assert_rotated(own, rotation, found)
            for query_head in range(head * HEADS // KV_HEADS, (head + 1) * HEADS // KV_HEADS):
                columns = slice(query_head * HEAD_DIM, (query_head + 1) * HEAD_DIM)
                for row in (0, 1, HIDDEN // 2, HIDDEN - 1):
                    self.assert_rotated(o[row][columns], rotation, o_folded[row][columns])

    def assert_rotated(self, values, rotation, found):
        """`found` is values R in BF16: 2^-8 of a result off, 2^-24 in binary32 before, and R is 2^-25 off here."""
        for column, x in zip(zip(*rotation), found):
            exact = sum(a * b for a, b in zip(values, column))
            off = (2**-8 + 2**-23) * abs(exact) + 2**-25 * sum(map(abs, values)) * 1.01
            self.assertAlmostEqual(x, exact, delta=off)

    def test_rotations_of_products_are_undone_by_those_of_queries_and_outputs(self):
        out = self.folder() / "product"
        done = self.calibrate(out, "--rotation", "product", "--json")
        self.assertEqual(done.status, 0, done.err)
        self.assertEqual((self.done.json()["rotation"], done.json()["rotation"]), ("stacked", "product"))
        _, tables = kv_tables.read((out / "kvlane" / "zack.safetensors").read_bytes())
        self.assertEqual(len(tables), 7 * LAYERS)
        for layer, head in ((0, 1), (LAYERS - 1, 0)):
            of_keys, of_queries = (
                matrix_in(tables[f"zack.layers.{layer}.k.{name}"], head) for name in ("rotation", "query_rotation")
            )
            # Each entry is 2^-24 of itself off.
            for i, a in enumerate(of_keys):
                for j, b in enumerate(of_queries):
                    off = 2**-23 * sum(abs(x * y) for x, y in zip(a, b)) * 1.01
                    self.assertLess(off, 2**-12)
                    self.assertAlmostEqual(sum(x * y for x, y in zip(a, b)), i == j, delta=off + 1e-9)
            # The output projection R' R^T is what it was, but for its rounding to BF16.
            name = f"model.layers.{layer}.self_attn.o_proj.weight"
            before, after = (matrix_of(tensors_of(folder)[name]) for folder in (GQA, out))
            of_values = matrix_in(tables[f"zack.layers.{layer}.v.rotation"], head)
            columns = slice(head * HEADS // KV_HEADS * HEAD_DIM, (head * HEADS // KV_HEADS + 1) * HEAD_DIM)
            for row in (0, HIDDEN - 1):
                for x, axis in zip(before[row][columns], of_values):
                    terms = [a * b for a, b in zip(after[row][columns], axis)]
                    off = (2**-8 + 2**-22) * sum(map(abs, terms)) + 1e-9
                    self.assertAlmostEqual(sum(terms), x, delta=off)
        self.assertEqual(run("inspect", out, "--json").json()["zack"]["rotation"], "product")
        answers = [
            run("generate", model, *flags, "--prompt", "Once upon a time", "--max-tokens", 8, "--temperature", 0)
            for model, flags in ((GQA, ()), (out, ()), (out, ("--kv-format", "zack:keep=1")))
        ]
        for answer in answers:
            self.assertEqual(answer.status, 0, answer.err)
            self.assertEqual(answer.out.split()[:4], answers[0].out.split()[:4])

    def test_the_configuration_names_the_tables(self):
        before, after = (json.loads((folder / "config.json").read_text()) for folder in (GQA, self.out))
        self.assertEqual(after.pop("kvlane"), {"zack": {"tables": "kvlane/zack.safetensors"}})
        self.assertEqual(before, after)

    def test_widths_keep_the_share(self):
        _, tables = kv_tables.read((self.out / "kvlane" / "zack.safetensors").read_bytes())
        for keep in (0.3, 0.5, 0.75):
            widths = slab_zack.widths(f"zack:keep={keep}", tables, (KV_HEADS, HEAD_DIM, LAYERS))
            kept = sum(sum(pair) for layer in widths for pair in layer) / (2 * LAYERS * KV_HEADS * HEAD_DIM)
            # Real tails are all different: one more plane of 16 would be too much.
            self.assertLessEqual(kept, keep)
            self.assertGreater(kept + 16 / (2 * LAYERS * KV_HEADS * HEAD_DIM), keep)

    def test_the_model_says_what_the_original_says(self):
        answers = [
            run("generate", model, "--prompt", "Once upon a time", "--max-tokens", 8, "--temperature", 0)
            for model in (GQA, self.out)
        ]
        for answer in answers:
            self.assertEqual(answer.status, 0, answer.err)
        self.assertEqual(answers[0].out.split()[:4], answers[1].out.split()[:4])

    def test_what_it_keeps_goes_through_codecs_between_workers(self):
        prompt = self.text.read_text()[:1200]
        model = (self.out, "--kv-format", "zack:keep=0.5,recent=1", *SMALL, "--port", 0)
        decode = self.server("decode", *model)
        # Alone, it is one process that does both.
        expected = complete(decode.url, prompt, 24, ignore_eos=True, return_token_ids=True).json()["choices"]
        shipped = {}
        for codec in ("none", "splitzip", "splitzip:channel", "auto"):
            prefill = self.server("prefill", *model, "--kv-codec", codec)
            ends = ("--prefill", prefill.url, "--decode", decode.url)
            gateway = self.server("gateway", *ends, "--port", 0)
            with self.subTest(codec):
                answer = complete(gateway.url, prompt, 24, ignore_eos=True, return_token_ids=True).json()
                self.assertEqual(answer["choices"], expected)
                kv = answer["kvlane"]["kv"]
                # Of 16 bits a value, whatever is kept of them.
                tokens = answer["usage"]["prompt_tokens"]
                self.assertEqual(kv["raw_bytes"], tokens * LAYERS * KV_HEADS * 2 * HEAD_DIM * 2)
                shipped[codec] = kv["shipped_bytes"]
                metrics = call(prefill.url, "/metrics").body.decode()
                self.assertRegex(metrics, rf"kvlane_transfer_shipped_bytes_total{{[^}}]*}} {shipped[codec]}\n")
            gateway.close()
            prefill.close()
        self.assertLess(shipped["splitzip"], shipped["none"] / 1.25)
        self.assertLess(shipped["splitzip:channel"], shipped["none"] / 1.25)
        self.assertLessEqual(shipped["auto"], shipped["none"])

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
        self.assertEqual(self.calibrate(out, "--rotation", "oblique").status, 2)
        self.assert_refused(self.calibrate(out, "--rotation", "product", "--balance"), "--rotation stacked")

    def test_tables_belong_to_the_folded_model_alone(self):
        tables = self.out / "kvlane" / "zack.safetensors"
        done = run("eval", GQA, "--text", self.text, "--formats", "zack:keep=0.5", "--kv-tables", tables)
        self.assert_refused(done, "belong to another model")

    def test_help_has_an_example(self):
        self.assertIn("Example: kvlane calibrate zack", run("calibrate", "zack", "--help").out)


if __name__ == "__main__":
    unittest.main()
