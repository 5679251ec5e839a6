"""Transfers whose peer is killed or frozen where no relay can stand between the workers: at moments spread over the
time that an undisturbed one takes. Here links are in shared memory; over UCX: test_program_ucx.py.
"""
# SPDX-License-Identifier: Apache-2.0
import json
import statistics
import threading
import time
import unittest

import program
from peer_faults import LEASE, TIMEOUT, FaultTest, Fetch, Push
from program import GQA, call, run

# Its KV is large beside what it costs to compute: 128 KiB a token.
WIDE = {
    "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 32, "num_attention_heads": 8,
    "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip
EIGHTHS = range(9)


class PeerFaults(FaultTest):
    PATH = "shared_memory"  # what carries links
    # Each transfer takes the same time, and its text is made of what came.
    FLAGS = ("--no-enable-prefix-caching",)
    MAX_TOKENS = 2  # of which the second needs the KV, and takes as long to make as the KV takes to come

    @classmethod
    def setUpClass(cls):
        folder = cls.class_folder()
        (folder / "config.json").write_text(json.dumps(json.loads((GQA / "config.json").read_text()) | WIDE))
        cls.MODEL = folder / "model"
        made = run("synth", "--config", folder / "config.json", "--out", cls.MODEL, "--tokenizer", GQA)
        assert made.status == 0, made.err

    def arm(self, moment, fault, victim):
        """Has the fault happen so many seconds after the next transfer began."""
        self.fired = False
        self.timer = threading.Timer(moment, self.hit, (fault, victim))
        self.addCleanup(self.timer.cancel)

    def begins(self):
        self.began = time.monotonic()
        if self.timer:
            self.timer.start()
            self.timer = None

    def check_undisturbed(self, workers, expected, retries=0):
        super().check_undisturbed(workers, expected, retries)
        for worker in workers.values():
            links = call(worker.url, "/health").json()["links"]
            self.assertEqual({path for path, count in links.items() if count}, {self.PATH})

    def usual_seconds(self, workers, expected):
        times = []
        for _ in range(3):
            self.check_undisturbed(workers, expected)
            times.append(time.monotonic() - self.began)
        return statistics.median(times)

    def end_links(self, workers, victim):
        """The next transfer opens a link of its own: the victim ends in order, and there is another."""
        self.assertEqual(workers[victim].stop(), 0)
        workers[victim] = self.start_again(workers[victim])

    def setUp(self):
        super().setUp()
        self.timer = None  # of a fault that is still to come

    def test_every_moment(self):
        workers = {role: self.start(role) for role in ("prefill", "decode")}
        expected = self.alone(workers["decode"])
        usual = self.usual_seconds(workers, expected)
        times = []
        for fault in ("frozen", "killed"):
            for role in workers:
                for eighth in EIGHTHS:
                    for worker in workers.values():
                        self.assertIsNone(worker.process.poll(), worker.stderr())  # nobody else has ended it
                    with self.subTest(fault=fault, victim=role, moment=f"{eighth}/8 of {usual:.3f} s"):
                        if eighth % 2:  # the others find one
                            self.end_links(workers, role)
                        self.arm(usual * eighth / 8, fault, workers[role])
                        times.append(self.check_fault(workers, fault, role, expected))
        self.assertLess(statistics.median(times), TIMEOUT + LEASE)


@program.needs_program
class Pushed(Push, PeerFaults):
    pass


@program.needs_program
class Fetched(Fetch, PeerFaults):
    pass


# Not by itself.
del PeerFaults

if __name__ == "__main__":
    unittest.main()
