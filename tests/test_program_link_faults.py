"""Transfers whose peer is killed or frozen, or whose link is cut, at every phase: a retry elsewhere or a clean error
within the time limit, and no block left behind. A relay between the workers says when; it listens at the address that
the receiving worker advertises, which is not the one that it is bound to.
"""
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import secrets
import signal
import statistics
import time
import unittest

import program
from data_plane import BEGIN, DONE, END, FETCH, HELLO, HELLO_ACK, JOIN, SLAB
from program import GQA, SMALL, call, complete, text_of, wait_idle, wait_until
from relay import Relay

PROMPT = "The rain beat against the windows of the little house, and nobody spoke. " * 20
BOUND, ADVERTISED = "127.0.0.1", "127.0.0.2"
TIMEOUT, LEASE = 1, 2  # seconds
# For whatever waits for one of them on a machine that does something else as well; less than the lease's default.
NOTICED = 20
NAMES = {HELLO: "HELLO", HELLO_ACK: "HELLO_ACK", BEGIN: "BEGIN", SLAB: "SLAB", END: "END", DONE: "DONE", FETCH: "FETCH"}
NAMES |= {JOIN: "JOIN"}
OPENING = ((HELLO, 1), (HELLO_ACK, 1))
TRANSFER = ((BEGIN, 1), (SLAB, 20), (END, 1), (DONE, 1))


