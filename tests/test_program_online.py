"""`--zack-online`: axes of each prompt's own K and V, and rows that are made again in every step.

    python3 -m unittest discover -s tests -p 'test_program_online.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import unittest

from program import GQA, ROOT, SMALL, ProgramTest, complete, needs_program, run, text_of, wait_idle

PROMPT = (ROOT / "docs" / "eval.md").read_text()[:1500]


@needs_program
class Online(ProgramTest):
    def generate(self, *flags):
        done = run("generate", GQA, "--prompt", PROMPT, "--max-tokens", 24, "--ignore-eos", "--threads", 1, "--json",
                   *flags)  # fmt: skip
        self.assertEqual(done.status, 0, done.err)
        return done.json()

    def test_generate_and_serve_say_the_same(self):
        whole = self.generate()
        answer = self.generate("--zack-online", 0.25)
        self.assertNotEqual(answer["text"], whole["text"])
        server = self.server("serve", GQA, *SMALL, "--port", 0, "--zack-online", 0.25)
        # The second one finds nothing of the first.
        for _ in range(2):
            self.assertEqual(text_of(complete(server.url, PROMPT, 24)).strip(), answer["text"].strip())
        wait_idle(server.url)

    def test_the_account_tells_what_it_took(self):
        for flags, there in (((), False), (("--zack-online", 0.5), True)):
            account = self.generate(*flags)["account"]
            for interval, part in (("prefill", "prefill_quantise"), ("decode", "decode_dequantise")):
                self.assertEqual(account[part] > 0, there, part)
                self.assertLess(account[part], account[interval])

    def test_what_cannot_be_is_said_at_once(self):
        online = ("--zack-online", 0.5)
        for command in ("up", "prefill", "decode"):
            self.assert_refused(run(command, GQA, "--port", 0, *online), "--zack-online is for one process")
        one = ("generate", GQA, "--prompt", "a", *online)
        for flags in (("--kv-format", "int8"), ("--kv-evict", "h2o:keep=0.5")):
            self.assert_refused(run(*one, *flags), "prompts have axes of their own in caches in bf16")
        stored = run(*one, "--store", self.folder() / "store", "--store-form", "kv")
        self.assert_refused(stored, "state store keeps blocks by their names")
        wrong = run("generate", GQA, "--prompt", "a", "--zack-online", 1.5)
        self.assertEqual(wrong.status, 2, wrong.err)
        self.assertIn("--zack-online", wrong.err)


if __name__ == "__main__":
    unittest.main()
