"""Tests of bench/results.csv: every line has the documented columns, names and units."""
# SPDX-License-Identifier: Apache-2.0
import csv
import itertools
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = ["date", "commit", "machine", "command", "name", "value", "unit", "ratio", "goal", "met"]


def documented_units():
    """The unit of every name on docs/bench.md; words in capitals stand for those that the page lists."""
    page = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE)
    words = {name: re.findall(r"`([a-z0-9_]+)`", text) for name, text in rows if name.isupper()}
    units = {}
    for name, unit in rows:
        if name.isupper():
            continue
        parts = re.split("(" + "|".join(words) + ")", name) if words else [name]
        for chosen in itertools.product(*(words.get(part, [part]) for part in parts)):
            units["".join(chosen)] = unit
    return units


class ResultsTest(unittest.TestCase):
    def setUp(self):
        with open(ROOT / "bench" / "results.csv", encoding="utf-8", newline="") as file:
            self.columns, *self.rows = csv.reader(file)
        self.units = documented_units()

    def test_columns(self):
        self.assertEqual(self.columns, COLUMNS)

    def test_lines(self):
        for number, row in enumerate(self.rows, 2):
            with self.subTest(line=number):
                self.assertEqual(len(row), len(COLUMNS))
                line = dict(zip(COLUMNS, row))
                self.assertRegex(line["date"], r"^\d{4}-\d\d-\d\d$")
                self.assertRegex(line["commit"], r"^[0-9a-f]{7,40}$")  # of a committed tree
                self.assertNotEqual(line["machine"], "")
                program, *words = line["command"].split()
                if program != "kvlane":
                    self.assertNotRegex(line["machine"], ", (over|through) ")
                    self.assertTrue((ROOT / program).is_file(), program)
                    self.assertTrue(program.startswith("bench/"), program)
                else:
                    self.assertEqual(words[0], "bench", line["command"])
                self.assertEqual(self.units.get(line["name"]), line["unit"])
                self.assertGreaterEqual(float(line["value"]), 0)
                self.assertEqual(line["goal"] == "", line["met"] == "")
                self.assertIn(line["met"], ("", "true", "false"))


if __name__ == "__main__":
    unittest.main()
