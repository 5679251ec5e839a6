"""`kvlane eval` and `kvlane eval search`, with the real program: figures, the page, going on, refusals."""
# SPDX-License-Identifier: Apache-2.0
import csv
import html.parser
import json
import shutil
import subprocess
import unittest

import program
from program import GQA, ROOT, run

TEXT = ROOT / "ARCHITECTURE.md"
SHORT = ("--text", TEXT, "--tokens", 600, "--context", 200, "--threads", 1)
TASKS = ("--tasks", "text,kv,passkey,needles,similarity", "--lengths", "200,260", "--depths", "12.5,100", "--trials", 1,
         "--prompts", 2, "--prompt-tokens", 100, "--new-tokens", 4)
FORMATS = ["bf16", "int8:sym=1", "kivi:bits=2,group=32"]
QUESTION = '{"question": "What is 1 + 1?", "answer": "#### 2"}\n'

# Enough of a browser for the page's script: elements that remember, and a Chart that is only noted.
BROWSER = """
const made = { charts: [], elements: {} };
const element = (name) => ({
  name, style: {}, children: [], listeners: [], className: "", textContent: "", value: "",
  append(child) {
    this.children.push(child);
    child.parentNode = this;
    if (this.name === "select" && this.value === "") this.value = child.textContent;
  },
  remove() {},
  addEventListener(kind, listener) { this.listeners.push(listener); },
});
const known = { data: element("script"), plots: element("div") };
global.document = {
  getElementById: (id) => known[id],
  createElement: (name) => { made.elements[name] = (made.elements[name] ?? 0) + 1; return element(name); },
};
global.Chart = class {
  constructor(canvas, config) {
    this.canvas = canvas;
    made.charts.push({ sets: config.data.datasets.length, points: config.data.datasets.map((set) => set.data.length) });
  }
  destroy() {}
};
"""


class PageReader(html.parser.HTMLParser):
    """Checks that elements are closed in order; keeps scripts, cells, and what would be fetched."""

    VOID = {"meta"}

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.scripts, self.cells, self.outside = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.outside += [value for name, value in attrs if name in ("src", "href")]
        if tag in self.VOID:
            return
        self.open.append(tag)
        if tag == "script":
            self.scripts.append("")
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


