"""Tests of scripts/demo.py: against a stand-in for the program kvlane what it prints, and that it leaves
no process behind however it ends; against the program itself that splitting changes nothing.
"""
# SPDX-License-Identifier: Apache-2.0
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import program
from program import GQA, PROGRAM, ROOT

DEMO = ROOT / "scripts" / "demo.py"

# Speaks as much of kvlane's command line and API as the demo needs. Its behaviour is chosen by
# files beside it; it notes its process id, so that a test can see whether it is still there.
STAND_IN = r'''
import http.server, json, os, pathlib, sys, time
here = pathlib.Path(__file__).parent
role, arguments = sys.argv[1], sys.argv[2:]
(here / f"{role}.{os.getpid()}.pid").touch()
with open(here / "commands", "a") as log:
    log.write(json.dumps([role, *arguments]) + "\n")
if (here / f"{role}-dies").exists():
    sys.exit(3)
names = ["queue", "restore", "prefill", "prefill_attention", "prefill_quantise",
         "prefill_dequantise", "encode", "wait_for_memory", "transfer", "decode_codec", "decode", "decode_attention",
         "decode_dequantise", "other"]
account = {name: 0.001 for name in names} | {"total": 0.009}

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments): pass
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        (here / "request").write_text(json.dumps(request))
        if (here / "refuses").exists():
            body = json.dumps({"error": {"message": "the prompt is too long"}}).encode()
            self.send_response(400)
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        def event(value): self.wfile.write(f"data: {value}\n\n".encode()); self.wfile.flush()
        for text in (" and", " so", " \u00e9"):
            event(json.dumps({"choices": [{"text": text}]}, ensure_ascii=False))
        while (here / "stalls").exists(): time.sleep(0.05)
        if (here / "breaks").exists():
            return
        event(json.dumps({"choices": [], "kvlane": {"account": account,
              "kv": {"raw_bytes": 1000, "shipped_bytes": 800}}}))
        event("[DONE]")

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(json.dumps({"url": f"http://127.0.0.1:{server.server_port}"}), flush=True)
server.serve_forever()
'''


class DemoTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.program = self.folder / "kvlane"
        self.program.write_text(f"#!{sys.executable}\n{STAND_IN}", encoding="utf-8")
        self.program.chmod(0o755)

    def start(self, *arguments):
        command = [sys.executable, DEMO, "--program", self.program, "--model", "models/tiny", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run_demo(self, *arguments):
        """Exit status, stdout and stderr; whatever happened, nothing may be left running."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        self.assert_nothing_left()
        return process.returncode, out, err

    def pids(self):
        return [int(path.name.split(".")[1]) for path in self.folder.glob("*.pid")]

    def assert_nothing_left(self):
        for pid in self.pids():
            with self.assertRaises(ProcessLookupError, msg=f"process {pid} is still there"):
                os.kill(pid, 0)

    def commands(self):
        return [json.loads(line) for line in (self.folder / "commands").read_text().splitlines()]

    def test_json_is_one_object_on_stdout(self):
        status, out, err = self.run_demo("--json", "--prompt", "It rained", "--max-tokens", "7")
        self.assertEqual((status, err), (0, ""))
        answer = json.loads(out)
        self.assertEqual(set(answer), {"text", "account", "kv"})
        self.assertEqual(answer["text"], " and so é")
        self.assertEqual(answer["kv"], {"raw_bytes": 1000, "shipped_bytes": 800})
        self.assertEqual(answer["account"]["total"], 0.009)
        request = json.loads((self.folder / "request").read_text())
        self.assertEqual(request["prompt"], "It rained")
        self.assertEqual(request["max_tokens"], 7)
        self.assertEqual(request["model"], "tiny")

    def test_codec_goes_to_the_prefill_worker(self):
        self.run_demo("--json", "--kv-codec", "none")
        prefill = [command for command in self.commands() if command[0] == "prefill"]
        self.assertEqual(len(prefill), 1)
        self.assertEqual(prefill[0][prefill[0].index("--kv-codec") + 1], "none")

    def test_gateway_is_told_where_the_workers_are(self):
        self.run_demo("--json")
        gateway = [command for command in self.commands() if command[0] == "gateway"][0]
        for flag in ("--prefill", "--decode"):
            self.assertRegex(gateway[gateway.index(flag) + 1], r"^http://127\.0\.0\.1:\d+$")

    def test_for_people_it_shows_the_answer_the_account_and_both_codecs(self):
        status, out, _ = self.run_demo("--prompt", "It rained")
        self.assertEqual(status, 0)
        self.assertIn("It rained and so é\n", out)
        self.assertRegex(out, r"(?m)^prefill +1\.00 +11\.1%$")
        self.assertRegex(out, r"(?m)^  of it attention +1\.00 +11\.1%$")
        self.assertRegex(out, r"(?m)^total +9\.00 +100\.0%$")
        self.assertRegex(out, r"(?m)^none +1,000 +800 +1\.250$")
        self.assertRegex(out, r"(?m)^splitzip +1,000 +800 +1\.250$")

    def test_refused_request_is_one_sentence(self):
        (self.folder / "refuses").touch()
        status, out, err = self.run_demo("--json")
        self.assertEqual((status, out), (1, ""))
        self.assertEqual(err, "demo: the gateway answered 400: the prompt is too long\n")

    def test_process_that_dies_is_one_sentence(self):
        for role in ("prefill", "decode", "gateway"):
            with self.subTest(role):
                switch = self.folder / f"{role}-dies"
                switch.touch()
                status, out, err = self.run_demo("--json")
                switch.unlink()
                self.assertEqual((status, out), (1, ""))
                self.assertEqual(err, f"demo: the {role} process ended with status 3 before it was ready\n")

    def test_answer_that_breaks_off_is_an_error(self):
        (self.folder / "breaks").touch()
        status, out, err = self.run_demo("--json")
        self.assertEqual((status, out), (1, ""))
        self.assertEqual(err, "demo: the answer ended without [DONE]\n")

    def test_missing_program_is_one_sentence(self):
        self.program.unlink()
        status, out, err = self.run_demo("--json")
        self.assertEqual((status, out), (1, ""))
        self.assertEqual(len(err.splitlines()), 1, err)

    def test_interrupt_in_the_middle_of_an_answer_stops_everything(self):
        (self.folder / "stalls").touch()
        for number, expected in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                (self.folder / "request").unlink(missing_ok=True)
                process = self.start("--json")
                deadline = time.monotonic() + 30
                while not (self.folder / "request").exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
                process.send_signal(number)
                out, _ = process.communicate(timeout=30)
                self.assertEqual((process.returncode, out), (expected, ""))
                self.assert_nothing_left()


@program.needs_program
class RealDemoTest(unittest.TestCase):
    PROMPT = "The old sailor sat down by the fire and looked at the children."

    def demo(self, codec):
        command = [
            sys.executable, DEMO, "--program", PROGRAM, "--model", GQA, "--prompt", self.PROMPT,
            "--max-tokens", "24", "--kv-codec", codec, "--json",
        ]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(result.stdout)

    def test_three_processes_answer_as_one_with_every_codec(self):
        alone = program.run(
            "generate", GQA, "--prompt", self.PROMPT, "--max-tokens", 24, "--temperature", 0, "--json"
        ).json()
        plain, coded = self.demo("none"), self.demo("splitzip")
        self.assertEqual(plain["text"], alone["text"])
        self.assertEqual(coded["text"], alone["text"])
        self.assertEqual(plain["kv"]["raw_bytes"], coded["kv"]["raw_bytes"])
        # Headers cost something; the codec saves more.
        self.assertGreater(plain["kv"]["shipped_bytes"], plain["kv"]["raw_bytes"])
        self.assertLess(coded["kv"]["shipped_bytes"], plain["kv"]["shipped_bytes"])

    def test_time_account_adds_up(self):
        account = self.demo("splitzip")["account"]
        total = sum(account[name] for name in program.EXCLUSIVE)
        self.assertAlmostEqual(total, account["total"], places=6)
        for name in ("prefill", "decode"):
            self.assertGreater(account[name], 0, name)
        self.assertTrue(all(seconds >= 0 for seconds in account.values()), account)


if __name__ == "__main__":
    unittest.main()
