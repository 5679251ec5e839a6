"""`kvlane bench attention` with caches so small that no figure of speed means anything."""
# SPDX-License-Identifier: Apache-2.0
import itertools
import unittest

import program
from program import run

# Name of the figures: bytes of a token of 128 channels, metadata included.
BYTES = {
    "bf16": 512, "fp8_e4m3": 256 + 1 / 32, "mxfp8_e5m2": 264, "mxfp6_e3m2": 200, "mxfp4": 136, "int8_sym_1": 260,
    "int4_sym_0": 136, "kivi_bits_2_group_64": 80, "kivi_bits_4_group_32": 160,
    "hack_k_2_v_2": 76, "hack_k_4_v_4_p_64": 144, "hack_k_2_v_2_compute_bf16": 76,
    "hack_k_2_v_2_p_32_compute_complete": 96,  # sums of codes do not travel
}  # fmt: skip
FORMATS = (
    "fp8_e4m3,mxfp8_e5m2,mxfp6_e3m2,mxfp4,int8,int4,kivi:bits=2,group=64,kivi:bits=4,hack,hack:k=4,v=4,p=64,"
    "hack:compute=bf16,hack:p=32,compute=complete"
)
TINY = ("--tokens", "4096", "--kv-heads", 1, "--size", 1, "--repeats", 1)


@program.needs_program
class BenchAttention(program.ProgramTest):
    def test_figures(self):
        done = run("bench", "attention", "--formats", FORMATS, "--groups", "1,4", *TINY, "--json")
        figures = self.figures_of(done)
        for name, size in BYTES.items():
            self.assertEqual(figures[f"attention_4096_{name}_bytes_per_token"]["value"], size, name)
        for name, group in itertools.product(BYTES, (1, 4)):
            self.assertEqual("ratio" in figures[f"attention_4096_{name}_group{group}"], name != "bf16")
        self.assertEqual(len(figures), 3 * len(BYTES))

    def test_calibrated_formats_are_calibrated_on_the_sample(self):
        # Bytes a token at most: 4 bits and 1 % of outliers; symbols of at most 31 and of 63 levels, coded.
        most = {
            "kvquant_bits_4_outliers_1_room_slab": 150,
            "zack_keep_0_5_kvquant_bits_3": 80,
            "cachegen_form_code_level_2": 128,
            "cachegen_form_paper": 160,
        }  # fmt: skip
        # Several layers, as some of what they have differs by layer.
        options = (*TINY[:-4], "--size", 8, "--repeats", 1)
        formats = "kvquant,zack:keep=0.5+kvquant:bits=3,cachegen,cachegen:form=paper"
        done = run("bench", "attention", "--formats", formats, *options, "--json")
        figures = self.figures_of(done)
        for name, size in most.items():
            self.assertLess(figures[f"attention_4096_{name}_bytes_per_token"]["value"], size, name)
            for group in (1, 4, 8):
                self.assertEqual(figures[f"attention_4096_{name}_group{group}"]["unit"], "tokens/s")

    def test_the_table_and_a_window(self):
        done = run("bench", "attention", "--formats", "mxfp4:sink=1,recent=2", "--groups", 2, *TINY, "--cpu", "scalar")
        self.assertEqual(done.status, 0, done.err)
        self.assertIn("attention_4096_mxfp4_sink_1_recent_2_group2", done.out)
        self.assertIn("kernels scalar", done.out)

    def test_a_part_of_a_prompt(self):
        done = run("bench", "attention", "--formats", "hack,kivi", "--groups", 2, "--queries", 70, *TINY, "--json")
        self.assertEqual(done.status, 0, done.err)
        figures = {figure["name"]: figure["value"] for figure in done.json()["results"]}
        for name in ("bf16", "hack_k_2_v_2", "kivi_bits_2_group_32"):
            self.assertGreater(figures[f"attention_4096_{name}_group2_queries70"], 0)

    def test_how_busy_threads_are(self):
        done = run("bench", "attention", "--formats", "hack", "--groups", 4, "--threads", 2, *TINY, "--json")
        figures = self.figures_of(done)
        for name in ("bf16", "hack_k_2_v_2"):
            self.assertLess(figures[f"attention_4096_{name}_group4_use"]["value"], 1.01)

    def test_bad_flags_are_refused(self):
        self.assert_refused(run("bench", "attention", "--tokens", "64", "--queries", "64"), "too short for 64")
        self.assert_refused(run("bench", "attention", "--formats", "mxfp5"), "mxfp5")
        self.assert_refused(run("bench", "attention", "--tokens", "1"), "not of 1")
        self.assert_refused(run("bench", "attention", "--groups", "17"), "not 17")
        self.assert_refused(run("bench", "attention", "--head-dim", "300"), "300", status=2)
        self.assert_refused(run("bench", "attention", "--model", "nowhere"), "nowhere")
        model = program.ROOT / "models" / "kvlane-tiny-gqa"
        self.assert_refused(run("bench", "attention", "--model", model), "`kvlane calibrate zack` made")

    def test_help_has_an_example(self):
        self.assertIn("Example: kvlane bench attention", run("bench", "attention", "--help").out)


if __name__ == "__main__":
    unittest.main()
