"""Runs files of Python tests, several at a time, each in a process of its own.

Writes one JSON object {"passed", "failed", "skipped": ["test: reason"], "seconds": {file: seconds}} to RESULT.

    python_tests.py DIRECTORY RESULT [FILE...]

FILE is the name of a file of tests in DIRECTORY; all test_*.py without one.
"""
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures.process
import io
import json
import multiprocessing
import os
import pathlib
import sys
import time
import unittest

AT_ONCE = (os.cpu_count() or 1) * 3 // 2  # half of the time they wait


def run_file(directory, file):
    """How many tests of a file ran, how many failed, which were skipped and why, and how long it took."""
    print(file, flush=True)
    said, started = io.StringIO(), time.monotonic()
    tests = unittest.defaultTestLoader.discover(directory, pattern=file)
    outcome = unittest.TextTestRunner(stream=said, verbosity=1).run(tests)
    skipped = [f"{test.id()}: {reason}" for test, reason in outcome.skipped]
    # A test of several cases is one test, however many of them fail.
    bad = [test for test, _ in outcome.failures + outcome.errors] + outcome.unexpectedSuccesses
    failed = len({getattr(test, "test_case", test).id() for test in bad})
    if not outcome.wasSuccessful():
        print(f"{file}\n{said.getvalue()}", flush=True)
        failed = max(failed, 1)
    return outcome.testsRun, failed, skipped, time.monotonic() - started


def run_files(directory, names):
    """The result as the object that is written."""
    result = {"passed": 0, "failed": 0, "skipped": [], "seconds": {}}
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(AT_ONCE, context, max_tasks_per_child=1) as pool:
        running = {name: pool.submit(run_file, directory, name) for name in names}
        for name, outcome in running.items():
            try:
                ran, failed, skipped, seconds = outcome.result()
            except concurrent.futures.process.BrokenProcessPool:
                print(f"{name}: no outcome, since a process of these tests died", flush=True)
                ran, failed, skipped, seconds = 1, 1, [], 0
            result["passed"] += ran - failed - len(skipped)
            result["failed"] += failed
            result["skipped"] += skipped
            result["seconds"][name] = round(seconds, 1)
    return result


def main(directory, result_file, *names):
    names = sorted(names) or sorted(path.name for path in pathlib.Path(directory).glob("test_*.py"))
    result = run_files(directory, names)
    pathlib.Path(result_file).write_text(json.dumps(result, indent=1), encoding="utf-8")
    return 0 if result["failed"] == 0 and result["passed"] + len(result["skipped"]) > 0 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
