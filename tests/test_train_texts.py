"""Tests of tools/train/texts.py: no book or article is in two of training, evaluation and calibration."""
# SPDX-License-Identifier: Apache-2.0
import collections
import importlib.util
import lzma
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = ROOT / "tools" / "train" / "texts.py"
_spec = importlib.util.spec_from_file_location("texts", TEXTS)
texts = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(texts)

BOOKS, ARTICLES, STUBS = 250, 190, 40


def book(index):
    return f"\n\nBook {index}\nhas a hard   line break.\n\n\n\nAnd a second paragraph.\n"


def article(index):
    return f'<doc id="{index}" title="Article {index}">\nArticle {index}\n\n{"It is long. " * 100}\n</doc>\n'


def stub(index):
    return f'<doc id="s{index}" title="Stub {index}">\nStub {index}\n</doc>\n'


def write_corpora(folder):
    fiction, wikipedia = folder / "fiction.txt.xz", folder / "wikipedia.txt"
    with lzma.open(fiction, "wt", encoding="utf-8") as file:
        file.write("<|endoftext|>".join(book(i) for i in range(BOOKS)))
    entries = [article(i) + (stub(i) if i < STUBS else "") for i in range(ARTICLES)]
    wikipedia.write_text("".join(entries), encoding="utf-8")
    return fiction, wikipedia


class TrainTexts(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.folder = pathlib.Path(self.directory.name)
        self.fiction, self.wikipedia = write_corpora(self.folder)
        self.parts = collections.defaultdict(list)
        for kind, part, text in texts.documents(self.fiction, self.wikipedia):
            self.parts[kind, part].append(text)

    def of_kind(self, kind):
        return [self.parts[kind, part] for part in texts.PARTS]

    def test_parts_share_no_document(self):
        for kind, count in (("fiction", BOOKS), ("wikipedia", ARTICLES)):
            every = [text for part in self.of_kind(kind) for text in part]
            self.assertEqual(len(every), count)
            self.assertEqual(len(set(every)), count)

    def test_every_sixtieth_document_is_held_out_and_they_alternate(self):
        firsts = [[text.split("\n")[0].split(" has")[0] for text in part] for part in self.of_kind("fiction")]
        self.assertEqual(firsts[1], ["Book 0", "Book 120", "Book 240"])
        self.assertEqual(firsts[2], ["Book 60", "Book 180"])
        self.assertNotIn("Book 120", firsts[0])
        self.assertIn("Book 121", firsts[0])

    def test_stubs_are_left_out(self):
        self.assertFalse(any("Stub" in text for part in self.of_kind("wikipedia") for text in part))

    def test_paragraphs_are_joined(self):
        self.assertEqual(
            self.parts["fiction", "evaluation"][0], "Book 0 has a hard line break.\n\nAnd a second paragraph."
        )

    def test_program_writes_the_held_out_parts(self):
        out = self.folder / "out"
        arguments = ["--fiction", self.fiction, "--wikipedia", self.wikipedia, "--out", out]
        subprocess.run([sys.executable, TEXTS, *arguments], check=True, capture_output=True)
        names = {f"{kind}_{part}.txt" for kind in ("fiction", "wikipedia") for part in texts.PARTS[1:]}
        self.assertEqual({path.name for path in out.iterdir()}, names)
        for kind in ("fiction", "wikipedia"):
            for part in texts.PARTS[1:]:
                written = (out / f"{kind}_{part}.txt").read_text(encoding="utf-8")
                self.assertEqual(written.split(texts.BETWEEN_DOCUMENTS + "\n"), self.parts[kind, part])


if __name__ == "__main__":
    unittest.main()
