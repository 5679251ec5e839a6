"""What bench/end_to_end.py makes of its variants.

    python3 -m unittest discover -s tests -p 'test_bench_variants.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench"))

import end_to_end  # noqa: E402


class Variants(unittest.TestCase):
    def test_a_codec_stands_behind_the_last_plus(self):
        for text, expected in {
            "bf16": ("bf16", "none"),
            "bf16+splitzip": ("bf16", "splitzip"),
            "zack:keep=0.5+splitzip": ("zack:keep=0.5", "splitzip"),
            "zack:keep=0.5+splitzip:channel": ("zack:keep=0.5", "splitzip:channel"),
            "zack:keep=0.5+hack:k=4,v=4": ("zack:keep=0.5+hack:k=4,v=4", "none"),
            "zack:keep=0.5,sink=1+hack:k=4,v=4+auto": ("zack:keep=0.5,sink=1+hack:k=4,v=4", "auto"),
        }.items():
            variant = end_to_end.Variant(text)
            self.assertEqual((variant.format, variant.codec), expected)
            self.assertRegex(variant.word, r"\A[a-z0-9_]+\Z")

    def test_the_codecs_are_those_of_the_program(self):
        header = (ROOT / "spec" / "frame.md").read_text(encoding="utf-8").split("## 5. Codecs")[1]
        for codec in end_to_end.CODECS:
            self.assertTrue(codec == "auto" or f"| `{codec}` |" in header, codec)


if __name__ == "__main__":
    unittest.main()
