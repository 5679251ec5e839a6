"""scripts/ci/programs.py with programs that speak as GoogleTest's do, and pass, fail, skip, die, leak and hang.

SPDX-License-Identifier: Apache-2.0
"""
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "ci"))
import programs  # noqa: E402

# Lists TESTS, or runs those of its flag file one after the other. A test does what its name says.
PROGRAM = """#!%s
import os, sys, time
tests = %r
if sys.argv[1] == "--gtest_list_tests":
    print("Suite.\\n" + "".join(f"  {name}\\n" for name in tests), end="")
    sys.exit(0)
chosen = open(sys.argv[1].split("=")[1]).read().strip().split("=")[1].split(":")
status = 0
for name in tests:
    if f"Suite.{name}" not in chosen:
        continue
    print(f"[ RUN      ] Suite.{name}", flush=True)
    print(f"speaks of {name}")
    if "Dies" in name:
        sys.stdout.flush(); os.abort()
    if "Hangs" in name:
        time.sleep(60)
    outcome = "[  FAILED  ]" if "Fails" in name else "[  SKIPPED ]" if "Skips" in name else "[       OK ]"
    status = status or int("Fails" in name or "Leaks" in name)
    parameter = ", where GetParam() = 3" if "Fails" in name else ""
    print(f"{outcome} Suite.{name}{parameter} (7 ms)", flush=True)
sys.exit(status)
"""


class ProgramsTest(unittest.TestCase):
    def run_tests(self, *names, timeout=60, tests_max=40):
        with tempfile.TemporaryDirectory() as directory:
            program = pathlib.Path(directory) / "x_test"
            program.write_text(PROGRAM % (sys.executable, list(names)), encoding="utf-8")
            program.chmod(0o755)
            self.told = []
            with mock.patch.multiple(programs, TIMEOUT=timeout, TESTS_MAX=tests_max):
                return programs.run_programs([program], tell=self.told.append)

    def names(self, *names):
        return {f"x_test:Suite.{name}" for name in names}

    def test_each_has_its_outcome(self):
        outcome = self.run_tests("A", "Fails", "Skips", "B/3")
        self.assertEqual(outcome.passed, self.names("A", "B/3"))
        self.assertEqual(outcome.skipped, self.names("Skips"))
        self.assertEqual(set(outcome.failed), self.names("Fails"))
        self.assertEqual(outcome.seconds["x_test:Suite.A"], 0.007)
        self.assertIn("speaks of Fails", self.told[0])

    def test_those_behind_one_that_dies_run_too(self):
        outcome = self.run_tests("A", "Dies", "B", "DiesToo", "C")
        self.assertEqual(outcome.passed, self.names("A", "B", "C"))
        self.assertEqual(set(outcome.failed), self.names("Dies", "DiesToo"))
        self.assertIn("status -6", outcome.failed["x_test:Suite.Dies"])

    def test_one_that_hangs_has_failed(self):
        outcome = self.run_tests("A", "Hangs", "B", timeout=1)
        self.assertEqual(outcome.passed, self.names("A", "B"))
        self.assertEqual(set(outcome.failed), self.names("Hangs"))

    def test_a_process_that_ends_badly_after_tests_that_passed_has_failed(self):
        outcome = self.run_tests("A", "Leaks")
        self.assertEqual(outcome.passed, self.names("A"))
        self.assertEqual(set(outcome.failed), self.names("Leaks"))

    def test_all_processes_together_run_each_test_once(self):
        names = [f"T{number}" for number in range(25)]
        outcome = self.run_tests(*names, tests_max=4)
        self.assertEqual(outcome.passed, self.names(*names))

    def test_disabled_tests_are_left_out(self):
        outcome = self.run_tests("A", "DISABLED_B")
        self.assertEqual(outcome.passed | outcome.skipped, self.names("A"))


if __name__ == "__main__":
    unittest.main()
