"""scripts/count_tests.py with files of tests that pass, fail, skip and die.

SPDX-License-Identifier: Apache-2.0
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PASSES_AND_SKIPS = """
    def test_passes(self): pass
    def test_skips(self): self.skipTest('no reason')
"""
FAILS = """
    def test_fails(self): self.assertEqual('what', 'something else')
"""
DIES = """
    def test_dies(self): os.abort()
"""


class CountTests(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = pathlib.Path(directory.name)

    def count(self, **files):
        for name, tests in files.items():
            text = f"import os\nimport unittest\nclass Case(unittest.TestCase):{tests}"
            (self.folder / f"test_{name}.py").write_text(text, encoding="utf-8")
        ended = subprocess.run([sys.executable, ROOT / "scripts" / "count_tests.py", "python", self.folder,
                                self.folder / "result"], capture_output=True, text=True, timeout=60, check=False)
        return ended.returncode, (self.folder / "result.count").read_text(encoding="utf-8").split(), ended.stdout

    def test_what_passes_and_is_skipped(self):
        self.assertEqual(self.count(one=PASSES_AND_SKIPS, other=PASSES_AND_SKIPS)[:2], (0, ["2", "0", "2"]))
        self.assertEqual((self.folder / "result.skipped").read_text(encoding="utf-8"),
                         "test_one.Case.test_skips: no reason\ntest_other.Case.test_skips: no reason\n")

    def test_what_fails_is_told_and_hides_nothing(self):
        code, counts, said = self.count(one=FAILS, other=PASSES_AND_SKIPS)
        self.assertEqual((code, counts), (1, ["1", "1", "1"]))
        self.assertIn("'what' != 'something else'", said)

    def test_a_process_that_dies_has_failed(self):
        code, counts, said = self.count(one=DIES)
        self.assertEqual((code, counts), (1, ["0", "1", "0"]))
        self.assertIn("test_one.py: no outcome", said)

    def test_no_tests_are_no_success(self):
        self.assertEqual(self.count()[:2], (1, ["0", "0", "0"]))
        self.assertEqual(self.count(one="\n    pass\n")[:2], (1, ["0", "0", "0"]))


if __name__ == "__main__":
    unittest.main()