class LinkFaults(program.ProgramTest):
    STREAMS = 1  # TCP connections of a link

    def start(self, role, port=0, kv_port=0):
        return self.server(
            role, GQA, "--port", port, *SMALL, "--kv-bind", BOUND, "--kv-advertise-host", ADVERTISED,
            "--kv-port", kv_port, "--kv-timeout", TIMEOUT, "--lease", LEASE,
            "--kv-streams", self.STREAMS,
        )  # fmt: skip

    def relay_before(self, worker):
        host, port = worker.address("data_plane")
        self.assertEqual(host, ADVERTISED)
        relay = Relay(ADVERTISED, (BOUND, port))
        self.addCleanup(relay.close)
        return relay

    def arm(self, relay, phase, fault, victim):
        """Has the fault happen when that message is about to pass."""

        def watch(kind, count):
            if (kind, count) != phase or relay.fired:
                return True
            relay.fired = True
            if fault == "cut":
                return False
            victim.process.send_signal({"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}[fault])
            return True

        relay.fired = False
        relay.watch = watch

    def end_links(self, relay, workers):
        """The next transfer opens a link of its own, once its worker knows that this one is gone."""
        relay.drop()
        for worker in workers:
            gone = lambda url=worker.url: call(url, "/health").json()["links"]["tcp"] == 0  # noqa: E731
            wait_until(gone, "the links have ended", NOTICED)

    def recover(self, fault, victim):
        """The victim as it is after the fault: alive, or another process at the same addresses."""
        if fault == "frozen":
            victim.process.send_signal(signal.SIGCONT)
        if fault != "killed":
            return victim
        victim.process.wait()
        return self.start(victim.ready["role"], victim.address()[1], victim.address("data_plane")[1])

    def transfer(self, prefill, decode, victim):
        """One request as a router shares it out: answers by role, without the victim's."""
        raise NotImplementedError

    def check_phases(self, roles, before, phases):
        """Every fault at every phase, with a relay before the worker of role `before`."""
        workers = {role: self.start(role) for role in ("prefill", "decode")}
        relay = self.relay_before(workers[before])
        expected = text_of(complete(workers["decode"].url, PROMPT))
        times = []
        for fault, role in [("cut", None), *((fault, role) for fault in ("frozen", "killed") for role in roles)]:
            for phase in phases:
                with self.subTest(fault=fault, victim=role, phase=NAMES[phase[0]], count=phase[1]):
                    victim = workers.get(role)
                    self.end_links(relay, workers.values())
                    self.arm(relay, phase, fault, victim)
                    start = time.monotonic()
                    answers = self.transfer(workers["prefill"], workers["decode"], victim)
                    wait_until(lambda: relay.fired, "the phase is reached", NOTICED)
                    times.append(time.monotonic() - start)
                    self.assertLess(times[-1], NOTICED)
                    for name, answer in answers.items():
                        if workers[name] is not victim:
                            self.check_answer(name, answer, expected)
                    for name, worker in workers.items():
                        if name != role:
                            wait_idle(worker.url)
                    if victim:
                        workers[role] = self.recover(fault, victim)
                    for worker in workers.values():
                        wait_idle(worker.url)
                    relay.watch = None
                    again = self.transfer(workers["prefill"], workers["decode"], None)
                    if fault == "cut" and phase[0] == DONE and again["decode"].status != 200:
                        # Who fetched had all it wanted, and finds out with the next fetch that the link is gone.
                        again = self.transfer(workers["prefill"], workers["decode"], None)
                    self.assertEqual(text_of(again["decode"]), expected)
        # Most are not disturbed by what else the machine does, and keep to what the options say.
        self.assertLess(statistics.median(times), TIMEOUT + LEASE)

    def check_answer(self, role, answer, expected):
        """An error in one sentence, or the right answer."""
        if answer.status != 200:
            self.assertIn(answer.status, (404, 502, 503, 504), answer.body)
            self.assert_error(answer, answer.status, "")
        elif role == "decode":
            self.assertEqual(text_of(answer), expected)


@program.needs_program
class Pushed(LinkFaults):
    def transfer(self, prefill, decode, victim):
        transfer = secrets.token_hex(16)
        request = {"prompt": PROMPT, "max_tokens": 16, "temperature": 0}
        reserved = call(decode.url, "/kvlane/v1/reserve",
                        {"api": "/v1/completions", "transfer_id": transfer, "request": request})  # fmt: skip
        self.assertEqual(reserved.status, 200, reserved.body)
        where = reserved.json()
        params = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}
        params |= {"remote_host": where["host"], "remote_port": where["port"]}
        jobs = {
            "prefill": (complete, prefill.url, PROMPT, 1),
            "decode": (call, decode.url, "/kvlane/v1/attach", {"transfer_id": transfer}),
        }
        threads = concurrent.futures.ThreadPoolExecutor(2)
        self.addCleanup(threads.shutdown)
        more = {"prefill": {"stream": False, "kv_transfer_params": params}, "decode": {}}
        futures = {role: threads.submit(*job, **more[role]) for role, job in jobs.items()}
        alive = {"prefill": prefill, "decode": decode}
        return {
            role: future.result(program.PATIENCE) for role, future in futures.items() if alive[role] is not victim
        }

    def test_every_phase(self):
        self.check_phases(("prefill", "decode"), "decode", (*OPENING, *TRANSFER))

    def test_another_decode_worker_answers(self):
        prefill, decode = self.start("prefill"), [self.start("decode") for _ in range(2)]
        relays = [self.relay_before(worker) for worker in decode]
        urls = [worker.url for worker in decode]
        gateway = self.server("gateway", "--port", 0, "--prefill", prefill.url, "--decode", *urls)
        expected = text_of(complete(urls[0], PROMPT))
        for fault in ("cut", "frozen", "killed"):
            with self.subTest(fault=fault):
                hit = []

                def watch(kind, _, relay, worker, fault=fault, hit=hit):
                    if kind != SLAB or hit:
                        return not hit or hit[0] is not relay
                    hit.append(relay)
                    if fault != "cut":
                        worker.process.send_signal({"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}[fault])
                    return fault != "cut"

                for relay, worker in zip(relays, decode, strict=True):
                    relay.watch = lambda kind, count, relay=relay, worker=worker: watch(kind, count, relay, worker)
                start = time.monotonic()
                answer = complete(gateway.url, PROMPT)
                self.assertEqual(text_of(answer), expected)
                self.assertLess(time.monotonic() - start, NOTICED)
                self.assertEqual(len(hit), 1)
                if fault == "frozen":
                    decode[relays.index(hit[0])].process.send_signal(signal.SIGCONT)
        for worker in (prefill, *decode):
            if worker.process.poll() is None:
                wait_idle(worker.url)


@program.needs_program
class Fetched(LinkFaults):
    def transfer(self, prefill, decode, victim):
        params = {"do_remote_decode": True, "do_remote_prefill": False}
        parked = complete(prefill.url, PROMPT, 1, stream=False, kv_transfer_params=params)
        text_of(parked)
        threads = concurrent.futures.ThreadPoolExecutor(1)
        self.addCleanup(threads.shutdown)
        answer = threads.submit(
            complete, decode.url, PROMPT, kv_transfer_params=parked.json()["kv_transfer_params"]
        )
        return {} if victim is decode else {"decode": answer.result(program.PATIENCE)}

    def test_every_phase(self):
        self.check_phases(("prefill", "decode"), "prefill", (*OPENING, (FETCH, 1), *TRANSFER))


class OverSeveral:
    """Links of several connections. A cut hits one of them, the one on which the phase is reached."""

    STREAMS = 3
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
