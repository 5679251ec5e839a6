"""docs/results.md says what the reports in bench/eval say.

SPDX-License-Identifier: Apache-2.0
"""
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import results  # noqa: E402


def measure(name, metric, value, low=None, high=None):
    return {"task": "text", "format": name, "metric": metric, "value": value, "low": low, "high": high, "unit": ""}


REPORT = {
    "machine": "two cores",
    "commit": "abc",
    "command": "kvlane eval models/x",
    "facts": {"seed": "1"},
    "measures": [
        measure("bf16", "perplexity", 31.26, 30.5, 32.04),
        measure("bf16", "bits", 16),
        measure("int8:sym=1", "perplexity", 31.3, 31.3, 31.3),
    ],
    "curves": [{"x": [1]}],
    "not_measured": ["GSM8K: the model cannot."],
}


class Results(unittest.TestCase):
    def test_the_page_is_what_the_reports_say(self):
        self.assertEqual(results.PAGE.read_text(encoding="utf-8"), results.page())

    def test_a_report_becomes_a_section(self):
        text = "\n".join(results.section("x", REPORT))
        self.assertIn("| `bf16` | 31.26 [30.5, 32.04] | 16 |", text)
        self.assertIn("| `int8:sym=1` | 31.3 | - |", text)
        self.assertIn("Not measured: GSM8K: the model cannot.", text)

    def test_figures_are_brief_and_never_in_powers(self):
        figures = {0: "0", 0.01234: "0.0123", 1.00849: "1.008", 12345.6: "12346", 99.999: "100", None: "-"}
        self.assertEqual({value: results.brief(value) for value in figures}, figures)

    def test_adding_leaves_curves_and_folders_out(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder)
            measured = {**REPORT, "command": "kvlane eval models/x --out /tmp/x", "facts": {"text": "/a/b c.txt"}}
            (out / "eval.json").write_text(json.dumps(measured), encoding="utf-8")
            with mock.patch.object(results, "REPORTS", out / "reports"):
                results.add("x", out)
                kept = json.loads((out / "reports" / "x.json").read_text(encoding="utf-8"))
        facts = {"text": "b c.txt"}
        self.assertEqual(kept, {**REPORT, "command": "kvlane eval models/x --out x", "facts": facts, "curves": []})


if __name__ == "__main__":
    unittest.main()