@program.needs_program
class Eval(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.out = cls.class_folder() / "out"
        cls.arguments = ("eval", GQA, *SHORT, *TASKS, "--formats", "int8,kivi:bits=2", "--out", cls.out, "--json")
        done = run(*cls.arguments)
        assert done.status == 0, done.err
        cls.report = done.json()

    def measure(self, task, name, metric):
        found = [m for m in self.report["measures"] if (m["task"], m["format"], m["metric"]) == (task, name, metric)]
        self.assertEqual(len(found), 1, (task, name, metric))
        return found[0]

    def test_every_task_measures_every_format(self):
        for task, metric in (("text", "perplexity"), ("passkey", "log_probability"), ("needles", "found"),
                             ("similarity", "rouge1"), ("passkey, 260 tokens", "found at 100 %")):
            for name in FORMATS:
                self.assertIsNotNone(self.measure(task, name, metric)["value"])
        self.assertEqual(self.measure("text", "bf16", "divergence")["value"], 0)
        self.assertEqual(self.measure("similarity", "bf16", "identical")["value"], 1)
        losses = [self.measure("text", name, "divergence")["value"] for name in FORMATS]
        self.assertEqual(losses, sorted(losses), "more bits lose less")
        self.assertLess(self.measure("kv", FORMATS[1], "k_error")["value"], 1e-3)
        self.assertGreater(self.measure("kv", FORMATS[2], "v_error")["value"], 1e-2)

    def test_files_say_the_same(self):
        self.assertEqual(json.loads((self.out / "eval.json").read_text()), self.report)
        with open(self.out / "eval.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), len(self.report["measures"]))
        for row, measure in zip(rows, self.report["measures"], strict=True):
            self.assertEqual((row["task"], row["format"], row["metric"]),
                             (measure["task"], measure["format"], measure["metric"]))
            self.assertAlmostEqual(float(row["value"]), measure["value"], delta=1e-8 * abs(measure["value"]))

    def test_page_is_whole_and_needs_nothing_else(self):
        page = PageReader((self.out / "eval.html").read_text(encoding="utf-8"))
        self.assertEqual(page.open, [])
        self.assertEqual(page.outside, [])
        data, chart, _ = page.scripts
        self.assertEqual(json.loads(data), self.report)
        self.assertIn("Chart.js", chart)
        for name in FORMATS:
            self.assertIn(name, page.cells)

    @unittest.skipUnless(shutil.which("node"), "node is not there")
    def test_page_draws_what_was_measured(self):
        data, _, script = PageReader((self.out / "eval.html").read_text(encoding="utf-8")).scripts
        source = (BROWSER + f"known.data.textContent = {json.dumps(data)};\n" + script
                  + "\nprocess.stdout.write(JSON.stringify(made));")
        file = self.folder() / "page.js"
        file.write_text(source, encoding="utf-8")
        done = subprocess.run(["node", file], capture_output=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        made = json.loads(done.stdout)
        # Bytes; four of the text; errors of K and V; channels; spectra of K and V.
        self.assertEqual(len(made["charts"]), 1 + 4 + 2 + 1 + 2)
        self.assertEqual(made["charts"][0]["sets"], 2 + 1, "two formats, and the front")
        self.assertEqual(made["charts"][-1]["sets"], 6 * 2, "layers and heads")
        # Heat maps: two tasks, two kinds, three formats, two lengths and two depths.
        self.assertEqual(made["elements"]["td"], 2 * 2 * 3 * 2 * 2)

    def test_a_second_run_measures_nothing_again(self):
        before = (self.out / "eval.jsonl").stat().st_size
        again = run(*self.arguments)
        self.assertEqual(again.json(), self.report)
        self.assertEqual((self.out / "eval.jsonl").stat().st_size, before)

    def test_a_log_of_another_text_is_refused(self):
        other = run("eval", GQA, "--text", ROOT / "README.md", "--tokens", 300, "--context", 200, "--out", self.out)
        self.assert_refused(other, "another evaluation")

    def test_files_of_examples(self):
        folder = self.folder()
        questions = folder / "questions.jsonl"
        questions.write_text(QUESTION * 3)
        passkeys = folder / "keys.jsonl"
        passkeys.write_text(json.dumps({"input": "The pass key is 12345. " * 9, "target": "12345"}) + "\n")
        done = run("eval", GQA, "--tasks", "none", "--questions-file", questions, "--shots", 1, "--answer-tokens", 4,
                   "--retrieval-file", passkeys, "--threads", 1, "--json")
        self.assertEqual(done.status, 0, done.err)
        tasks = {measure["task"] for measure in done.json()["measures"]}
        self.assertEqual(tasks, {"questions.jsonl", "retrieval keys.jsonl"})

    def test_what_cannot_be_is_refused(self):
        self.assert_refused(run("eval", GQA), "--text")
        self.assert_refused(run("eval"), "a model directory is required", 2)
        self.assert_refused(run("eval", GQA, *SHORT, "--formats", "nothing"), "nothing")
        self.assert_refused(run("eval", GQA, *SHORT, "--tasks", "nothing"), "nothing", 2)
        self.assert_refused(run("eval", GQA, "--tasks", "passkey", "--lengths", 5000), "5000")
        for depth in ("101", "-0.5", "nan", "half"):
            refused = run("eval", GQA, "--tasks", "passkey", f"--depths=50,{depth}")
            self.assert_refused(refused, f"--depths: must be a number from 0 to 100, not '{depth}'", 2)
        self.assert_refused(run("eval", GQA, "--tasks", "none", "--questions-file", "/no/such"), "/no/such")


@program.needs_program
class Search(program.ProgramTest):
    def search(self, *arguments):
        return run("eval", "search", GQA, *SHORT, *arguments)

    def test_finds_the_strongest_that_keeps_enough(self):
        tried = ("--format", "kivi:bits={}", "--values", "2,4")
        everything = self.search(*tried, "--retain", 0.1, "--metric", "divergence", "--json").json()
        self.assertEqual(everything["found"]["format"], "kivi:bits=2,group=32")
        self.assertEqual(len(everything["steps"]), 2)
        two, four = (step["kept"] for step in reversed(everything["steps"]))
        self.assertLess(two, four)
        between = self.search(*tried, "--retain", (two + four) / 2, "--metric", "divergence", "--json").json()
        self.assertEqual(between["found"]["format"], "kivi:bits=4,group=32")
        self.assertIsNone(self.search(*tried, "--retain", 1, "--metric", "divergence", "--json").json()["found"])

    def test_says_each_setting_it_measured(self):
        done = self.search("--format", "int4:recent={}", "--range", "0:2", "--retain", 0.5)
        self.assertEqual(done.status, 0, done.err)
        self.assertIn("keeps", done.out)
        self.assertIn("strongest that keeps 0.5 of perplexity: int4", done.out)

    def test_what_cannot_be_is_refused(self):
        self.assert_refused(self.search("--format", "int4", "--values", "1,2"), "{}")
        self.assert_refused(self.search("--format", "kivi:bits={}"), "--values")
        self.assert_refused(self.search("--format", "kivi:bits={}", "--values", "2,5"), "5")
        self.assert_refused(self.search("--format", "int4:recent={}", "--range", "2:2"), "2:2")
        self.assert_refused(self.search("--format", "int4:recent={}", "--range", "0:0.5"), "--steps")


if __name__ == "__main__":
    unittest.main()
