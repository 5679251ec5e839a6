"""`tools/restore_plots.py`: pages and pictures are what it makes of the recorded runs."""
# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import subprocess
import sys
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "restore_plots.py"
RUNS = sorted((ROOT / "bench" / "restore").glob("*.json"))


class RestorePlots(unittest.TestCase):
    def test_page_and_pictures_are_up_to_date(self):
        done = subprocess.run([sys.executable, TOOL, "draw", "--check"], stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_every_measured_point_is_a_dot_and_every_series_a_line(self):
        self.assertTrue(RUNS)
        for path in RUNS:
            run = json.loads(path.read_text(encoding="utf-8"))
            picture = ROOT / "docs" / "images" / f"restore_{path.stem}.svg"
            kinds = [node.tag.rpartition("}")[2] for node in xml.etree.ElementTree.parse(picture).iter()]
            names = {threads: {figure["name"] for figure in report["results"]}
                     for threads, report in run["measured"].items()}
            rates = sum(f"restore_{run['middle']}_{regime}_plan" in names[threads]
                        for threads in names for regime in ("slow_disk", "balanced", "slow_compute"))
            lengths = sum(name.endswith("_balanced_plan") for name in names["2"])
            self.assertEqual(kinds.count("circle"), rates + 4 * lengths, path.stem)
            self.assertEqual(kinds.count("polyline"), 2 + 4, path.stem)


if __name__ == "__main__":
    unittest.main()
