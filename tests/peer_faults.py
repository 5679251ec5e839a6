"""What is done to one of the two workers of a transfer, and what is asked of both then: the right answer or a clean
error within the time limit, no block left behind, the right answer the next time. Who inherits says when it is done.
"""
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import secrets
import signal
import time

import program
from program import GQA, SMALL, complete, wait_idle, wait_until
from test_program_workers import LONG_PROMPT, attach, park, reserve

TIMEOUT, LEASE = 1, 2  # seconds
# For whatever waits for one of them on a machine that does something else as well; less than the lease's default.
NOTICED = 20
SIGNALS = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}


class FaultTest(program.ProgramTest):
    MODEL = GQA
    FLAGS = ()  # of both workers
    MAX_TOKENS = 16

    def setUp(self):
        self.threads = concurrent.futures.ThreadPoolExecutor(4)
        self.addCleanup(self.threads.shutdown)
        self.fired = False  # the fault has happened

    def start(self, role, port=0, kv_port=0):
        held = ("--kv-push-memory", "256MiB") if role == "prefill" else ()  # what it forgets to drop is missed soon
        # UCX needs to be told that a port may be used again; others do not look at it.
        return self.server(
            role, self.MODEL, "--port", port, *SMALL, *held, "--kv-port", kv_port, "--kv-timeout", TIMEOUT,
            "--lease", LEASE, *self.FLAGS, UCX_TCP_CM_REUSEADDR="y",
        )  # fmt: skip

    def start_again(self, worker):
        """Another process at the same addresses."""
        return self.start(worker.ready["role"], worker.address()[1], worker.address("data_plane")[1])

    def hit(self, fault, victim):
        victim.process.send_signal(SIGNALS[fault])
        self.fired = True

    def recover(self, fault, victim):
        """The victim as it is after the fault: alive, or another process."""
        if fault == "frozen":
            victim.process.send_signal(signal.SIGCONT)
        if fault != "killed":
            return victim
        victim.process.wait()
        return self.start_again(victim)

    def transfer(self, prefill, decode):
        """One request as a router shares it out: futures of the answers by role. Calls begins() before KV moves."""
        raise NotImplementedError

    def begins(self):
        pass

    def request(self, worker, max_tokens, **fields):
        # Log probabilities tell any other KV, even where it has the same text.
        return complete(worker.url, LONG_PROMPT, max_tokens, logprobs=1, **fields)

    def alone(self, decode):
        """The choices of one process that does both."""
        return self.request(decode, self.MAX_TOKENS).json()["choices"]

    def check_fault(self, workers, fault, role, expected, retries=0):
        """A transfer with a fault that hits the worker of that role, if any, and `retries` more than one transfer after
        it to the right answer. Replaces in `workers` whom the fault has ended; gives the first one's seconds.
        """
        victim = workers.get(role)
        start = time.monotonic()
        answers = self.transfer(**workers)
        told = {name: answer.result(program.PATIENCE) for name, answer in answers.items() if name != role}
        wait_until(lambda: self.fired, "the fault has happened", NOTICED)
        if fault == "frozen" and not told:
            time.sleep(1.5 * TIMEOUT)  # whom nobody asked cannot tell that it has given up
        seconds = time.monotonic() - start
        self.assertLess(seconds, NOTICED)
        for name, worker in workers.items():
            if name != role:
                wait_idle(worker.url)
        if victim:
            workers[role] = self.recover(fault, victim)
        if fault == "frozen" and role in answers:
            told[role] = answers[role].result(program.PATIENCE)
        for name, answer in told.items():
            self.check_answer(name, answer, expected)
        for worker in workers.values():
            wait_idle(worker.url)
        self.check_undisturbed(workers, expected, retries)
        return seconds

    def check_answer(self, role, answer, expected):
        """An error in one sentence, or the right answer."""
        if answer.status != 200:
            self.assertIn(answer.status, (404, 502, 503, 504), answer.body)
            self.assert_error(answer, answer.status, "")
        elif role == "decode":
            self.assertEqual(answer.json()["choices"], expected)

    def check_undisturbed(self, workers, expected, retries=0):
        for left in range(retries, -1, -1):
            answer = self.transfer(**workers)["decode"].result(program.PATIENCE)
            if answer.status == 200 or left == 0:
                self.assertEqual(answer.status, 200, answer.body)
                self.assertEqual(answer.json()["choices"], expected)
                return


class Push:
    """The prefill worker sends to where the decode worker waits."""

    def transfer(self, prefill, decode):
        transfer = secrets.token_hex(16)
        reserved = reserve(decode, LONG_PROMPT, transfer, self.MAX_TOKENS, logprobs=1)
        self.assertEqual(reserved.status, 200, reserved.body)
        where = reserved.json()
        params = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}
        params |= {"remote_host": where["host"], "remote_port": where["port"]}
        self.begins()
        return {
            "prefill": self.threads.submit(self.request, prefill, 1, stream=False, kv_transfer_params=params),
            "decode": self.threads.submit(attach, decode, transfer),
        }


class Fetch:
    """The decode worker asks for what the prefill worker has parked."""

    def transfer(self, prefill, decode):
        params = park(prefill, LONG_PROMPT, logprobs=1)
        self.begins()
        return {"decode": self.threads.submit(self.request, decode, self.MAX_TOKENS, kv_transfer_params=params)}
