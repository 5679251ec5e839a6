"""Many clients at once on several workers, some of which leave in the middle, while workers are killed and come
back: every answer that comes is the right one, and in the end nobody holds anything.

    KVLANE_PROGRAM=build/release/kvlane python3 -m unittest discover -s tests -p 'test_program_stress.py'
"""
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import json
import os
import pathlib
import random
import re
import signal
import threading
import time
import unittest

import program
from program import GQA, PATIENCE, SMALL, complete, connect, stream_completion, wait_idle

SECONDS = 10
CLIENTS = 12
NARROW = "1200KiB"  # a long prompt fits, a second one does not
STORY = "The rain beat against the windows of the little house, and nobody spoke. "


def requests():
    """Fields of the requests that the clients choose from."""
    chosen = []
    for i in range(24):
        start = "" if i % 3 else f"Chapter {i}. "  # most begin alike
        prompt = start + STORY * (1 + i % 7) + "The old sailor"[: i + 1]
        fields = {"prompt": prompt, "max_tokens": 4 + i, "ignore_eos": True}
        if i % 2:
            fields |= {"temperature": 1.0, "seed": i}
        if i % 8 == 7:
            fields |= {"n": 3}
        chosen.append(fields)
    return chosen


def texts(choices):
    return [choice["text"] for choice in sorted(choices, key=lambda choice: choice["index"])]


def resident_bytes(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) << 10


class Clients:
    """Threads that ask until they are told to stop; what went wrong is in `wrong`."""

    def __init__(self, url, expected):
        self.url, self.expected = url, expected
        self.stop = threading.Event()
        self.right, self.left, self.refused, self.wrong = 0, 0, 0, []
        self.lock = threading.Lock()

    def run(self, seed):
        dice = random.Random(seed)
        while not self.stop.is_set():
            fields, expected = dice.choice(self.expected)
            way = dice.choice((self.whole, self.whole, self.stream, self.leave, self.leave_at_once))
            try:
                outcome = way(dice, fields, expected)
            except Exception as error:  # noqa: BLE001 - whatever it is, the test tells it
                outcome = repr(error)
            with self.lock:
                if outcome in ("right", "left", "refused"):
                    setattr(self, outcome, getattr(self, outcome) + 1)
                else:
                    self.wrong.append(outcome)

    def whole(self, dice, fields, expected):
        answer = complete(self.url, **fields)
        if answer.status != 200:
            return self.judge_refusal(answer.status, answer.body)
        got = texts(answer.json()["choices"])
        return "right" if got == expected else f"{got} instead of {expected}"

    @staticmethod
    def judge_refusal(status, body):
        """A worker was killed: that may be told, in the proper form."""
        message = json.loads(body)["error"]["message"]
        return "refused" if status in (429, 502, 503, 504) and message else f"{status}: {body}"

    def stream(self, dice, fields, expected):
        return self.read_stream(fields, expected, None)

    def leave(self, dice, fields, expected):
        return self.read_stream(fields, expected, dice.randint(0, 10))

    def read_stream(self, fields, expected, events_max):
        got = [""] * len(expected)
        with stream_completion(self.url, **fields) as stream:
            if stream.response.status != 200:
                return self.judge_refusal(stream.response.status, stream.response.read())
            for count, event in enumerate(stream):
                if "error" in event:
                    return "refused"
                if count == events_max:
                    return "left"
                for choice in event["choices"]:
                    got[choice["index"]] += choice["text"]
            if not stream.done:
                return "a stream ended without [DONE] and without an error"
        return "right" if got == expected else f"{got} instead of {expected}"

    def leave_at_once(self, dice, fields, expected):
        connection = connect(self.url)
        connection.request("POST", "/v1/completions", json.dumps(fields), {"Content-Type": "application/json"})
        time.sleep(dice.random() * 0.05)
        connection.close()
        return "left"


@program.needs_program
class Stress(program.ProgramTest):
    def test_right_answers_and_nothing_left_behind(self):
        alone = self.server("serve", GQA, "--port", 0, *SMALL)
        expected = []
        for fields in requests():
            answer = complete(alone.url, **fields)
            self.assertEqual(answer.status, 200, answer.body)
            expected.append((fields, texts(answer.json()["choices"])))

        # On fixed ports: who is killed comes back where it was.
        ports = [program.closed_port() for _ in range(4)]
        roles = ("prefill", "prefill", "decode", "decode")

        def start(i):
            memory = "16MiB" if roles[i] == "prefill" else NARROW
            return self.server(
                roles[i], GQA, "--port", ports[i], "--threads", 1, "--kv-memory", memory, "--host-memory", "4MiB",
                "--lease", 5,
            )  # fmt: skip

        workers = [start(i) for i in range(4)]
        urls = [worker.url for worker in workers]
        gateway = self.server("gateway", "--prefill", *urls[:2], "--decode", *urls[2:], "--port", 0)

        clients = Clients(gateway.url, expected)
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            running = [pool.submit(clients.run, seed) for seed in range(CLIENTS)]
            try:
                time.sleep(0.3 * SECONDS)
                before = [resident_bytes(server) for server in (gateway, workers[1], workers[3])]
                for i in (0, 2):
                    os.kill(workers[i].process.pid, signal.SIGKILL)
                    workers[i].process.wait()
                    time.sleep(0.05 * SECONDS)
                    workers[i] = start(i)
                    time.sleep(0.25 * SECONDS)
            finally:
                clients.stop.set()
            for one in running:
                one.result(PATIENCE)
        self.assertEqual(clients.wrong, [])
        self.assertGreater(clients.right, 10 * CLIENTS)
        self.assertGreater(clients.left, CLIENTS)
        self.assertLess(clients.refused, clients.right)
        for worker in workers:
            wait_idle(worker.url)
        after = [resident_bytes(server) for server in (gateway, workers[1], workers[3])]
        for now, then in zip(after, before):
            self.assertLess(now - then, 32 << 20)


if __name__ == "__main__":
    unittest.main()
