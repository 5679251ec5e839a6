"""`kvlane simulate`: a cluster as a user asks about it.

    python3 -m unittest discover -s tests -p 'test_program_simulate.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib
import tempfile
import unittest

from program import GQA, ROOT, needs_program, run

CONFIG = ROOT / "tests" / "fixtures" / "configs" / "llama-3.1-8b.json"
CLUSTER = ("--prefill", "2xA100-80GB-SXM:net=25", "--decode", "2xA100-80GB-SXM:net=25")
LOAD = ("--dataset", "arxiv", "--request-rate", "2", "--num-prompts", "200")


@needs_program
class Simulate(unittest.TestCase):
    def results(self, *flags):
        done = run("simulate", CONFIG, *flags, "--json")
        self.assertEqual(done.status, 0, done.err)
        self.assertEqual(done.err, "")
        return {each["kv"]: each for each in done.json()["results"]}

    def assert_refused(self, words, *flags, status=1):
        done = run("simulate", *flags)
        self.assertEqual((done.status, done.out), (status, ""))
        self.assertIn(words, done.err)
        self.assertEqual(done.err.count("\n"), 1, done.err)

    def test_formats_side_by_side(self):
        results = self.results(*CLUSTER, *LOAD, "--kv-format", "bf16", "kivi:bits=2", "hack", "--kv-codec", "none",
                               "splitzip")
        self.assertEqual(list(results), ["bf16", "bf16 + splitzip", "kivi:bits=2", "hack"])
        for each in results.values():
            self.assertEqual((each["completed"], each["refused"]), (200, 0))
            account = each["account"]
            parts = ("prefill_", "decode_a", "decode_d")
            whole = sum(seconds for name, seconds in account.items() if not name.startswith(parts))
            self.assertAlmostEqual(whole, each["completion"]["mean"], places=9)
            self.assertLess(each["ttft"]["mean"], each["completion"]["mean"])
            self.assertLessEqual(each["decode"]["kv_memory_peak"], 1)
        rows, coded, hack = results["bf16"], results["bf16 + splitzip"], results["hack"]
        self.assertEqual(rows["resident_bytes"], 4096)
        self.assertAlmostEqual(rows["wire_bytes_total"] / coded["wire_bytes_total"], 1.3225, places=6)
        self.assertGreater(hack["decode"]["kv_tokens"], 5 * rows["decode"]["kv_tokens"])
        self.assertLess(hack["completion"]["mean"], rows["completion"]["mean"])

    def test_the_same_twice_and_another_seed(self):
        one, same, other = (self.results(*CLUSTER, *LOAD, "--seed", seed) for seed in (1, 1, 2))
        self.assertEqual(one, same)
        self.assertNotEqual(one["bf16"]["completion"], other["bf16"]["completion"])

    def test_without_prefill_replicas_nothing_travels(self):
        result = self.results("--decode", "4xA100-80GB-SXM", *LOAD)["bf16"]
        self.assertEqual(result["wire_bytes_total"], 0)
        self.assertEqual(result["account"]["transfer"], 0)
        self.assertEqual(result["completed"], 200)

    def test_a_slow_link_is_what_a_request_waits_for(self):
        slow = ("--prefill", "2xA100-80GB-SXM:net=1", "--decode", "2xA100-80GB-SXM:net=1")
        load = ("--dataset", "arxiv", "--request-rate", "0.005", "--num-prompts", "50")
        results = self.results(*slow, *load, "--kv-format", "bf16", "hack", "--kv-push", "whole")
        self.assertGreater(results["bf16"]["account"]["transfer"], 0.5 * results["bf16"]["completion"]["mean"])
        ratio = results["bf16"]["account"]["transfer"] / results["hack"]["account"]["transfer"]
        self.assertAlmostEqual(ratio, 4096 / results["hack"]["wire_bytes"], delta=0.3)

    def test_a_trace_at_its_own_times(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "trace.jsonl"
            lines = [{"timestamp": 1000 * i, "input_length": 500, "output_length": 20} for i in range(30)]
            trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
            done = run("simulate", CONFIG, "--decode", "H100-SXM", "--dataset", "mooncake", "--dataset-path", trace,
                       "--json")
            self.assertEqual(done.status, 0, done.err)
            self.assertEqual(done.json()["requests"], 30)
            self.assertEqual(done.json()["last_arrival"], 29)

    def test_prefixes_are_found_unless_told_otherwise(self):
        lengths = ("--input-len", "100", "--output-len", "5", "--prefix-len", "2000")
        load = (*lengths, "--request-rate", "2", "--num-prompts", "100")
        cluster = ("--decode", "A100-80GB-SXM", "--kv-format", "bf16")
        found = self.results(*cluster, *load)["bf16"]
        computed = self.results(*cluster, *load, "--no-enable-prefix-caching")["bf16"]
        # 31 complete blocks of the prefix, for all but the first.
        self.assertAlmostEqual(found["prefix_hit_rate"], 0.99 * 31 * 64 / 2100, delta=0.03)
        self.assertEqual(computed["prefix_hit_rate"], 0)
        self.assertLess(found["ttft"]["mean"], 0.5 * computed["ttft"]["mean"])

    def test_the_rate_that_reaches_goals(self):
        load = ("--input-len", "2000", "--output-len", "20", "--request-rate", "1", "--num-prompts", "400")
        goals = ("--find-rate", "--goodput", "ttft:1000", "tpot:50")
        results = self.results(*CLUSTER, *load, *goals, "--kv-format", "bf16")
        more = ("--prefill", "4xA100-80GB-SXM:net=25", *CLUSTER[2:])
        wider = self.results(*more, *load, *goals, "--kv-format", "bf16")["bf16"]
        self.assertGreaterEqual(results["bf16"]["good"], 0.9)
        self.assertGreater(results["bf16"]["request_rate"], 2)
        self.assertGreater(wider["request_rate"], 1.5 * results["bf16"]["request_rate"])
        strict = self.results(*CLUSTER, *load, *goals, "--attainment", "1", "--kv-format", "bf16")["bf16"]
        self.assertLess(strict["request_rate"], results["bf16"]["request_rate"])
        done = run("simulate", CONFIG, *CLUSTER, *load, "--find-rate", "--goodput", "e2el:1e9", "--kv-format", "bf16")
        self.assertIn("all requests at once reach the goals", done.out)
        done = run("simulate", CONFIG, *CLUSTER, *load, "--find-rate", "--goodput", "ttft:1", "--kv-format", "bf16")
        self.assertIn("even requests that come alone miss the goals", done.out)
        self.assert_refused("--find-rate needs --goodput", CONFIG, *CLUSTER, *load, "--find-rate")

    def test_one_connection_may_be_the_limit(self):
        load = ("--input-len", "4000", "--output-len", "5", "--request-rate", "0.01", "--num-prompts", "20")
        both = ("--kv-format", "bf16", "--kv-push", "whole")
        limited = self.results(*CLUSTER, *load, *both, "--flow-limit", "5")["bf16"]["account"]["transfer"]
        alone = self.results(*CLUSTER, *load, *both)["bf16"]["account"]["transfer"]
        self.assertAlmostEqual(limited / alone, 5, delta=0.01)

    def test_codes_may_be_opened_in_memory(self):
        kivi = ("--kv-format", "kivi:bits=2")
        inside = self.results(*CLUSTER, *LOAD, *kivi)["kivi:bits=2"]["account"]["decode_dequantise"]
        memory = self.results(*CLUSTER, *LOAD, *kivi, "--unfused")["kivi:bits=2"]["account"]["decode_dequantise"]
        self.assertGreater(memory, 5 * inside)

    def test_gpus_of_ones_own(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "gpus.json"
            gpu = {"name": "slow", "memory_gb": 80, "memory_gb_s": 200, "matrix_tflops": 31, "vector_tflops": 2}
            file.write_text(json.dumps([gpu]))
            slow = self.results("--gpus", file, "--decode", "slow", *LOAD)["bf16"]
            fast = self.results("--gpus", file, "--decode", "A100-80GB-SXM", *LOAD)["bf16"]
            self.assertGreater(slow["completion"]["mean"], 5 * fast["completion"]["mean"])
            file.write_text('[{"name": "slow"}]')
            self.assert_refused("GPU 1: 'memory_gb' is missing", CONFIG, "--gpus", file, "--decode", "slow")

    def test_a_folder_is_named_and_windows_are_not_simulated(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "windowed"
            model.mkdir()
            config = json.loads((ROOT / "tests" / "fixtures" / "configs" / "mistral-7b-v0.3.json").read_text())
            config["sliding_window"] = 4096
            (model / "config.json").write_text(json.dumps(config))
            done = run("simulate", f"{model}/", "--decode", "H100-SXM", "--num-prompts", "5")
            self.assertEqual(done.status, 0, done.err)
            self.assertTrue(done.out.startswith("windowed, 5 requests of random"), done.out)
            self.assertIn("sliding window is not simulated", done.out)

    def test_tables_for_people(self):
        done = run("simulate", GQA, "--decode", "L4", "--num-prompts", "20", "--input-len", "200", "--output-len", "20",
                   "--request-rate", "5")
        self.assertEqual(done.status, 0, done.err)
        for words in ("kvlane-tiny-gqa, 20 requests of random", "serving: 1 replica of 1 L4", "share of completion",
                      "its KV peak"):
            self.assertIn(words, done.out)

    def test_what_cannot_be(self):
        self.assert_refused("the weights, 16 GB, leave no room", CONFIG, "--decode", "T4")
        self.assert_refused("no GPU 'X1' is known", CONFIG, "--decode", "X1")
        self.assert_refused("codecs to simulate are", CONFIG, "--decode", "L4", "--kv-codec", "zip")
        self.assert_refused("several rounds", CONFIG, "--decode", "H100-SXM", "--rounds", "2")
        self.assert_refused("--decode is required", CONFIG, status=2)
        self.assert_refused("No such file", "/nowhere.json", "--decode", "L4")


if __name__ == "__main__":
    unittest.main()
