"""`kvlane bench store` on so little that no figure of speed means anything."""
# SPDX-License-Identifier: Apache-2.0
import struct
import unittest

import program
from program import run

TINY = ("--bytes", "1MiB", "--extent-bytes", "64KiB", "--repeats", 2, "--depth", 3)


@program.needs_program
class BenchStore(program.ProgramTest):
    def measure(self, *flags, directories=1):
        folders = [self.folder() for _ in range(directories)]
        done = run("bench", "store", *folders, *TINY, *flags, "--json")
        figures = self.figures_of(done)
        for folder in folders:
            self.assertEqual(list(folder.iterdir()), [], "something was left behind")
        return done.json(), figures

    def test_raw_values(self):
        report, figures = self.measure(directories=2)
        self.assertEqual(set(figures), {"store_read_files", "store_read_raw", "store_read_raw_ratio"})
        self.assertEqual(len(figures["store_read_raw"]["runs"]), 2)
        self.assertEqual(figures["store_read_raw"]["baseline"], figures["store_read_files"]["value"])
        self.assertEqual(figures["store_read_raw_ratio"]["goal"], 0.95)
        self.assertEqual(report["command"].split()[:3], ["kvlane", "bench", "store"])
        self.assertIn("--depth 3", report["command"])

    def test_codecs(self):
        for codec, name in (("splitzip", "splitzip"), ("splitzip:channel", "splitzip_channel")):
            _, figures = self.measure("--codec", codec, "--threads", 2)
            self.assertEqual(len(figures), 6)
            self.assertEqual(figures[f"store_read_{name}_ratio"]["goal"], 1.25)
            self.assertGreater(figures[f"store_read_{name}_bytes_ratio"]["value"], 1.2)

    def test_a_slow_disk_is_no_faster_than_told(self):
        _, figures = self.measure("--read-rate", 0.004, "--codec", "splitzip")
        for name in ("files", "raw"):
            self.assertLess(figures[f"store_read_{name}"]["value"], 0.0042)
        # Fewer bytes come 60 ms sooner, which no stolen time slice makes up for.
        self.assertGreater(figures["store_read_splitzip_ratio"]["value"], 1.05)

    def test_values_of_a_file(self):
        path = self.folder() / "values"
        # Few exponents, and few bytes in all: extents repeat.
        path.write_bytes(b"".join(struct.pack("<H", 0x3F80 + i % 128) for i in range(3 << 14)))
        _, figures = self.measure("--values", path, "--codec", "splitzip")
        self.assertGreater(figures["store_read_splitzip_bytes_ratio"]["value"], 1.3)
        path.write_bytes(b"12")
        done = run("bench", "store", self.folder(), *TINY, "--values", path)
        self.assert_refused(done, "fewer than the 65536 bytes")

    def test_what_cannot_be_measured_is_refused(self):
        folder = self.folder()
        self.assert_refused(run("bench", "store", folder, "--extent-bytes", 1000), "no multiple of 32768")
        self.assert_refused(run("bench", "store", folder, "--bytes", 1000), "less than one extent")
        self.assert_refused(run("bench", "store", folder, *TINY, "--codec", "zip"), "zip")
        self.assert_refused(run("bench", "store", folder / "none", *TINY), "none")
        self.assertEqual(list(folder.iterdir()), [])

    def test_help_has_an_example(self):
        self.assertIn("Example: kvlane bench store", run("bench", "store", "--help").out)


if __name__ == "__main__":
    unittest.main()
