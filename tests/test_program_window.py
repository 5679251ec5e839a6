"""Models whose layers all have a sliding window: `serve` with prompts that are longer than its KV memory.

    python3 -m unittest discover -s tests -p 'test_program_window.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import json
import unittest

from program import GQA, ProgramTest, call, complete, needs_program, run, text_of, wait_idle

WINDOW, CHUNK = 256, 128
# 255 tokens before one of a chunk's, wherever blocks begin.
BLOCKS = 7


@needs_program
class Window(ProgramTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        config = json.loads((GQA / "config.json").read_text())
        config |= {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": WINDOW,
            "max_position_embeddings": 8192,
        }
        folder = cls.class_folder()
        (folder / "config.json").write_text(json.dumps(config))
        cls.model = folder / "model"
        done = run("synth", "--config", folder / "config.json", "--layers", 2, "--out", cls.model, "--tokenizer", GQA)
        assert done.status == 0, done.err
        # 64 tokens of 2 layers, K and V of some heads, in BF16.
        cls.block = 64 * 2 * 2 * config["num_key_value_heads"] * config["head_dim"] * 2

    def serve(self, blocks, *flags):
        return self.server(
            "serve", self.model, "--kv-memory", blocks * self.block, "--max-num-batched-tokens", CHUNK, "--threads", 1,
            "--port", 0, *flags,
        )  # fmt: skip

    def answers(self, server, prompts):
        answers = [complete(server.url, prompt, 40, ignore_eos=True) for prompt in prompts]
        self.assertEqual([answer.status for answer in answers], [200] * len(answers))
        wait_idle(server.url)
        return [text_of(answer) for answer in answers]

    def test_a_prompt_may_be_longer_than_the_memory(self):
        prompts = [[3 + (i * i + seed) % 200 for i in range(4000)] for seed in range(2)]
        # The second time a prompt finds its last blocks.
        prompts += prompts
        narrow = self.serve(BLOCKS)
        wide = self.serve(400)
        self.assertEqual(self.answers(narrow, prompts), self.answers(wide, prompts))
        metrics = call(narrow.url, "/metrics").body.decode()
        self.assertIn('kvlane_kv_cache_usage_ratio{model_name="model"} 0', metrics)
        too_little = self.serve(BLOCKS - 1)
        answer = complete(too_little.url, prompts[0], 40)
        self.assert_error(answer, 400, f"need {BLOCKS} KV blocks, the whole KV memory has {BLOCKS - 1}")


if __name__ == "__main__":
    unittest.main()
