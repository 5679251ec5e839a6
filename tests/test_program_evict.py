"""`--kv-evict`: caches that keep some tokens of each prompt only, in `generate`, `serve` and `eval`.

    python3 -m unittest discover -s tests -p 'test_program_evict.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import unittest

from program import GQA, ROOT, SMALL, ProgramTest, complete, needs_program, run, text_of, wait_idle

TEXT = (ROOT / "docs" / "eval.md").read_text()
PROMPT = TEXT[:1500]


@needs_program
class Evict(ProgramTest):
    def generate(self, *flags):
        done = run("generate", GQA, "--prompt", PROMPT, "--max-tokens", 24, "--temperature", 0, "--threads", 1, *flags)
        self.assertEqual(done.status, 0, done.err)
        return done.out

    def test_generate_and_serve_say_the_same(self):
        whole = self.generate()
        for rule in ("h2o:keep=0.2", "keyformer:keep=0.2"):
            with self.subTest(rule):
                answer = self.generate("--kv-evict", rule)
                self.assertNotEqual(answer, whole)
                server = self.server("serve", GQA, *SMALL, "--port", 0, "--kv-evict", rule)
                # The second one finds nothing of the first.
                for _ in range(2):
                    text = text_of(complete(server.url, PROMPT, 24))
                    self.assertEqual(text.strip(), answer.strip())
                wait_idle(server.url)

    def test_what_is_asked_for_is_all_that_memory_has_to_hold(self):
        # 64 blocks of 64 tokens of 6 layers, 2 KV heads and 64 dimensions, in BF16.
        memory = 64 * 64 * 6 * 2 * 2 * 64 * 2
        server = self.server(
            "serve", GQA, "--kv-memory", memory, "--threads", 1, "--port", 0, "--kv-evict", "h2o:keep=0.1"
        )
        answers = [complete(server.url, PROMPT + str(i), 8) for i in range(6)]
        self.assertEqual([answer.status for answer in answers], [200] * 6)
        wait_idle(server.url)

    def test_eval_measures_it(self):
        text = self.folder() / "text"
        text.write_text(TEXT)
        done = run(
            "eval", GQA, "--text", text, "--formats", "h2o:keep=0.5", "--tasks", "text", "--tokens", 1024, "--context",
            256, "--stride", 128, "--json",
        )  # fmt: skip
        self.assertEqual(done.status, 0, done.err)
        self.assertIn('"h2o:keep=0.5,recent=0.5"', done.out)

    def test_what_cannot_be_is_said_at_once(self):
        rule = ("--kv-evict", "h2o:keep=0.5")
        for command in ("up", "prefill", "decode"):
            done = run(command, GQA, "--port", 0, *rule)
            self.assert_refused(done, "--kv-evict is for one process")
        for wrong, sentence in (
            ("lru", "there is no eviction 'lru'; known are h2o, keyformer"),
            ("h2o:keep=0", "eviction 'h2o': keep is a share above 0"),
            ("h2o:tau=1", "eviction 'h2o' has no parameter 'tau'"),
        ):
            self.assert_refused(run("generate", GQA, "--prompt", "a", "--kv-evict", wrong), sentence)
        coded = run("generate", GQA, "--prompt", "a", "--kv-format", "int8", *rule)
        self.assert_refused(coded, "tokens can be evicted from caches in bf16 and zack")


if __name__ == "__main__":
    unittest.main()
