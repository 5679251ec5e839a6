"""scripts/ci/python_tests.py with files of tests that pass, fail, skip and die.

SPDX-License-Identifier: Apache-2.0
"""
import json
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


class PythonTests(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = pathlib.Path(directory.name)

    def run_files(self, **files):
        """Exit status, the counts, reasons of what was skipped, and what was printed."""
        for name, tests in files.items():
            text = f"import os\nimport unittest\nclass Case(unittest.TestCase):{tests}"
            (self.folder / f"test_{name}.py").write_text(text, encoding="utf-8")
        result = self.folder / "result.json"
        ended = subprocess.run([sys.executable, ROOT / "scripts" / "ci" / "python_tests.py", self.folder, result],
                               capture_output=True, text=True, timeout=60, check=False)
        counts = json.loads(result.read_text(encoding="utf-8"))
        self.assertEqual(sorted(counts["seconds"]), sorted(f"test_{name}.py" for name in files))
        numbers = (counts["passed"], counts["failed"], len(counts["skipped"]))
        return ended.returncode, numbers, counts["skipped"], ended.stdout

    def test_what_passes_and_is_skipped(self):
        status, counts, skipped, _ = self.run_files(one=PASSES_AND_SKIPS, other=PASSES_AND_SKIPS)
        self.assertEqual((status, counts), (0, (2, 0, 2)))
        self.assertEqual(skipped, ["test_one.Case.test_skips: no reason", "test_other.Case.test_skips: no reason"])

    def test_what_fails_is_told_and_hides_nothing(self):
        status, counts, _, said = self.run_files(one=FAILS, other=PASSES_AND_SKIPS)
        self.assertEqual((status, counts), (1, (1, 1, 1)))
        self.assertIn("'what' != 'something else'", said)

    def test_a_process_that_dies_has_failed(self):
        status, counts, _, said = self.run_files(one=DIES)
        self.assertEqual((status, counts), (1, (0, 1, 0)))
        self.assertIn("test_one.py: no outcome", said)

    def test_no_tests_are_no_success(self):
        self.assertEqual(self.run_files()[:2], (1, (0, 0, 0)))
        self.assertEqual(self.run_files(one="\n    pass\n")[:2], (1, (0, 0, 0)))


if __name__ == "__main__":
    unittest.main()
