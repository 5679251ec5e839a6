"""A trace through the real server: its state store stays under the limits of disk and memory, and is of use.

    python3 -m unittest discover -s tests -p 'test_program_replay.py'
    KVLANE_TRACE=conversation_trace.jsonl python3 -m unittest ...      # all of Mooncake's trace

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import json
import os
import pathlib
import random
import re
import threading
import time
import unittest

from program import GQA, ProgramTest, call, needs_program, run

MIB = 1 << 20
KV_MEMORY, STORE_MEMORY = 8 * MIB, 4 * MIB
TRACE = os.environ.get("KVLANE_TRACE")
# What requests, connections and libraries take as they come, and headers of all that is stored.
OTHER_MEMORY = (80 if TRACE else 48) * MIB
# docs/restore.md: hidden states pass through a ring, which stays, and extents wait for a disk that is behind.
RING, WAITING = 64 * MIB, 256 * MIB


def conversations(requests):
    """Lines like those of Mooncake's traces: conversations in turn, whose prompts grow by blocks of 512 tokens."""
    rng = random.Random(2)
    talks = [[talk] for talk in range(20)]
    blocks = len(talks)
    for number in range(requests):
        talk = rng.choice(talks)
        if len(talk) > 20:
            del talk[1:]
        talk.extend(range(blocks, blocks + rng.randint(1, 8)))
        blocks += 8
        yield {
            "timestamp": 10 * number,
            "input_length": 512 * len(talk) - rng.randint(0, 400),
            "output_length": rng.randint(50, 500),
            "hash_ids": talk,
        }


class Watch:
    """The most that a process and its store took while it was looked at."""

    def __init__(self, process, folder):
        self.process, self.folder = process, folder
        self.disk = self.memory = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.look)

    def look(self):
        while not self.over.wait(0.05):
            self.disk = max(self.disk, sum(map(self.disk_bytes, self.folder.rglob("*.seg"))))
            self.memory = max(self.memory, self.resident())

    @staticmethod
    def disk_bytes(path):
        try:
            return 512 * path.stat().st_blocks
        except FileNotFoundError:  # deleted meanwhile
            return 0

    def resident(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])

    def __enter__(self):
        self.before = self.resident()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


@needs_program
class ReplayTest(ProgramTest):
    def replay(self, limit):
        folder = self.folder()
        path = pathlib.Path(TRACE) if TRACE else folder / "trace.jsonl"
        if not TRACE:
            path.write_text("".join(json.dumps(line) + "\n" for line in conversations(200)), encoding="utf-8")
        store = folder / "store"
        server = self.server(
            "serve", GQA, "--port", "0", "--threads", "1", "--kv-memory", KV_MEMORY, "--host-memory", "0",
            "--max-num-seqs", "8", "--store", store, "--store-max", limit, "--store-memory", STORE_MEMORY,
        )  # fmt: skip
        with Watch(server.process, store) as watch:
            done = run("bench", "serve", "--base-url", server.url, "--dataset", "trace", "--dataset-path", path,
                       "--scale-lengths", "0.02", "--concurrency", "8", "--json", timeout=3600)  # fmt: skip
        self.assertEqual(done.status, 0, done.err)
        value = {figure["name"]: figure["value"] for figure in done.json()["results"]}
        self.assertGreater(value["completed"], 150)
        self.assertEqual(value["failed"], 0)
        metrics = call(server.url, "/metrics").body.decode()
        hits = float(re.search(r"^kvlane_store_hit_tokens_total\S* (\S+)$", metrics, re.MULTILINE)[1])
        self.assertEqual(float(re.search(r"^kvlane_restores_failed_total\S* (\S+)$", metrics, re.MULTILINE)[1]), 0)
        self.assertGreater(watch.disk, min(limit, 8 * MIB) // 2)
        # Files of many holes have an index in their file system.
        self.assertLessEqual(watch.disk, limit + MIB // 8)
        settled = watch.before + KV_MEMORY + STORE_MEMORY + OTHER_MEMORY + RING
        self.assertLessEqual(watch.memory, settled + WAITING)
        deadline = time.monotonic() + 60  # until all is written
        while watch.resident() > settled and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertLessEqual(watch.resident(), settled)
        return hits

    def test_a_small_store_stays_small(self):
        self.replay(8 * MIB)

    def test_a_large_store_brings_back_what_memory_has_lost(self):
        self.assertGreater(self.replay(1 << 32), 0)


if __name__ == "__main__":
    unittest.main()
