"""Transfers whose peer is killed or frozen, or whose link is cut, at every phase: a retry elsewhere or a clean error
within the time limit, and no block left behind. A relay between the workers says when; it listens at the address that
the receiving worker advertises, which is not the one that it is bound to.
"""
# SPDX-License-Identifier: Apache-2.0
import statistics
import time
import unittest

import program
from data_plane import BEGIN, DONE, END, FETCH, HELLO, HELLO_ACK, JOIN, SLAB
from peer_faults import LEASE, NOTICED, SIGNALS, TIMEOUT, FaultTest, Fetch, Push
from program import call, complete, text_of, wait_idle, wait_until
from relay import Relay
from test_program_workers import LONG_PROMPT

BOUND, ADVERTISED = "127.0.0.1", "127.0.0.2"
NAMES = {HELLO: "HELLO", HELLO_ACK: "HELLO_ACK", BEGIN: "BEGIN", SLAB: "SLAB", END: "END", DONE: "DONE", FETCH: "FETCH"}
NAMES |= {JOIN: "JOIN"}
OPENING = ((HELLO, 1), (HELLO_ACK, 1))
TRANSFER = ((BEGIN, 1), (SLAB, 20), (END, 1), (DONE, 1))


class LinkFaults(FaultTest):
    FLAGS = ("--kv-bind", BOUND, "--kv-advertise-host", ADVERTISED)

    def relay_before(self, worker):
        host, port = worker.address("data_plane")
        self.assertEqual(host, ADVERTISED)
        relay = Relay(ADVERTISED, (BOUND, port))
        self.addCleanup(relay.close)
        return relay

    def arm(self, relay, phase, fault, victim):
        """Has the fault happen when that message is about to pass."""

        def watch(kind, count):
            if (kind, count) != phase or self.fired:
                return True
            if fault == "cut":
                self.fired = True
                return False
            self.hit(fault, victim)
            return True

        self.fired = False
        relay.watch = watch

    def end_links(self, relay, workers):
        """The next transfer opens a link of its own, once its worker knows that this one is gone."""
        relay.drop()
        for worker in workers:
            gone = lambda url=worker.url: call(url, "/health").json()["links"]["tcp"] == 0  # noqa: E731
            wait_until(gone, "the links have ended", NOTICED)

    def check_phases(self, roles, before, phases):
        """Every fault at every phase, with a relay before the worker of role `before`."""
        workers = {role: self.start(role) for role in ("prefill", "decode")}
        relay = self.relay_before(workers[before])
        expected = self.alone(workers["decode"])
        times = []
        for fault, role in [("cut", None), *((fault, role) for fault in ("frozen", "killed") for role in roles)]:
            for phase in phases:
                with self.subTest(fault=fault, victim=role, phase=NAMES[phase[0]], count=phase[1]):
                    self.end_links(relay, workers.values())
                    self.arm(relay, phase, fault, workers.get(role))
                    # Who fetched had all it wanted at DONE, and finds out with the next fetch that the link is gone.
                    retries = int(fault == "cut" and phase[0] == DONE)
                    times.append(self.check_fault(workers, fault, role, expected, retries))
        # Most are not disturbed by what else the machine does, and keep to what the options say.
        self.assertLess(statistics.median(times), TIMEOUT + LEASE)


@program.needs_program
class Pushed(Push, LinkFaults):
    def test_every_phase(self):
        self.check_phases(("prefill", "decode"), "decode", (*OPENING, *TRANSFER))

    def test_another_decode_worker_answers(self):
        prefill, decode = self.start("prefill"), [self.start("decode") for _ in range(2)]
        relays = [self.relay_before(worker) for worker in decode]
        urls = [worker.url for worker in decode]
        gateway = self.server("gateway", "--port", 0, "--prefill", prefill.url, "--decode", *urls)
        expected = text_of(complete(urls[0], LONG_PROMPT))
        for fault in ("cut", "frozen", "killed"):
            with self.subTest(fault=fault):
                hit = []

                def watch(kind, _, relay, worker, fault=fault, hit=hit):
                    if kind != SLAB or hit:
                        return not hit or hit[0] is not relay
                    hit.append(relay)
                    if fault != "cut":
                        worker.process.send_signal(SIGNALS[fault])
                    return fault != "cut"

                for relay, worker in zip(relays, decode, strict=True):
                    relay.watch = lambda kind, count, relay=relay, worker=worker: watch(kind, count, relay, worker)
                start = time.monotonic()
                answer = complete(gateway.url, LONG_PROMPT)
                self.assertEqual(text_of(answer), expected)
                self.assertLess(time.monotonic() - start, NOTICED)
                self.assertEqual(len(hit), 1)
                if fault == "frozen":
                    self.recover(fault, decode[relays.index(hit[0])])
        for worker in (prefill, *decode):
            if worker.process.poll() is None:
                wait_idle(worker.url)


@program.needs_program
class Fetched(Fetch, LinkFaults):
    def test_every_phase(self):
        self.check_phases(("prefill", "decode"), "prefill", (*OPENING, (FETCH, 1), *TRANSFER))


class OverSeveral:
    """Links of several connections. A cut hits one of them, the one on which the phase is reached."""

    FLAGS = (*LinkFaults.FLAGS, "--kv-streams", 3)
    PHASES = ((JOIN, 1), (SLAB, 10), (END, 1))


class PushedOverSeveral(OverSeveral, Pushed):
    def test_every_phase(self):
        self.check_phases(("decode",), "decode", self.PHASES)

    test_another_decode_worker_answers = None  # the gateway does not see how many there are


class FetchedOverSeveral(OverSeveral, Fetched):
    def test_every_phase(self):
        self.check_phases(("prefill",), "prefill", self.PHASES)


if __name__ == "__main__":
    unittest.main()
