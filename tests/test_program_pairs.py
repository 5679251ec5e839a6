"""Every KV format with everything else that could break it: it works, or is refused with the reason.

    python3 -m unittest discover -s tests -p 'test_program_pairs.py'

The formats are those that the program names, so a new one is tested as soon as it is there.

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import pathlib
import tempfile
import unittest

from program import GQA, ROOT, Server, complete, needs_program, run, text_of

TEXT = ROOT / "README.md"
PROMPT = TEXT.read_text(encoding="utf-8")[:1200]  # several blocks of 64 tokens
NEED_TABLES = ("cachegen", "kvquant")


@needs_program
class Pairs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.tables = pathlib.Path(directory.name) / "tables.safetensors"
        done = run("calibrate", "tables", GQA, "--text", TEXT, "--out", cls.tables, "--tokens", 1000, "--threads", 1)
        assert done.status == 0, done.err
        # Enough text to rotate a model by.
        text = pathlib.Path(directory.name) / "text.md"
        text.write_text("\n".join(path.read_text(encoding="utf-8") for path in (TEXT, *sorted(ROOT.glob("spec/*.md")))))
        cls.rotated = pathlib.Path(directory.name) / "rotated"
        done = run("calibrate", "zack", GQA, "--text", text, "--out", cls.rotated, "--tokens", 16384, timeout=300)
        assert done.status == 0, done.err
        cls.behind_zack = pathlib.Path(directory.name) / "behind_zack.safetensors"
        done = run("calibrate", "tables", cls.rotated, "--text", TEXT, "--out", cls.behind_zack, "--tokens", 1000,
                   "--for", "zack:keep=0.5+kvquant", "--threads", 1)  # fmt: skip
        assert done.status == 0, done.err
        cls.formats = [name for name in run("version", "--json").json()["kv_formats"].split(", ") if name != "bf16"]

    def model_of(self, name):
        return self.rotated if name.startswith("zack") else GQA

    def flags(self, name, memory="64MiB"):
        """The model's directory first."""
        tables = () if name.startswith("zack") else ("--kv-tables", self.tables)
        if "+kvquant" in name:
            tables = ("--kv-tables", self.behind_zack)
        return (self.model_of(name), "--kv-format", name, *tables, "--kv-memory", memory, "--threads", 1)

    def answer(self, name, *flags):
        done = run("generate", *self.flags(name), "--prompt", PROMPT, "--max-tokens", 24, "--ignore-eos", "--json",
                   "--max-num-seqs", 4, *flags)  # fmt: skip
        self.assertEqual(done.status, 0, done.err)
        return done.json()["text"]

    def assert_refused(self, done, words):
        self.assertEqual((done.status, done.out), (1, ""))
        self.assertIn(words, done.err)
        self.assertEqual(done.err.count("\n"), 1, done.err)

    def test_there_are_formats(self):
        self.assertGreaterEqual(len(self.formats), 12)
        for name in NEED_TABLES:
            self.assertIn(name, self.formats)

    def test_no_cut_of_the_prompt_changes_an_answer(self):
        # Chunks that end inside of groups and blocks, with and without rows beside sealed blocks.
        for name in self.formats:
            for window in ("", ":sink=1,recent=1"):
                with self.subTest(name + window):
                    whole = self.answer(name + window)
                    for chunk in (7, 65):
                        self.assertEqual(self.answer(name + window, "--max-num-batched-tokens", chunk), whole)

    def test_sharing_of_blocks_and_codecs_of_links_change_nothing_in_one_process(self):
        for name in self.formats:
            with self.subTest(name):
                answer = self.answer(name)
                self.assertEqual(self.answer(name, "--no-enable-prefix-caching"), answer)
                self.assertEqual(self.answer(name, "--kv-codec", "splitzip"), answer)

    def worker(self, role, name, *flags):
        server = Server(role, *self.flags(name), "--port", 0, *flags)
        self.addCleanup(server.close)
        return server

    def gateway(self, prefill, decode):
        server = Server("gateway", "--port", 0, "--prefill", prefill.url, "--decode", decode.url)
        self.addCleanup(server.close)
        return server

    def assert_they_travel(self, name, codec):
        with self.subTest(name):
            workers = [self.worker(role, name, "--kv-codec", codec) for role in ("prefill", "decode")]
            gateway = self.gateway(*workers)
            answer = complete(gateway.url, PROMPT, 24, ignore_eos=True)
            self.assertEqual(text_of(answer), self.answer(name))
            kv = answer.json()["kvlane"]["kv"]
            self.assertLess(kv["shipped_bytes"], kv["raw_bytes"])
            for server in (gateway, *workers):
                server.close()

    def test_sealed_slabs_travel_between_workers(self):
        # Rows of the open block and of the window go through the codec, and nothing changes an answer.
        for name in self.formats:
            for window, codec in (("", "none"), (":sink=1,recent=1", "splitzip")):
                self.assert_they_travel(name + window, codec)
        self.assert_they_travel("zack:keep=0.5,sink=1+kvquant:bits=3", "splitzip")

    def test_tables_of_other_widths_are_refused(self):
        flags = self.flags("zack:keep=0.75+kvquant")
        self.assert_refused(run("generate", *flags, "--prompt", "x"), "--for zack:keep=0.75+kvquant --out FILE")
        text = ("--text", TEXT, "--out", self.tables.with_name("other.safetensors"))
        done = run("calibrate", "tables", GQA, *text, "--for", "zack:keep=0.5+kvquant", "--tokens", 100)
        self.assert_refused(done, "kvlane calibrate zack")

    def test_workers_with_different_caches_are_refused_by_name(self):
        pairs = (
            ("int8", "kivi", "int8:sym=1", "kivi:bits=2,group=32"),
            ("bf16", "mxfp4:sink=1", "bf16", "mxfp4:sink=1"),
        )
        for prefill, decode, *names in pairs:
            with self.subTest(f"{prefill} and {decode}"):
                gateway = self.gateway(self.worker("prefill", prefill), self.worker("decode", decode))
                answer = complete(gateway.url, PROMPT, 4)
                self.assertEqual(answer.status, 502)
                for each in names:
                    self.assertIn("in format " + each, answer.error()["message"])

    def test_formats_that_need_tables_say_how_to_make_them(self):
        for name in NEED_TABLES:
            with self.subTest(name):
                self.assert_refused(
                    run("generate", GQA, "--prompt", "x", "--kv-format", name),
                    "kvlane calibrate zack" if name == "zack" else "kvlane calibrate tables",
                )

    def test_memory_that_is_too_small_for_rows_is_told(self):
        for name in self.formats:
            with self.subTest(name):
                self.assert_refused(
                    run("generate", *self.flags(name, "1MiB"), "--prompt", "x"), "bytes of KV memory at least"
                )

    def test_parameters_that_are_not_there_are_refused(self):
        for name in self.formats:
            with self.subTest(name):
                self.assert_refused(
                    run("generate", *self.flags(name + ":colour=2"), "--prompt", "x"), "has no parameter 'colour'"
                )


if __name__ == "__main__":
    unittest.main()
