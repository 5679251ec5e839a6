"""`kvlane bench codec` from the model to the figures, with sizes so small that no figure means anything."""
# SPDX-License-Identifier: Apache-2.0
import itertools
import unittest

import program
from program import GQA, ROOT, run

CODECS = ("splitzip", "splitzip_channel")
YARDSTICKS = ("zstd1", "zstd3", "lz4", "bytesplit_zstd1", "bytesplit_huffman", "bitshuffle_lz4")
TINY_SIZES = ("--tokens", 256, "--size", 1, "--repeats", 1)


def bench_codec(*flags):
    texts = ("--text", ROOT / "README.md", "--codebook-text", ROOT / "ARCHITECTURE.md")
    return run("bench", "codec", GQA, *texts, *TINY_SIZES, *flags)


@program.needs_program
class BenchCodec(program.ProgramTest):
    def test_figures(self):
        figures = self.figures_of(bench_codec("--json"), signs=(0, 1))
        for codec, tensor in itertools.product(CODECS, ("k", "v", "hidden")):
            whole = figures[f"codec_{codec}_ratio_{tensor}"]["value"]
            least = figures[f"codec_{codec}_ratio_{tensor}_least"]["value"]
            self.assertLessEqual(least, whole)
            self.assertGreater(least, {"splitzip": 1.3, "splitzip_channel": 1.42}[codec], tensor)
            self.assertLess(whole, 1.6)
        for codec in (*CODECS, *YARDSTICKS):
            for what in ("ratio", "encode", "decode"):
                self.assertGreater(figures[f"codec_frontier_{codec}_{what}"]["value"], 0)
        # 16-bit floats do not pay, and the codec knows.
        self.assertGreater(figures["codec_splitzip_fp16_ratio_k"]["value"], 0.99)
        self.assertLess(figures["codec_splitzip_fp16_ratio_k"]["value"], 1)
        self.assertGreater(figures["codec_splitzip_e5m2_ratio_k"]["value"], 1.08)
        self.assertLess(figures["codec_splitzip_escapes_k"]["value"], 0.01)

    def test_without_yardsticks_and_for_one_codec(self):
        done = bench_codec("--no-yardsticks", "--codecs", "splitzip:channel", "--cpu", "scalar")
        self.assertEqual(done.status, 0, done.err)
        self.assertIn("codec_splitzip_channel_encode_dram", done.out)
        for absent in ("zstd", "frontier", "e5m2", "codec_splitzip_encode"):
            self.assertNotIn(absent, done.out)

    def test_bad_flags_are_refused(self):
        self.assert_refused(bench_codec("--codecs", "gzip"), "gzip")
        self.assert_refused(bench_codec("--head-dim", 48), "48")
        self.assert_refused(run("bench", "codec", GQA, "--text", "/no/such/file"), "/no/such/file")


if __name__ == "__main__":
    unittest.main()
