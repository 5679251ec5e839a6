"""Prefill and decode workers over UCX, in builds that know it; what the flags say in all builds."""
# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import signal
import tempfile
import unittest

import program
import test_program_peer_faults as faults
from program import GQA, SMALL, call, complete, run, text_of
from test_program_workers import PROMPT, ForeignRouter, WorkerTest, park

OVER_UCX = ("--kv-transport", "ucx", "--kv-ucx-device", "lo")


def has_ucx():
    return run("version", "--json").json().get("ucx", False)


def needs_ucx(test):
    """Skips it, saying so, where the program was built without UCX."""
    there = os.access(program.PROGRAM, os.X_OK) and has_ucx()
    return unittest.skipUnless(there, "the program was built without UCX")(test)


@program.needs_program
class Flags(program.ProgramTest):
    def test_version_tells(self):
        self.assertIn(f"ucx: {'yes' if has_ucx() else 'no'}\n", run("version", "--verbose").out)

    def test_errors(self):
        cases = (
            (("--kv-ucx-device", "lo"), "--kv-ucx-device 'lo' is for --kv-transport ucx"),
            (("--kv-transport", "rdma"), "rdma"),
        )
        if has_ucx():
            cases += (
                (("--kv-transport", "ucx"), "--kv-transport ucx needs --kv-ucx-device"),
                (("--kv-transport", "ucx", "--kv-ucx-device", "nodevice7"), "nodevice7"),
                ((*OVER_UCX, "--kv-streams", 2), "--kv-streams is for --kv-transport tcp"),
            )
        else:
            cases += ((OVER_UCX, "this build has no UCX"),)
        for flags, sentence in cases:
            for command in (("decode", GQA, "--port", 0, *SMALL), ("bench", "transfer", GQA, "--text", __file__)):
                with self.subTest(command=command[0], flags=flags):
                    result = run(*command, *flags)
                    self.assertNotEqual(result.status, 0)
                    self.assertIn(sentence, result.err)

    # A file of its name that is none stands for a library that is missing.
    @needs_ucx
    def test_the_library_is_missed_by_those_alone_who_use_it(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("libucp.so.0", "libucs.so.0"):
                (pathlib.Path(folder) / name).touch()
            self.assertEqual(run("version", LD_LIBRARY_PATH=folder).status, 0)
            result = run("decode", GQA, "--port", 0, *SMALL, *OVER_UCX, LD_LIBRARY_PATH=folder)
            self.assertNotEqual(result.status, 0)
            self.assertIn("libucp.so.0 cannot be loaded", result.err)
            self.assertIn("libucx0", result.err)


# All that a foreign router does.
@needs_ucx
class ForeignRouterOverUcx(ForeignRouter):
    FLAGS = OVER_UCX
    PATH = "ucx"
    NOT_A_WORKER = 503  # UCX cannot say what else is at a port


@needs_ucx
class OverUcx(WorkerTest):
    def test_a_gateway_gives_the_text_of_one_process(self):
        prefill, decode = (self.worker(role, GQA, *OVER_UCX) for role in ("prefill", "decode"))
        gateway = self.gateway([prefill], [decode])
        alone = text_of(complete(decode.url, PROMPT, 20))
        self.assertEqual(text_of(complete(gateway.url, PROMPT, 20)), alone)
        links = {"tcp": 0, "shared_memory": 0, "ucx": 1, "tcp_streams": 0}
        self.assertEqual(call(decode.url, "/health").json()["links"], links)

    def test_a_worker_that_speaks_tcp_is_told(self):
        prefill = self.worker("prefill", GQA, *OVER_UCX, "--kv-timeout", 1)
        decode = self.worker("decode", GQA, "--kv-timeout", 1)
        params = park(prefill, PROMPT)
        answer = complete(decode.url, PROMPT, 2, kv_transfer_params=params)
        self.assertGreaterEqual(answer.status, 400)
        self.assertEqual(call(prefill.url, "/health").status, 200)

    def test_a_killed_prefill_worker_costs_the_request_alone(self):
        prefill = self.worker("prefill", GQA, *OVER_UCX)
        decode = self.worker("decode", GQA, *OVER_UCX)
        params = park(prefill, PROMPT)
        prefill.process.send_signal(signal.SIGKILL)
        prefill.process.wait()
        self.assertGreaterEqual(complete(decode.url, PROMPT, 2, kv_transfer_params=params).status, 400)
        other = self.worker("prefill", GQA, *OVER_UCX)
        self.assertEqual(complete(decode.url, PROMPT, 2, kv_transfer_params=park(other, PROMPT)).status, 200)


class FaultsOverUcx:
    PATH = "ucx"
    FLAGS = (*faults.Pushed.FLAGS, *OVER_UCX)


@needs_ucx
class PushedFaults(FaultsOverUcx, faults.Pushed):
    pass


@needs_ucx
class FetchedFaults(FaultsOverUcx, faults.Fetched):
    pass


# Not again where they belong.
del ForeignRouter, WorkerTest

if __name__ == "__main__":
    unittest.main()
