"""Workers on two network namespaces, which have addresses of their own as two hosts have: bound to all addresses and
told to others by one, over a shaped link, and with that link taken down in the middle of a transfer.
"""
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import contextlib
import json
import os
import subprocess
import sys
import time
import unittest

import namespaces
import program
from namespaces import ip, shape, within
from program import GQA, SMALL

NEAR, FAR = f"kvlane-test-near-{os.getpid()}", f"kvlane-test-far-{os.getpid()}"
NEAR_ADDRESS, FAR_ADDRESS = "10.213.79.1", "10.213.79.2"
PROMPT = "The rain beat against the windows of the little house, and nobody spoke. " * 50
TIMEOUT, LEASE = 2, 4  # seconds
NOTICED = 30  # for whatever waits for these on a busy machine
# The prompt's KV, 2.6 MB, takes 14 s; what waits is through in 0.7 s, far within the time limit.
SLOW = ("1500kbit", "128k")


def in_namespace(namespace, function, *arguments, **fields):
    """A call of tests/program.py from within a namespace: (status, body)."""
    code = (
        "import json, sys, program\n"
        "name, arguments, fields = json.loads(sys.argv[1])\n"
        "answer = getattr(program, name)(*arguments, **fields)\n"
        "print(json.dumps((answer.status, answer.json())))\n"
    )
    call = json.dumps((function, arguments, fields))
    done = subprocess.run(
        [*within(namespace), sys.executable, "-c", code, call],
        cwd=program.ROOT / "tests", capture_output=True, text=True, check=True, timeout=program.PATIENCE,
    )  # fmt: skip
    return json.loads(done.stdout)


@program.needs_program
class TwoHosts(program.ProgramTest):
    STREAMS = 1  # TCP connections of a link
    # Which side of the link goes down, when so many bytes have passed.
    DOWN = ((FAR, 0), (FAR, 200_000), (NEAR, 200_000), (FAR, 1_000_000))

    @classmethod
    def setUpClass(cls):
        for namespace in (NEAR, FAR):
            namespaces.add(cls, namespace)
        ip("-n", NEAR, "link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", FAR)
        for namespace, address in ((NEAR, NEAR_ADDRESS), (FAR, FAR_ADDRESS)):
            ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "veth0")
            ip("-n", namespace, "link", "set", "veth0", "up")

    def setUp(self):
        shape(NEAR, "veth0", "1gbit")
        self.addCleanup(ip, "-n", FAR, "link", "set", "veth0", "up")
        self.prefill = self.start(NEAR, "prefill", "--kv-advertise-host", NEAR_ADDRESS)
        self.decode = self.start(FAR, "decode", "--kv-advertise-host", FAR_ADDRESS)
        workers = ("--prefill", self.url(self.prefill, NEAR_ADDRESS), "--decode", self.url(self.decode, FAR_ADDRESS))
        self.gateway = self.start(NEAR, "gateway", *workers, model=())

    def start(self, namespace, role, *flags, model=(GQA, *SMALL, "--kv-bind", "0.0.0.0")):
        if model:
            flags = (*flags, "--kv-timeout", TIMEOUT, "--lease", LEASE, "--kv-streams", self.STREAMS)
        return self.server(
            role, *model, *flags, "--host", "0.0.0.0", "--port", 0, within=within(namespace)
        )

    def url(self, worker, host):
        return f"http://{host}:{worker.address()[1]}"

    def complete(self, namespace=NEAR, worker=None, host="127.0.0.1"):
        url = self.url(worker or self.gateway, host)
        return in_namespace(namespace, "complete", url, PROMPT, 8)

    def text(self):
        status, body = self.complete()
        self.assertEqual(status, 200, body)
        return body["choices"][0]["text"]

    def wait_idle(self):
        """Both workers, asked on their own hosts."""
        for worker, namespace in ((self.prefill, NEAR), (self.decode, FAR)):

            def is_idle(worker=worker, namespace=namespace):
                _, body = in_namespace(namespace, "call", self.url(worker, "127.0.0.1"), "/health")
                return program.idle(body["load"])

            program.wait_until(is_idle, f"{worker.arguments[0]} is idle")

    def sent(self):
        done = (*within(NEAR), "cat", "/sys/class/net/veth0/statistics/tx_bytes")
        return int(subprocess.run(done, capture_output=True, check=True).stdout)

    def test_answers_are_those_of_one_host(self):
        self.assertEqual(self.decode.ready["data_plane"].rpartition(":")[0], FAR_ADDRESS)
        status, body = self.complete(FAR, self.decode)
        self.assertEqual(status, 200)
        self.assertEqual(self.text(), body["choices"][0]["text"])
        self.wait_idle()
        _, health = in_namespace(NEAR, "call", self.url(self.prefill, "127.0.0.1"), "/health")
        self.assertEqual(health["links"], {"tcp": 1, "shared_memory": 0, "ucx": 0, "tcp_streams": self.STREAMS})

    def test_the_link_goes_down(self):
        expected = self.text()
        self.wait_idle()
        for side, bytes_before in self.DOWN:
            with self.subTest(side=side.split("-")[2], bytes_before=bytes_before):
                shape(NEAR, "veth0", *SLOW)
                before = self.sent()
                with concurrent.futures.ThreadPoolExecutor(1) as thread:
                    request = thread.submit(self.complete)
                    program.wait_until(lambda start=before: self.sent() - start > bytes_before, "the phase is reached")
                    ip("-n", side, "link", "set", "veth0", "down")
                    down = time.monotonic()
                    self.wait_idle()
                    self.assertLess(time.monotonic() - down, NOTICED)
                    with contextlib.suppress(subprocess.CalledProcessError):
                        status, body = request.result()
                        self.assertIn(status, (502, 503, 504), body)
                shape(NEAR, "veth0", "1gbit")
                ip("-n", side, "link", "set", "veth0", "up")
                program.wait_until(lambda: self.complete()[0] == 200, "the link is used again", NOTICED)
                self.assertEqual(self.text(), expected)
                self.wait_idle()


class TwoHostsOverSeveral(TwoHosts):
    STREAMS = 3
    DOWN = ((FAR, 200_000), (NEAR, 200_000))


if __name__ == "__main__":
    unittest.main()
