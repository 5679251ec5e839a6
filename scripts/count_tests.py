"""Counts tests for scripts/test: reads a ctest report, or runs the Python tests itself.

Both commands write "passed failed skipped" to PREFIX.count and what was skipped, with the reason
where it is known, to PREFIX.skipped.

    count_tests.py ctest REPORT.xml PREFIX
    count_tests.py python DIRECTORY PREFIX [FILES]

FILES is which files of tests, test_*.py where it is absent.
"""
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures.process
import io
import multiprocessing
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


def run_file(directory, file):
    """Whether the tests of a file passed, how many ran, how many failed, which were skipped and why."""
    print(file, flush=True)
    said = io.StringIO()
    tests = unittest.defaultTestLoader.discover(directory, pattern=file)
    outcome = unittest.TextTestRunner(stream=said, verbosity=1).run(tests)
    skipped = [f"{test.id()}: {reason}" for test, reason in outcome.skipped]
    failed = len(outcome.failures) + len(outcome.errors) + len(outcome.unexpectedSuccesses)
    if not outcome.wasSuccessful():
        print(f"{file}\n{said.getvalue()}", flush=True)
    return outcome.wasSuccessful(), outcome.testsRun, failed, skipped


def run_python(directory, prefix, files="test_*.py"):
    """Two files at a time, each in a process of its own: they wait for servers more than they compute."""
    names = sorted(path.name for path in pathlib.Path(directory).glob(files))
    good, total, failed, skipped = True, 0, 0, []
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        running = {name: pool.submit(run_file, directory, name) for name in names}
        for name, outcome in running.items():
            try:
                passed, ran, failures, left_out = outcome.result()
            except concurrent.futures.process.BrokenProcessPool:
                print(f"{name}: no outcome, since a process of these tests died", flush=True)
                passed, ran, failures, left_out = False, 1, 1, []
            good &= passed
            total, failed, skipped = total + ran, failed + failures, skipped + left_out
    write_counts(prefix, total, failed, skipped)
    return good and total > 0


if __name__ == "__main__":
    command = {"ctest": count_ctest, "python": run_python}[sys.argv[1]]
    sys.exit(0 if command(*sys.argv[2:]) else 1)
