"""The faults of test_program_link_faults over a link of 1 Gbit/s: the loopback of a network namespace, shaped."""
# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
import unittest

import namespaces
import program

NAME = f"kvlane-test-shaped-{os.getpid()}"
PATIENCE = 600  # seconds; 25 are usual


@program.needs_program
class ShapedLink(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        namespaces.add(cls, NAME)
        namespaces.shape(NAME, "lo", "1gbit")

    def check(self, test):
        within = subprocess.Popen(
            [*namespaces.within(NAME), sys.executable, "-m", "unittest", f"test_program_link_faults.{test}"],
            cwd=program.ROOT / "tests", env=os.environ | {"KVLANE_PROGRAM": str(program.PROGRAM.resolve())},
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            told = within.communicate(timeout=PATIENCE)[1]
        except subprocess.TimeoutExpired:
            within.send_signal(signal.SIGINT)  # so that it ends what it has started
            self.fail(f"{test} takes longer than {PATIENCE} s: {within.communicate()[1]}")
        self.assertEqual(within.returncode, 0, told)
        self.assertIn("\nRan 1 test in ", told)
        self.assertNotIn("skipped", told)

    def test_every_phase_of_a_push(self):
        self.check("Pushed.test_every_phase")

    def test_every_phase_of_a_fetch(self):
        self.check("Fetched.test_every_phase")

    def test_another_decode_worker_answers(self):
        self.check("Pushed.test_another_decode_worker_answers")


if __name__ == "__main__":
    unittest.main()
