"""Tests of tools/train/recall.py and needles.py: what is asked stands in the text, and facts for evaluation
are never trained. Skipped without the packages of tools/train/requirements.txt; torch is not needed."""
# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOLS = ROOT / "tools" / "train"
TOKENIZER = ROOT / "models" / "kvlane-tiny" / "tokenizer.json"
WORDS = "The old sailor went to the harbour and looked for his boat. It was not there, he said. "

try:
    import numpy as np
    import regex  # noqa: F401  (bpe.py needs it)
except ImportError:
    np = None
else:
    sys.path.insert(0, str(TOOLS))
    import bpe
    import needles
    import recall


@unittest.skipUnless(np, "numpy and regex are not installed")
class TrainRecall(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tokenizer = bpe.Tokenizer(TOKENIZER)
        cls.source = np.array(cls.tokenizer.encode(WORDS * 2000), dtype=np.uint16)

    def make(self, seed=3, for_evaluation=False):
        return recall.Recall(self.tokenizer, np.random.default_rng(seed), for_evaluation)

    def test_facts_of_evaluation_are_never_trained(self):
        for half in (False, True):
            maker = self.make(for_evaluation=half)
            for template in recall.TEMPLATES:
                for _ in range(200):
                    fact = maker.fact(template)
                    self.assertEqual(recall.is_for_evaluation(fact.key, fact.value), half)

    def test_packed_sequence_has_its_length_and_answers_stand_before(self):
        maker, answers = self.make(), 0
        for length in (513, 2049):
            for _ in range(20):
                ids, weights = maker.packed(self.source, length, bpe.END_OF_TEXT_ID)
                self.assertEqual((len(ids), len(weights)), (length, length))
                self.assertTrue(set(np.unique(weights)) <= {0, np.float32(0.2), 1, 3})
                answers += self.answers_that_stand_before(ids, weights)
        self.assertGreater(answers, 50)

    def answers_that_stand_before(self, ids, weights):
        marked = np.flatnonzero(weights == recall.ANSWER_WEIGHT)
        runs = np.split(marked, np.flatnonzero(np.diff(marked) > 1) + 1) if len(marked) else []
        for run in runs:
            episode = np.flatnonzero(ids[: run[0]] == bpe.END_OF_TEXT_ID)[-1]
            before, answer = self.tokenizer.decode(ids[episode + 1 : run[0]]), self.tokenizer.decode(ids[run])
            self.assertIn(answer, before)
        return len(runs)

    def test_needle_is_asked_where_it_says(self):
        maker = self.make(for_evaluation=True)
        for length in (400, 1500):
            ids, asked = needles.mixed_text(maker, self.source, length)
            self.assertEqual(len(asked), len(recall.TEMPLATES))
            self.assertLess(abs(len(ids) - length), 300)
            for one in asked:
                self.assertTrue((ids[one.at : one.at + len(one.answer)] == one.answer).all())
                told = self.tokenizer.decode(ids[: one.at - one.distance])
                last = told[told.rindex("\n") :]
                self.assertIn(self.tokenizer.decode(one.answer), last)

    def test_program_writes_prompts(self):
        with tempfile.TemporaryDirectory() as folder:
            filler, out = pathlib.Path(folder) / "filler.txt", pathlib.Path(folder) / "needles.jsonl"
            filler.write_text(WORDS * 2000, encoding="utf-8")
            arguments = [TOKENIZER, filler, out, "--lengths", "300", "--depths", "0", "1", "--repeats", "2"]
            subprocess.run([sys.executable, TOOLS / "needles.py", *arguments], check=True)
            lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        self.assertEqual(len(lines), len(recall.TEMPLATES) * 2 * 2)
        for line in lines:
            self.assertIn(line["answer"], line["prompt"])
            self.assertGreater(line["distance"], 200 if line["depth"] == 0 else 0)


if __name__ == "__main__":
    unittest.main()
