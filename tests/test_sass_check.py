"""Tests of tools/sass_check.py on a few lines as nvdisasm prints them."""
# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import sass_check  # noqa: E402  (from the folder above)

ENCODE = "_ZN6kvlane8splitzip13encode_planesILNS_11ElementTypeE2EEEvPKNS0_16DeviceEncodeTaskE"
LINES = f"""
.text.{ENCODE}:
        /*0010*/                   LDG.E.128 R4, desc[UR6][R2.64] ;
        /*0020*/              @!P0 LDG.E.EF.128.CONSTANT R8, desc[UR6][R2.64+0x10] ;
        /*0030*/                   LDG.E.64 R8, desc[UR6][R2.64+0x10] ;
        /*0040*/                   ST.E.128 desc[UR6][R2.64], R4 ;
        /*0050*/             @UP0  STG.E.EF.128 desc[UR6][R2.64], R4 ;
        /*0060*/                   STL.64 [R1], R4 ;
        /*0070*/               @P1 RED.E.ADD.STRONG.GPU desc[UR6][R2.64], R4 ;
.text._ZN6kvlane3gpu39_GLOBAL__N__ed6f99ed_7_rows_cu_7d96fd299silu_rowsENS_8SiluRowsE:
        /*0010*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0020*/                   LDGSTS.E.BYPASS.LTC128B.128 [R9], desc[UR6][R2.64] ;
        /*0030*/                   LDSM.16.MT88.4 R4, [R9] ;
"""


class SassCheck(unittest.TestCase):
    def test_counts_instructions_of_each_kernel(self):
        kernels = sass_check.kernels_in(LINES)
        self.assertEqual(set(kernels), {"encode_planes<bf16>", "silu_rows"})
        encode = {name: count for name, count in kernels["encode_planes<bf16>"].items() if count}
        self.assertEqual(encode, {"load16": 2, "store16": 2, "local": 1, "atomic": 1})
        silu = {name: count for name, count in kernels["silu_rows"].items() if count}
        self.assertEqual(silu, {"mma": 1, "async16": 1, "ldmatrix": 1})

    def test_finds_what_is_missing_and_what_should_not_be(self):
        findings = sass_check.findings_of(sass_check.kernels_in(LINES), "sm_90")
        self.assertIn("sm_90 encode_planes<bf16>: 1 of local", findings)
        self.assertIn("sm_90 encode_planes<bf16>: 1 of atomic", findings)
        self.assertIn("sm_90 encode_planes<bf16>: 2 of load16, expected are 4 at least", findings)
        self.assertIn("sm_90 embed_rows: there is no such kernel", findings)

    def test_finds_nothing_where_all_is_there(self):
        nothing = dict.fromkeys(sass_check.COUNTED, 0)
        kernels = {kernel: {**nothing, **least} for kernel, least in sass_check.EXPECTED.items()}
        self.assertEqual(sass_check.findings_of(kernels, "sm_80"), [])


if __name__ == "__main__":
    unittest.main()
