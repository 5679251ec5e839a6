"""The faults of test_program_link_faults over a link of 1 Gbit/s: the loopback of a network namespace, shaped."""
# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
import unittest

import namespaces
import program

NAME = f"kvlane-test-shaped-{os.getpid()}"


@program.needs_program
class ShapedLink(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        namespaces.add(cls, NAME)
        namespaces.shape(NAME, "lo", "1gbit")

    def check(self, test):
        command = [*namespaces.within(NAME), sys.executable, "-m", "unittest", f"test_program_link_faults.{test}"]
        done = subprocess.run(
            command, cwd=program.ROOT / "tests", capture_output=True, text=True, check=False, timeout=300
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("\nRan 1 test in ", done.stderr)
        self.assertNotIn("skipped", done.stderr)

    def test_every_phase_of_a_push(self):
        self.check("Pushed.test_every_phase")

    def test_every_phase_of_a_fetch(self):
        self.check("Fetched.test_every_phase")

    def test_another_decode_worker_answers(self):
        self.check("Pushed.test_another_decode_worker_answers")


if __name__ == "__main__":
    unittest.main()
