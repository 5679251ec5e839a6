"""Counts tests for scripts/test: reads a ctest report, or runs the Python tests itself.

Both commands write "passed failed skipped" to PREFIX.count and what was skipped, with the reason
where it is known, to PREFIX.skipped.

    count_tests.py ctest REPORT.xml PREFIX
    count_tests.py python DIRECTORY PREFIX [FILES]

FILES is which files of tests, test_*.py where it is absent.
"""
# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys
import unittest
import xml.etree.ElementTree


def write_counts(prefix, total, failed, skipped):
    passed = total - failed - len(skipped)
    pathlib.Path(prefix + ".count").write_text(f"{passed} {failed} {len(skipped)}\n", encoding="utf-8")
    pathlib.Path(prefix + ".skipped").write_text("".join(line + "\n" for line in skipped), encoding="utf-8")


def count_ctest(report, prefix):
    """The report is what ctest --output-junit writes; ctest itself has told the outcome already."""
    suite = xml.etree.ElementTree.parse(report).getroot()
    skipped = [case.get("name") for case in suite.iter("testcase") if case.find("skipped") is not None]
    write_counts(prefix, int(suite.get("tests")), int(suite.get("failures")), skipped)
    return True


def run_python(directory, prefix, files="test_*.py"):
    tests = unittest.defaultTestLoader.discover(directory, pattern=files)
    outcome = unittest.TextTestRunner(verbosity=1).run(tests)
    skipped = [f"{test.id()}: {reason}" for test, reason in outcome.skipped]
    failed = len(outcome.failures) + len(outcome.errors) + len(outcome.unexpectedSuccesses)
    write_counts(prefix, outcome.testsRun, failed, skipped)
    return outcome.wasSuccessful() and outcome.testsRun > 0


if __name__ == "__main__":
    command = {"ctest": count_ctest, "python": run_python}[sys.argv[1]]
    sys.exit(0 if command(*sys.argv[2:]) else 1)
