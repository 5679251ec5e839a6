"""`kvlane bench serve` against a running server: every way to send, and figures that agree with each other.
`kvlane bench gateway`, briefly.
"""
# SPDX-License-Identifier: Apache-2.0
import json
import signal
import statistics
import subprocess
import time
import unittest

import program
from program import GQA, SMALL, closed_port, run, wait_idle

LATENCIES = ("ttft", "tpot", "itl", "e2el")
DETAILS = ("conversations", "rounds", "input_lens", "cached_lens", "output_lens", "ttfts", "itls", "latencies",
           "start_times", "queue_times", "generated_texts", "errors")
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:46.{tenth}000000,{100 + 50 * tenth},{3 + tenth}\n" for tenth in range(6)
)
# Blocks 0 and 1 are shared: 32 tokens each when scaled by 1/16.
MOONCAKE = "".join(
    json.dumps({"timestamp": 50 * i, "input_length": 1100 + i, "output_length": 64, "hash_ids": [0, 1, 2 + i]}) + "\n"
    for i in range(6)
)


def percentile(values, percent):
    """Linear interpolation between the nearest two, written independently of the program."""
    values = sorted(values)
    place = (len(values) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])


@program.needs_program
class BenchServe(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.url = cls.class_server("serve", GQA, "--port", 0, *SMALL).url

    def tearDown(self):
        wait_idle(self.url)

    def bench(self, *flags):
        """Runs it; returns the saved result after checking that it agrees with itself."""
        path = self.folder() / "result.json"
        done = run("bench", "serve", "--base-url", self.url, "--save-result", path, "--save-detailed", *flags)
        self.assertEqual(done.status, 0, done.err)
        self.text = done.out
        result = json.loads(path.read_text())
        self.assert_agrees(result)
        return result

    def assert_agrees(self, result):
        """Sums, counts and means against the details of every request."""
        requests = len(result["errors"])
        for name in DETAILS:
            self.assertEqual(len(result[name]), requests, name)
        self.assertEqual(result["completed"], result["errors"].count(""))
        self.assertEqual(result["completed"] + result["failed"] + result["unfinished"], requests)
        self.assertEqual(sum(result["errors_by_kind"].values()), result["failed"])
        good = [i for i in range(requests) if result["errors"][i] == ""]
        self.assertEqual(result["total_input_tokens"], sum(result["input_lens"][i] for i in good))
        self.assertEqual(result["total_output_tokens"], sum(result["output_lens"]))
        duration = result["duration"]
        tokens = result["total_input_tokens"] + result["total_output_tokens"]
        self.assertAlmostEqual(result["request_throughput"] * duration, result["completed"], places=6)
        self.assertAlmostEqual(result["output_throughput"] * duration, result["total_output_tokens"], places=6)
        self.assertAlmostEqual(result["total_token_throughput"] * duration, tokens, places=6)
        samples = {
            "ttft": [result["ttfts"][i] for i in good],
            "itl": [gap for i in good for gap in result["itls"][i]],
            "e2el": [result["latencies"][i] for i in good],
            "tpot": [
                (result["latencies"][i] - result["ttfts"][i]) / (result["output_lens"][i] - 1)
                for i in good
                if result["output_lens"][i] > 1
            ],
        }
        for name, seconds in samples.items():
            if not seconds:
                continue
            self.assertAlmostEqual(result[f"mean_{name}_ms"], 1000 * statistics.fmean(seconds), places=6)
            self.assertAlmostEqual(result[f"median_{name}_ms"], 1000 * statistics.median(seconds), places=6)
            self.assertAlmostEqual(result[f"std_{name}_ms"], 1000 * statistics.pstdev(seconds), places=6)
            self.assertAlmostEqual(result[f"p99_{name}_ms"], 1000 * percentile(seconds, 99), places=6)
        for i in good:
            together = result["ttfts"][i] + sum(result["itls"][i])
            self.assertAlmostEqual(together, result["latencies"][i], places=9)
            self.assertGreater(result["ttfts"][i], 0)
            self.assertGreaterEqual(result["queue_times"][i], 0)
            self.assertLessEqual(result["start_times"][i] + result["latencies"][i], duration)
        self.assertGreaterEqual(result["max_lateness_ms"], 0)
        shares = result["account_shares"]
        self.assertAlmostEqual(sum(shares[name] for name in program.EXCLUSIVE), 1, places=6)

    def test_open_loop(self):
        result = self.bench("--input-len", 20, "--output-len", 6, "--request-rate", 40, "--num-prompts", 20,
                            "--range-ratio", 0.5, "--percentiles", "50,99", "--goodput", "ttft:60000", "e2el:60000")
        self.assertEqual((result["completed"], result["failed"]), (20, 0))
        self.assertEqual(result["request_rate"], 40)
        self.assertAlmostEqual(max(result["start_times"]), 20 / 40, places=9)
        self.assertEqual(result["start_times"], sorted(result["start_times"]))
        self.assertTrue(all(10 <= length <= 30 for length in result["input_lens"]))
        self.assertTrue(all(3 <= length <= 9 for length in result["output_lens"]))
        self.assertEqual(result["request_goodput"], result["request_throughput"])
        self.assertEqual(result["p50_ttft_ms"], result["median_ttft_ms"])
        self.assertTrue(self.text.startswith("============ Serving Benchmark Result ============\n"))
        self.assertRegex(self.text, r"Successful requests: +20\n")
        self.assertRegex(self.text, r"P99 ITL \(ms\): +\d+\.\d\d\n")

    def test_closed_loop_with_warm_up(self):
        result = self.bench("--input-len", 16, "--output-len", 4, "--concurrency", 3, "--num-prompts", 12,
                            "--warmup", 2)
        self.assertEqual(result["completed"], 12)
        self.assertLessEqual(result["max_concurrent_requests"], 3)
        self.assertEqual(result["max_concurrency"], 3)
        self.assertEqual(set(result["queue_times"]), {0})

    def test_all_at_once_with_a_limit(self):
        result = self.bench("--input-len", 16, "--output-len", 4, "--max-concurrency", 2, "--num-prompts", 6)
        self.assertEqual((result["completed"], result["request_rate"]), (6, "inf"))
        self.assertEqual(set(result["start_times"]), {0})
        self.assertGreater(max(result["queue_times"]), 0)
        self.assertIn("median_client_queue_time_ms", result)

    def test_what_is_asked_and_answered_does_not_depend_on_timing(self):
        flags = ("--input-len", 24, "--output-len", 5, "--range-ratio", 0.5, "--num-prompts", 8, "--seed", 7)
        results = [
            self.bench(*flags, "--request-rate", "inf"),
            self.bench(*flags, "--concurrency", 1),
            self.bench(*flags, "--request-rate", 50, "--burstiness", 0.3),
        ]
        for result in results[1:]:
            self.assertEqual(result["input_lens"], results[0]["input_lens"])
            self.assertEqual(result["output_lens"], results[0]["output_lens"])
            self.assertEqual(result["generated_texts"], results[0]["generated_texts"])
        other = self.bench(*flags[:-1], 8, "--concurrency", 1)
        self.assertNotEqual(other["generated_texts"], results[0]["generated_texts"])

    def test_azure_trace_at_its_times(self):
        path = self.folder() / "trace.csv"
        path.write_text(AZURE)
        result = self.bench("--dataset", "azure", "--dataset-path", path, "--scale-lengths", 0.1, "--time-scale", 0.5)
        self.assertEqual(result["input_lens"], [10, 15, 20, 25, 30, 35])
        self.assertEqual(result["output_lens"], [1] * 6)
        for i, start in enumerate(result["start_times"]):
            self.assertAlmostEqual(start, 0.05 * i, places=5)
        self.assertIsNone(result["request_rate"])

    def test_mooncake_trace(self):
        path = self.folder() / "trace.jsonl"
        path.write_text(MOONCAKE)
        result = self.bench("--dataset", "mooncake", "--dataset-path", path, "--scale-lengths", 1 / 16)
        self.assertEqual(result["input_lens"], [69] * 6)
        self.assertEqual(result["output_lens"], [4] * 6)
        self.assertAlmostEqual(max(result["start_times"]), 0.25, places=9)

    def test_a_trace_is_cut_to_the_context(self):
        path = self.folder() / "trace.jsonl"
        path.write_text(MOONCAKE)
        result = self.bench("--dataset", "mooncake", "--dataset-path", path, "--concurrency", 2, "--num-prompts", 3,
                            "--max-model-len", 100)
        self.assertEqual(result["shortened_prompts"], 3)
        self.assertEqual(result["input_lens"], [50] * 3)
        self.assertEqual(result["output_lens"], [50] * 3)

    def test_sessions_repeat_what_was_said(self):
        result = self.bench("--input-len", 10, "--output-len", 4, "--rounds", 3, "--think-time", 0.01,
                            "--concurrency", 2, "--num-prompts", 6, "--prefix-len", 5)
        self.assertEqual(sorted(result["input_lens"]), [15, 15, 29, 29, 43, 43])
        rounds = sorted(zip(result["conversations"], result["rounds"], result["input_lens"]))
        self.assertEqual(rounds, [(talk, turn, 1 + 14 * turn) for talk in (0, 1) for turn in (1, 2, 3)])

    def test_what_the_server_had_of_a_prompt_is_told(self):
        result = self.bench("--input-len", 20, "--output-len", 20, "--rounds", 2, "--concurrency", 1,
                            "--num-prompts", 2, "--prefix-len", 100, "--seed", 3)
        self.assertEqual(result["rounds"], [1, 2])
        self.assertEqual(result["cached_lens"], [0, 128])
        self.assertEqual(result["total_cached_tokens"], 128)

    def test_a_papers_workload(self):
        result = self.bench("--dataset", "imdb", "--num-prompts", 4, "--concurrency", 4)
        self.assertEqual(result["completed"], 4)
        self.assertTrue(all(106 <= length <= 821 for length in result["input_lens"]))
        self.assertTrue(all(16 <= length <= 87 for length in result["output_lens"]))

    def test_text_prompts(self):
        result = self.bench("--prompts", "text", "--input-len", 30, "--output-len", 4, "--num-prompts", 3)
        self.assertEqual(result["completed"], 3)
        self.assertTrue(all(length > 20 for length in result["input_lens"]))

    def test_figures_have_documented_names_and_units(self):
        done = run("bench", "serve", "--base-url", self.url + "/v1", "--input-len", 16, "--output-len", 3,
                   "--num-prompts", 4, "--goodput", "ttft:60000", "--json")
        figures = self.figures_of(done, signs=(0, 1))
        report = done.json()
        self.assertEqual(set(report), {"machine", "commit", "command", "results"})
        self.assertIn("--input-len 16", report["command"])
        for latency in LATENCIES:
            self.assertLessEqual(figures[f"median_{latency}_ms"]["value"], figures[f"p99_{latency}_ms"]["value"])
        self.assertEqual(figures["total_output_tokens"]["value"], 12)

    def test_refused_requests_are_counted(self):
        # The server allows 1,024 tokens; the flag says that there are more.
        path = self.folder() / "result.json"
        done = run("bench", "serve", "--base-url", self.url, "--max-model-len", 5000, "--input-len", 2000,
                   "--output-len", 3, "--num-prompts", 2, "--save-result", path)
        self.assertEqual(done.status, 1)
        self.assertIn("no request was answered; the first failure: the server answered 400", done.err)
        result = json.loads(path.read_text())
        self.assertEqual((result["completed"], result["errors_by_kind"]), (0, {"http_400": 2}))
        self.assertRegex(done.out, r"http_400: +2\n")

    def test_an_interrupt_ends_it_and_tells_what_there_is(self):
        path = self.folder() / "result.json"
        command = [program.PROGRAM, "bench", "serve", "--base-url", self.url, "--input-len", "8", "--output-len",
                   "4", "--request-rate", "20", "--num-prompts", "100000", "--save-result", path]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=program.environment())
        self.addCleanup(process.kill)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=program.PATIENCE)
        self.assertEqual(process.returncode, 0, err)
        self.assertIn(b"interrupted", out)
        result = json.loads(path.read_text())
        self.assertTrue(result["interrupted"])
        self.assertGreater(result["completed"], 0)
        self.assertLess(result["completed"], 1000)

    def test_bad_flags_and_files_are_told(self):
        broken = self.folder() / "broken.jsonl"
        broken.write_text('{"timestamp": 0, "input_length": 1, "output_length": 1}\n{"timestamp": 0}\n')
        for flags, fragment in (
            (("--request-rate", "fast"), "--request-rate must be a positive number or inf, not 'fast'"),
            (("--request-rate", "-1"), "not '-1'"),
            (("--concurrency", 1, "--request-rate", 1), "not both"),
            (("--concurrency", 1, "--max-concurrency", 1), "give one of them"),
            (("--goodput", "itl:5"), "not 'itl:5'"),
            (("--dataset", "mooncake"), "needs the path of a trace"),
            (("--dataset", "mooncake", "--dataset-path", broken), "broken.jsonl: line 2: input_length is missing"),
            (("--extra-body", "[]"), "not a JSON object"),
        ):
            with self.subTest(flags=flags):
                self.assert_refused(run("bench", "serve", "--base-url", self.url, *flags), fragment)
        for flag in ("--timeout", "--think-time", "--burstiness", "--time-scale"):
            with self.subTest(flag=flag):
                self.assert_refused(run("bench", "serve", flag, "nan"), "must be a number from", status=2)
        nobody = f"http://127.0.0.1:{closed_port()}"
        self.assert_refused(run("bench", "serve", "--base-url", nobody), "Connection refused")


@program.needs_program
class BenchGateway(program.ProgramTest):
    def test_figures(self):
        done = run("bench", "gateway", "--streams", 5, "--tokens", 5, "--interval-ms", 10, "--repeats", 1, "--json",
                   KVLANE_API_KEY="not for mock workers")
        figures = self.figures_of(done, signs=(-1, 0, 1))  # some are differences
        self.assertEqual(figures["gateway_streams"]["value"], 5)
        self.assertGreater(figures["gateway_cpu_per_token"]["value"], 0)
        self.assertGreaterEqual(figures["gateway_ttft_median_ms"]["baseline"], 20 - 0.1)
        self.assertEqual(
            [figures[f"gateway_{what}_added_ms"]["goal"]
             for what in ("ttft_median", "ttft_p99", "token_median", "token_p99")],
            [1, 5, 1, 5],
        )


if __name__ == "__main__":
    unittest.main()
