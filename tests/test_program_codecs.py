"""Codecs in the path: calibration, codebooks from a file, and `--kv-codec auto`, with the real program."""
# SPDX-License-Identifier: Apache-2.0
import json
import re
import unittest

import program
from program import GQA, ROOT, SMALL, TINY, call, complete, run, text_of

LONG_PROMPT = "The old house stood on the hill, and nobody had lived there for years. " * 8
SPEED_WINDOW_BYTES = 1 << 18  # kSpeedWindowBytesMin: a link that carried less at a time has no speed
# The bundled models have read English only.
GERMAN = (
    "Über die alte Brücke ging jeden Morgen ein Fährmann, den niemand grüßte; er zählte die Schiffe, "
    "schrieb ihre Namen in ein Büchlein und schwieg, bis es Abend wurde. "
)
TEXTS = {"prose": ROOT / "README.md", "code": ROOT / "src" / "engine" / "engine_step.cpp"}


def calibrate(model, text, out, *flags):
    return run("calibrate", "codebook", model, "--text", text, "--out", out, "--tokens", 2000, "--threads", 1, *flags)


def metric(url, name):
    """The sum of a metric's samples; 0 when there is none."""
    text = call(url, "/metrics").body.decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))


@program.needs_program
class Calibration(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        german = cls.class_folder() / "german.txt"
        german.write_text(GERMAN * 40)
        texts = {"german": german} | TEXTS
        cls.files = {name: cls.class_folder() / f"{name}.json" for name in texts}
        for name, text in texts.items():
            done = calibrate(GQA, text, cls.files[name], "--json")
            assert done.status == 0, done.err
            cls.summary = done.json()

    def test_file_and_summary_say_the_same(self):
        written = json.loads(self.files["code"].read_text())
        self.assertEqual((written["kvlane_codebook"], written["element_type"], written["tokens"]), (1, "bf16", 2000))
        self.assertEqual(len(written["layers"]), 6)
        for part in ("k", "v"):
            covered = [layer[part]["coverage"] for layer in written["layers"]]
            self.assertEqual(self.summary["coverage"][part]["lowest"], min(covered))
            self.assertAlmostEqual(self.summary["coverage"][part]["mean"], sum(covered) / 6)
            self.assertGreater(min(covered), 0.99)
            for layer in written["layers"]:
                exponents = layer[part]["exponents"]
                self.assertEqual(exponents, sorted(set(exponents)))
                self.assertEqual(len(exponents), 16)
        self.assertEqual(self.summary["model"], written["model"])

    def test_codebooks_of_another_domain_or_language_hold_too(self):
        """What prose teaches about exponents is nearly right for code and German: windows move by one or two."""
        layers = {name: json.loads(file.read_text())["layers"] for name, file in self.files.items()}
        for name in ("code", "german"):
            for one, other in zip(layers["prose"], layers[name], strict=True):
                for part in ("k", "v"):
                    shared = set(one[part]["exponents"]) & set(other[part]["exponents"])
                    self.assertGreaterEqual(len(shared), 14, name)

    def test_worker_with_codebooks_counts_nothing_and_answers_the_same(self):
        """And what was calibrated on English prose serves German without another count."""
        decode = self.server("decode", GQA, "--port", 0, *SMALL)
        prompts = (LONG_PROMPT, GERMAN * 2)
        expected = [text_of(complete(decode.url, prompt, 20)) for prompt in prompts]
        shipped = {}
        for name, flags in (("none", ()), ("file", ("--kv-codebook", self.files["prose"]))):
            prefill = self.server("prefill", GQA, "--port", 0, *SMALL, "--kv-codec", "splitzip", *flags)
            gateway = self.server("gateway", "--prefill", prefill.url, "--decode", decode.url, "--port", 0)
            for i in (0, 0, 1):
                answer = complete(gateway.url, prompts[i], 20)
                self.assertEqual(text_of(answer), expected[i])
                kv = answer.json()["kvlane"]["kv"]
                self.assertEqual(kv["codec"], "splitzip")
                shipped[name, i] = kv["shipped_bytes"]
            counted = metric(prefill.url, "kvlane_codebooks_counted_total")
            self.assertEqual(counted, 0 if flags else 12, "K and V of 6 layers, once")
            self.assertEqual(metric(prefill.url, "kvlane_codebooks_replaced_total"), 0)
            self.assertEqual(metric(prefill.url, "kvlane_transfers_total"), 3)
        for i in (0, 1):
            self.assertLess(abs(shipped["file", i] - shipped["none", i]), 0.01 * shipped["none", i])

    def test_files_that_do_not_fit_are_refused(self):
        broken = self.folder() / "broken.json"
        broken.write_text(self.files["prose"].read_text()[:-5])
        cases = (
            (TINY, self.files["prose"], "another model"),
            (GQA, "/no/such/file", "/no/such/file"),
            (GQA, broken, "broken.json: it is not valid JSON"),
        )
        for model, file, message in cases:
            answer = run("generate", model, *SMALL, "--prompt", "Hello", "--max-tokens", 1, "--kv-codebook", file)
            self.assert_refused(answer, message)

    def test_texts_that_are_none_are_refused(self):
        folder = self.folder()
        empty = folder / "empty"
        empty.write_bytes(b"")
        self.assert_refused(calibrate(GQA, empty, folder / "out"), "holds no text")
        self.assert_refused(calibrate(GQA, folder / "missing", folder / "out"), "missing")
        self.assert_refused(calibrate(folder, TEXTS["prose"], folder / "out"), str(folder))
        self.assert_refused(calibrate(GQA, TEXTS["prose"], folder / "no" / "out"), "no")
        self.assertFalse((folder / "out").exists())
        text = folder / "text"
        text.write_text(GERMAN * 40)
        self.assert_refused(calibrate(GQA, text, text), "text is there already")
        self.assertEqual(text.read_text(), GERMAN * 40)
        again = folder / "again"
        again.write_bytes(self.files["prose"].read_bytes())
        self.assertEqual(calibrate(GQA, TEXTS["prose"], again).status, 0)


@program.needs_program
class Auto(program.ProgramTest):
    def test_links_that_nobody_waited_for_get_no_codec(self):
        """So little KV tells nothing about a link's speed, however late a busy machine's receiver reads it."""
        up = self.server("up", GQA, "--port", 0, "--kv-codec", "auto", *SMALL)
        for _ in range(3):
            kv = complete(up.url, LONG_PROMPT[:200], 4).json()["kvlane"]["kv"]
            self.assertLess(kv["raw_bytes"], SPEED_WINDOW_BYTES)
            self.assertEqual(kv["codec"], "none")

    def test_one_process_ships_nothing(self):
        serve = self.server("serve", GQA, "--port", 0, "--kv-codec", "auto", *SMALL)
        self.assertIsNone(complete(serve.url, LONG_PROMPT, 4).json()["kvlane"]["kv"]["codec"])


if __name__ == "__main__":
    unittest.main()
