"""Workers and gateway as processes of their own: foreign routers, faults, keys, signals, the data plane against a
second implementation, and prompts of several thousand tokens. The API itself: test_program_api.py.
"""
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import unittest

import data_plane
import program
from program import (
    GQA,
    PROGRAM,
    SMALL,
    TINY,
    call,
    complete,
    counts_of,
    load_of,
    run,
    stream_completion,
    text_of,
    wait_idle,
)

PROMPT = "The old sailor looked at the sea"
NARROW = "1200KiB"  # holds LONG_PROMPT and little more
LONG_PROMPT = "The rain beat against the windows of the little house, and nobody spoke. " * 20
# What vLLM's disaggregated router sends to a prefill worker.
ASK_TO_PARK = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def park(prefill, prompt, **fields):
    """The first half of a foreign router's work: kv_transfer_params for the decode worker."""
    answer = complete(prefill.url, prompt, 1, stream=False, kv_transfer_params=ASK_TO_PARK, **fields)
    text_of(answer)
    return answer.json()["kv_transfer_params"]


def reserve(decode, prompt, transfer, max_tokens=16, **fields):
    request = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0} | fields
    body = {"api": "/v1/completions", "transfer_id": transfer, "request": request}
    return call(decode.url, "/kvlane/v1/reserve", body)


def attach(decode, transfer):
    return call(decode.url, "/kvlane/v1/attach", {"transfer_id": transfer})


class WorkerTest(program.ProgramTest):
    def worker(self, role, model=GQA, *flags, port=0, **variables):
        return self.server(role, model, "--port", port, *SMALL, *flags, **variables)

    def gateway(self, prefill, decode, *flags, **variables):
        urls = [worker.url if hasattr(worker, "url") else worker for worker in (*prefill, *decode)]
        prefill_urls, decode_urls = urls[: len(prefill)], urls[len(prefill) :]
        workers = ("--prefill", *prefill_urls, "--decode", *decode_urls)
        return self.server("gateway", *workers, "--port", 0, *flags, **variables)


@program.needs_program
class ForeignRouter(WorkerTest):
    """vLLM's protocol: prefill first, then decode with what prefill returned."""

    FLAGS = ()
    PATH = "shared_memory"  # what carries links then
    NOT_A_WORKER = 502  # the answer when a port speaks another protocol

    @classmethod
    def setUpClass(cls):
        flags = ("--port", 0, *SMALL, *cls.FLAGS)
        cls.prefill = cls.class_server("prefill", GQA, *flags, "--kv-codec", "splitzip")
        cls.decode = cls.class_server("decode", GQA, *flags)

    def tearDown(self):
        wait_idle(self.prefill.url)
        wait_idle(self.decode.url)

    def test_text_is_that_of_one_process(self):
        for prompt, sampling in ((PROMPT, {}), (LONG_PROMPT, {}), ("", {}), (PROMPT, {"temperature": 1, "seed": 5})):
            with self.subTest(prompt=prompt[:20], **sampling):
                alone = complete(self.decode.url, prompt, 20, **sampling).json()
                params = park(self.prefill, prompt, **sampling)
                self.assertTrue(params["do_remote_prefill"])
                apart = complete(self.decode.url, prompt, 20, kv_transfer_params=params, **sampling).json()
                self.assertEqual((apart["choices"], counts_of(apart)), (alone["choices"], counts_of(alone)))
                self.assertGreater(apart["kvlane"]["kv"]["shipped_bytes"], 0)
                self.assert_account(apart["kvlane"])

    def test_kv_of_another_prompt_of_that_length(self):
        other = [400 + i for i in range(130)]
        mine = [2500 + i for i in range(130)]
        alone = complete(self.decode.url, mine, 12, cache_salt="alone").json()["choices"]
        params = park(self.prefill, other)
        self.assert_error(complete(self.decode.url, mine, 12, kv_transfer_params=params), 502, "another prompt")
        # Nothing of it is kept under this prompt's name either.
        self.assertEqual(complete(self.decode.url, mine, 12).json()["choices"], alone)

    def test_log_probabilities_that_only_one_of_both_was_asked_for(self):
        alone = complete(self.decode.url, PROMPT, 3, logprobs=2).json()["choices"]
        more = park(self.prefill, PROMPT, logprobs=5)
        apart = complete(self.decode.url, PROMPT, 3, logprobs=2, kv_transfer_params=more)
        self.assertEqual(apart.json()["choices"], alone)
        plain = complete(self.decode.url, PROMPT, 3, kv_transfer_params=park(self.prefill, PROMPT, logprobs=5))
        self.assertIsNone(plain.json()["choices"][0]["logprobs"])
        for asked in ({}, {"logprobs": 1}):
            params = park(self.prefill, PROMPT, **asked)
            answer = complete(self.decode.url, PROMPT, 3, logprobs=2, kv_transfer_params=params)
            self.assert_error(answer, 502, "fewer log probabilities")

    def test_links_tell_what_carries_them(self):
        params = park(self.prefill, PROMPT)
        self.assertEqual(complete(self.decode.url, PROMPT, 2, kv_transfer_params=params).status, 200)
        expected = {"tcp": 0, "shared_memory": 0, "ucx": 0, "tcp_streams": int(self.PATH == "tcp")} | {self.PATH: 1}
        links = call(self.prefill.url, "/health").json()["links"]
        self.assertEqual(links, expected)
        metrics = call(self.prefill.url, "/metrics").body.decode()
        self.assertRegex(metrics, rf'kvlane_links{{[^}}]*path="{self.PATH}"[^}}]*}} 1\b')
        self.assertRegex(metrics, rf"kvlane_link_streams(?:{{[^}}]*}})? {expected['tcp_streams']}\b")

    def test_stream_gives_all_tokens_the_first_included(self):
        params = park(self.prefill, PROMPT)
        with stream_completion(self.decode.url, PROMPT, 20, kv_transfer_params=params) as stream:
            text = "".join(choice["text"] for event in stream for choice in event["choices"])
        self.assertTrue(stream.done)
        self.assertEqual(text, text_of(complete(self.decode.url, PROMPT, 20)))

    def test_parked_cache_is_fetched_once(self):
        params = park(self.prefill, PROMPT)
        self.assertEqual(complete(self.decode.url, PROMPT, 4, kv_transfer_params=params).status, 200)
        again = complete(self.decode.url, PROMPT, 4, kv_transfer_params=params)
        self.assert_error(again, 404, params["transfer_id"][:8])

    def test_cache_of_another_prompt_is_refused(self):
        params = park(self.prefill, PROMPT)
        other = complete(self.decode.url, LONG_PROMPT, 4, kv_transfer_params=params)
        self.assert_error(other, 502, "tokens")

    def test_params_that_are_wrong(self):
        params = park(self.prefill, PROMPT)
        nobody = program.closed_port()
        for changes, status, param in (
            ({"transfer_id": "xyz"}, 400, "kv_transfer_params.transfer_id"),
            ({"transfer_id": secrets.token_hex(16)}, 404, None),
            ({"transfer_id": "0" * 32}, 400, "kv_transfer_params.transfer_id"),
            ({"remote_port": 0}, 400, "kv_transfer_params.remote_port"),
            ({"remote_port": 65536}, 400, "kv_transfer_params.remote_port"),
            ({"remote_port": nobody}, 503, None),
            ({"remote_host": ""}, 400, "kv_transfer_params.remote_host"),
            ({"remote_host": "no.such.host.invalid"}, 503, None),
            ({"do_remote_decode": True}, 400, "kv_transfer_params.do_remote_prefill"),
            ({"surprise": 1}, 400, "kv_transfer_params.surprise"),
            # The decode worker's own HTTP port, and its own data plane.
            ({"remote_port": self.decode.address()[1]}, self.NOT_A_WORKER, None),
            ({"remote_port": self.decode.address("data_plane")[1]}, 404, None),
        ):
            with self.subTest(changes):
                answer = complete(self.decode.url, PROMPT, 4, kv_transfer_params=params | changes)
                self.assert_error(answer, status, "", param)

    def test_requests_of_the_wrong_role(self):
        self.assert_error(complete(self.prefill.url, PROMPT), 400, "prefill", "kv_transfer_params")
        answer = complete(self.decode.url, PROMPT, kv_transfer_params=ASK_TO_PARK)
        self.assert_error(answer, 400, "decode", "kv_transfer_params")
        for path in ("reserve", "attach", "release"):
            answer = call(self.prefill.url, f"/kvlane/v1/{path}", {})
            self.assert_error(answer, 404, path)

    def test_reservations_that_are_wrong(self):
        transfer = secrets.token_hex(16)
        self.assert_error(attach(self.decode, transfer), 404, "reservation", "transfer_id")
        self.assert_error(reserve(self.decode, PROMPT, "short"), 400, "transfer id", "transfer_id")
        self.assertEqual(reserve(self.decode, PROMPT, transfer).status, 200)
        self.assert_error(reserve(self.decode, PROMPT, transfer), 400, "in use", "transfer_id")
        released = call(self.decode.url, "/kvlane/v1/release", {"transfer_id": transfer})
        self.assertEqual(released.json(), {"released": True})
        self.assert_error(attach(self.decode, transfer), 404, "reservation", "transfer_id")


class ForeignRouterOverTcp(ForeignRouter):
    FLAGS = ("--kv-shared-memory", "off")
    PATH = "tcp"


@program.needs_program
class DataPlane(WorkerTest):
    """The workers against a peer that was written from the specification."""

    @classmethod
    def setUpClass(cls):
        cls.prefill = cls.class_server("prefill", GQA, "--port", 0, *SMALL, "--kv-codec", "splitzip")
        cls.decode = cls.class_server("decode", GQA, "--port", 0, *SMALL)
        cls.model = run("inspect", GQA, "--json").json()["identity"]
        cls.other_model = run("inspect", TINY, "--json").json()["identity"]

    def fetch(self, prompt, transfer=None):
        params = park(self.prefill, prompt)
        return data_plane.fetch(
            self.prefill.address("data_plane"), self.model, transfer or bytes.fromhex(params["transfer_id"])
        )

    def push(self, cache, model=None):
        """Pushes `cache` for PROMPT; the message that ended the transfer, and the client's answer."""
        transfer = secrets.token_hex(16)
        self.assertEqual(reserve(self.decode, PROMPT, transfer).status, 200)
        end = data_plane.push(
            self.decode.address("data_plane"), model or self.model, bytes.fromhex(transfer), cache
        )
        if end.type == data_plane.REJECT:
            call(self.decode.url, "/kvlane/v1/release", {"transfer_id": transfer})
            return end, None
        return end, attach(self.decode, transfer)

    def test_what_a_stranger_fetches_another_stranger_can_push(self):
        cache = self.fetch(PROMPT)
        self.assertEqual((cache.begin["layers"], cache.begin["codec"]), (6, "splitzip"))
        self.assertEqual(len(cache.frames), 6)
        self.assertEqual(cache.end["shipped_bytes"], sum(map(len, cache.frames)))
        path = self.folder() / "frames"
        path.write_bytes(b"".join(cache.frames))
        told = run("inspect", path, "--json").json()["frames"]
        self.assertEqual([frame["layer"] for frame in told], list(range(6)))
        self.assertEqual({frame["model"] for frame in told}, {self.model})
        end, answer = self.push(cache)
        self.assertEqual(end.type, data_plane.DONE)
        self.assertEqual(text_of(answer), text_of(complete(self.decode.url, PROMPT)))

    def test_more_tokens_found_than_the_prompt_has(self):
        cache = self.fetch(PROMPT)
        tokens = cache.begin["tokens"]
        end, answer = self.push(cache._replace(end=cache.end | {"cached_tokens": tokens}))
        self.assertEqual(end.type, data_plane.DONE)
        self.assertIn(f'"cached_tokens":{tokens}'.encode(), answer.body)
        end, answer = self.push(cache._replace(end=cache.end | {"cached_tokens": tokens + 1}))
        self.assert_error(answer, 502, f"had {tokens + 1} tokens of a prompt that has {tokens}")
        wait_idle(self.decode.url)

    def test_frame_of_another_model(self):
        cache = self.fetch(PROMPT)
        frame = bytearray(cache.frames[2])
        frame[16:48] = bytes.fromhex(self.other_model)
        frame[184:192] = data_plane.xxh3_64(bytes(frame[:184])).to_bytes(8, "little")
        cache.frames[2] = bytes(frame)
        end, answer = self.push(cache)
        self.assertEqual(end.type, data_plane.ERROR)
        self.assertEqual(end.json()["code"], "corrupt")
        self.assert_error(answer, 502, "model")

    def test_peer_with_another_model(self):
        end, _ = self.push(self.fetch(PROMPT), model=self.other_model)
        self.assertEqual(end.type, data_plane.REJECT)
        self.assertIn(self.other_model[:8], end.json()["message"])

    def test_damaged_frame_is_asked_for_again_and_never_used(self):
        cache = self.fetch(PROMPT)
        damaged = bytearray(cache.frames[3])
        damaged[-1] ^= 1
        cache.frames[3] = bytes(damaged)
        end, _ = self.push_without_attaching(cache)
        self.assertEqual(end.type, data_plane.MISSING)
        self.assertEqual(end.body, (1).to_bytes(4, "little") + (1).to_bytes(4, "little") + b"\3\0\0\0\0\0\0\0")

    def push_without_attaching(self, cache):
        transfer = secrets.token_hex(16)
        self.assertEqual(reserve(self.decode, PROMPT, transfer).status, 200)
        self.addCleanup(call, self.decode.url, "/kvlane/v1/release", {"transfer_id": transfer})
        return data_plane.push(self.decode.address("data_plane"), self.model, bytes.fromhex(transfer), cache), transfer

    def test_cache_of_another_length(self):
        end, answer = self.push(self.fetch("She was"))
        self.assertEqual(end.type, data_plane.ERROR)
        self.assert_error(answer, 502, "tokens")

    def test_unknown_transfers(self):
        refused = self.fetch(PROMPT, transfer=secrets.token_bytes(16))
        self.assertEqual((refused.type, refused.json()["code"]), (data_plane.ERROR, "not_found"))

    def test_peers_that_speak_something_else(self):
        for worker in (self.prefill, self.decode):
            address = worker.address("data_plane")
            for noise in (
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                os.urandom(4096),
                data_plane.encode(data_plane.HELLO, b"{}", version=9),
                data_plane.encode(data_plane.HELLO, b"not json"),
                data_plane.encode(data_plane.SLAB, b"too early", secrets.token_bytes(16)),
                data_plane.encode(data_plane.HELLO, b"{}")[:20],
                b"",
            ):
                with self.subTest(role=worker.ready["role"], noise=noise[:8]):
                    with socket.create_connection(address, timeout=program.PATIENCE) as peer:
                        peer.sendall(noise)
                        peer.shutdown(socket.SHUT_WR)
                        try:
                            while peer.recv(65536):
                                pass
                        except ConnectionResetError:
                            pass
            self.assertEqual(call(worker.url, "/health").status, 200)
        self.assertIn("turned", self.prefill.stderr())


@program.needs_program
class Faults(WorkerTest):
    def test_decode_worker_killed_in_the_middle_of_an_answer(self):
        prefill = self.worker("prefill")
        decode = [self.worker("decode") for _ in range(2)]
        gateway = self.gateway([prefill], decode)
        with stream_completion(gateway.url, PROMPT, 1000, ignore_eos=True) as stream:
            events = iter(stream)
            next(events)
            victim = next(worker for worker in decode if load_of(worker.url)["running"])
            other = decode[1 - decode.index(victim)]
            victim.process.kill()
            last = list(events)[-1]
        self.assertIn("The decode worker failed in the middle of the answer", last["error"]["message"])
        self.assertEqual(last["error"]["type"], "server_error")
        self.assertFalse(stream.done)
        expected = text_of(complete(other.url, PROMPT))
        for _ in range(4):
            self.assertEqual(text_of(complete(gateway.url, PROMPT)), expected)
        for worker in (prefill, other):
            wait_idle(worker.url)

    def test_workers_that_hang_with_their_connections_open(self):
        prefill, decode = self.worker("prefill"), self.worker("decode")
        gateway = self.gateway([prefill], [decode])
        with stream_completion(gateway.url, PROMPT, 1000, ignore_eos=True) as stream:
            events = iter(stream)
            next(events)
            for worker in (prefill, decode):
                worker.process.send_signal(signal.SIGSTOP)
            last = list(events)[-1]
        self.assertFalse(stream.done)
        self.assertIn("does not answer any more", last["error"]["message"])
        self.assertEqual(call(gateway.url, "/health").status, 503)
        for worker in (prefill, decode):
            worker.process.send_signal(signal.SIGCONT)
        wait_idle(decode.url)
        program.wait_until(lambda: call(gateway.url, "/health").status == 200, "the gateway notices")
        self.assertEqual(complete(gateway.url, PROMPT).status, 200)

    def test_prefill_worker_killed_and_started_again(self):
        prefill, decode = self.worker("prefill"), self.worker("decode")
        gateway = self.gateway([prefill], [decode])
        expected = text_of(complete(gateway.url, PROMPT))
        prefill.process.kill()
        prefill.process.wait()
        answer = complete(gateway.url, PROMPT)
        self.assert_error(answer, 503, "prefill worker")
        self.assertEqual(answer.headers["Retry-After"], "1")
        wait_idle(decode.url)
        program.wait_until(lambda: call(gateway.url, "/health").status == 503, "the gateway notices")
        self.worker("prefill", port=prefill.address()[1])
        self.assertEqual(text_of(complete(gateway.url, PROMPT)), expected)
        program.wait_until(lambda: call(gateway.url, "/health").status == 200, "the gateway notices")

    def test_prefill_worker_killed_while_it_computes(self):
        config = json.loads((GQA / "config.json").read_text())
        folder = self.folder()
        (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
        model = folder / "slow"
        run("synth", "--config", folder / "config.json", "--layers", 6, "--out", model, "--tokenizer", GQA)
        prefill, decode = (self.worker(role, model, "--cpu", "scalar") for role in ("prefill", "decode"))
        gateway = self.gateway([prefill], [decode])
        with stream_completion(decode.url, "a", 1, stream=True) as stream:
            list(stream)
        request = stream_in_background(gateway.url, [5] * 6000)
        program.wait_until(lambda: load_of(prefill.url)["running"], "the prefill runs")
        prefill.process.kill()
        answer = json.loads(request.communicate(timeout=program.PATIENCE)[0])
        self.assertEqual(answer["status"], 503)
        # The gateway misses the prefill worker's answer, the decode worker its KV: either may be first.
        self.assertRegex(answer["error"]["message"], "prefill worker|The prompt's KV did not arrive")
        wait_idle(decode.url)

    def test_what_nobody_comes_for_ends_with_its_lease(self):
        prefill, decode = (self.worker(role, GQA, "--lease", 1) for role in ("prefill", "decode"))
        transfer = secrets.token_hex(16)
        self.assertEqual(reserve(decode, PROMPT, transfer, 500).status, 200)
        program.wait_until(lambda: not program.idle(load_of(decode.url)), "the reservation is told")
        params = park(prefill, PROMPT)
        wait_idle(decode.url)
        self.assert_error(attach(decode, transfer), 404, "reservation", "transfer_id")
        program.wait_until(lambda: data_plane_forgot(prefill, params), "the parked cache is dropped")

    def test_nobody_there(self):
        nobody = f"http://127.0.0.1:{program.closed_port()}"
        gateway = self.gateway([nobody], [nobody])
        self.assert_error(complete(gateway.url, PROMPT), 503, "worker")
        self.assertEqual(call(gateway.url, "/health").status, 503)
        self.assert_error(call(gateway.url, "/v1/models"), 503, "decode worker")

    def test_something_else_where_a_worker_should_be(self):
        other = self.server("serve", TINY, "--port", 0, *SMALL)
        gateway = self.gateway([other], [other])
        answer = complete(gateway.url, PROMPT)
        self.assertIn(answer.status, (400, 502))
        self.assertIn("decode worker", answer.error()["message"])

    def test_worker_with_another_model(self):
        prefill, decode = self.worker("prefill", TINY, "--served-model-name", "m"), self.worker("decode")
        gateway = self.gateway([prefill], [decode])
        self.assert_error(complete(gateway.url, PROMPT), 502, "model")
        wait_idle(decode.url)
        wait_idle(prefill.url)


def data_plane_forgot(prefill, params):
    """Whether a prefill worker no longer has what it parked."""
    model = run("inspect", GQA, "--json").json()["identity"]
    address = prefill.address("data_plane")
    answer = data_plane.fetch(address, model, bytes.fromhex(params["transfer_id"]))
    return isinstance(answer, data_plane.Message)


def stream_in_background(url, prompt):
    """A completion asked for by another process, which prints status and error as JSON."""
    code = (
        "import json, sys, program\n"
        "answer = program.complete(sys.argv[1], json.loads(sys.argv[2]), 4)\n"
        "print(json.dumps({'status': answer.status, 'error': answer.json().get('error')}))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, url, json.dumps(prompt)],
        cwd=program.ROOT / "tests",
        stdout=subprocess.PIPE,
        text=True,
    )


@program.needs_program
class Keys(WorkerTest):
    KEY = "sesame-7"

    def test_key_of_a_whole_installation(self):
        up = self.server("up", GQA, "--port", 0, *SMALL, KVLANE_API_KEY=self.KEY)
        self.assertNotIn(self.KEY, subprocess.run(["ps", "-ef"], capture_output=True, text=True, check=False).stdout)
        bearer = {"Authorization": f"Bearer {self.KEY}"}
        body = {"prompt": PROMPT, "max_tokens": 4}
        self.assertEqual(call(up.url, "/v1/completions", body, headers=bearer).status, 200)
        for headers in ({}, {"Authorization": self.KEY}, {"Authorization": "Bearer sesame-8"}):
            answer = call(up.url, "/v1/completions", body, headers=headers)
            self.assert_error(answer, 401, "API key", code="invalid_api_key")
            self.assertEqual(answer.headers["WWW-Authenticate"], "Bearer")
        self.assertEqual(call(up.url, "/health").status, 200)
        self.assertEqual(call(up.url, "/version").status, 200)
        self.assertEqual(call(up.url, "/v1/models").status, 401)

    def test_gateway_without_the_workers_key(self):
        prefill, decode = (self.worker(role, GQA, "--api-key", self.KEY) for role in ("prefill", "decode"))
        gateway = self.gateway([prefill], [decode])
        self.assert_error(complete(gateway.url, PROMPT), 502, "key")


@program.needs_program
class Signals(WorkerTest):
    def test_each_command_ends_when_asked(self):
        prefill, decode = self.worker("prefill"), self.worker("decode")
        for server, number in (
            (self.gateway([prefill], [decode]), signal.SIGTERM),
            (prefill, signal.SIGINT),
            (decode, signal.SIGTERM),
            (self.worker("serve"), signal.SIGINT),
            (self.worker("serve"), signal.SIGHUP),
        ):
            with self.subTest(role=server.ready["role"], signal=number):
                self.assertEqual(server.stop(number), 0)
                self.assertEqual(server.stderr(), "")

    def test_up_takes_its_children_along(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            with self.subTest(number):
                up = self.worker("up")
                self.assertEqual(len(up.children()), 3)
                self.assertEqual(up.stop(number), -9 if number == signal.SIGKILL else 0)

    def test_ctrl_c_reaches_the_whole_group(self):
        up = self.worker("up")
        os.killpg(up.process.pid, signal.SIGINT)
        self.assertEqual(up.process.wait(program.PATIENCE), 0)
        up.wait_gone()

    def test_up_ends_when_a_child_dies(self):
        up = self.worker("up")
        os.kill(up.children()[0], signal.SIGKILL)
        self.assertEqual(up.process.wait(program.PATIENCE), 1)
        up.wait_gone()
        self.assertRegex(up.stderr(), r"kvlane: the \w+ process was killed by signal 9; the others were stopped")

    def test_up_that_cannot_start_leaves_nothing(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            up = program.Server("up", GQA, "--port", taken.getsockname()[1], *SMALL, wait=False)
            self.addCleanup(up.close)
            self.assertEqual(up.process.wait(program.PATIENCE), 1)
            up.wait_gone()
            self.assertIn("Address already in use", up.stderr())

    def test_answer_under_way_is_finished(self):
        server = self.worker("serve")
        with stream_completion(server.url, PROMPT, 200, ignore_eos=True) as stream:
            events = iter(stream)
            next(events)
            server.process.send_signal(signal.SIGTERM)
            list(events)
        self.assertTrue(stream.done)
        self.assertEqual(server.process.wait(program.PATIENCE), 0)


@program.needs_program
class ShortOfMemory(WorkerTest):
    """Decode workers with room for one long prompt each, prefill workers that hold the others' KV meanwhile."""

    def test_prompts_are_computed_and_wait_for_room(self):
        alone = self.worker("decode")
        prompts = [f"Chapter {i}. {LONG_PROMPT}" for i in range(8)]
        expected = [complete(alone.url, prompt, 24).json()["choices"] for prompt in prompts]
        narrow = [self.server("decode", GQA, "--port", 0, "--threads", 1, "--kv-memory", NARROW) for _ in range(2)]
        for how in ("layer", "whole"):
            prefill = [self.worker("prefill", GQA, "--kv-push", how) for _ in range(2)]
            gateway = self.gateway(prefill, narrow)
            with self.subTest(how), concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
                answers = list(pool.map(lambda prompt: complete(gateway.url, prompt, 24), prompts))
                self.assertEqual([answer.json().get("choices") for answer in answers], expected)
                waited = [answer.json()["kvlane"]["account"]["wait_for_memory"] for answer in answers]
                self.assertGreater(sum(seconds > 0 for seconds in waited), 1, waited)
                for answer in answers:
                    self.assert_account(answer.json()["kvlane"])
            for worker in (*prefill, *narrow):
                wait_idle(worker.url)

    def test_room_that_does_not_come_is_told_on_both_sides(self):
        prefill = self.worker("prefill")
        narrow = self.server("decode", GQA, "--port", 0, "--threads", 1, "--kv-memory", NARROW, "--lease", 1)
        model = run("inspect", GQA, "--json").json()["identity"]
        host, port = narrow.address("data_plane")
        parked = bytes.fromhex(park(prefill, LONG_PROMPT)["transfer_id"])
        begin = data_plane.fetch(prefill.address("data_plane"), model, parked).begin
        # Somebody has room, begins to push, and stops half way: the memory is taken until it goes.
        first, second = secrets.token_hex(16), secrets.token_hex(16)
        self.assertEqual(reserve(narrow, LONG_PROMPT, first).status, 200)
        push_there = {"do_remote_decode": True, "transfer_id": second, "remote_host": host, "remote_port": port}
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            with data_plane.Link((host, port)) as link:
                link.greet(model)
                link.send(data_plane.BEGIN, begin, bytes.fromhex(first))
                taken = pool.submit(attach, narrow, first)
                self.assertEqual(reserve(narrow, LONG_PROMPT, second).status, 200)
                waiting = pool.submit(attach, narrow, second)
                pushed = complete(prefill.url, LONG_PROMPT, 1, kv_transfer_params=push_there)
                self.assert_error(pushed, 429, "the receiver reports: there was no room for transfer")
                self.assert_error(waiting.result(), 429, "there was no room for transfer")
            self.assertEqual(taken.result().status, 503)
        wait_idle(prefill.url)
        wait_idle(narrow.url)

    def test_a_prompt_that_never_fits_is_refused_clearly(self):
        prefill = self.worker("prefill", GQA, "--kv-push-memory", "64KiB")
        gateway = self.gateway([prefill], [self.worker("decode")])
        refused = complete(gateway.url, LONG_PROMPT, 4)
        self.assertIn("this worker has 65536 for all that it sends", refused.error()["message"])


@program.needs_program
class LongPrompts(WorkerTest):
    """A small random model with a context of several thousand tokens; prompts are token ids."""

    def test_split_changes_nothing_for_either_codec(self):
        folder = self.folder()
        config = json.loads((GQA / "config.json").read_text())
        shape = {
            "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 8192,
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config | shape))
        model = folder / "model"
        made = run("synth", "--config", folder / "config.json", "--out", model, "--tokenizer", GQA)
        self.assertEqual(made.status, 0, made.err)

        decode = self.worker("decode", model)  # alone, it is one process that does both
        for codec in ("none", "splitzip"):
            gateway = self.gateway([self.worker("prefill", model, "--kv-codec", codec)], [decode])
            for length in (1, 63, 64, 65, 511, 513, 2048, 5000, 8160):
                prompt = [(i * i * 31 + 7 * i + length) % 4096 for i in range(length)]
                with self.subTest(codec=codec, length=length):
                    alone = complete(decode.url, prompt, 16, return_token_ids=True, ignore_eos=True).json()
                    apart = complete(gateway.url, prompt, 16, return_token_ids=True, ignore_eos=True).json()
                    self.assertEqual(apart["choices"], alone["choices"])
                    self.assertEqual(apart["kvlane"]["kv"]["raw_bytes"], length * 2 * 2 * 2 * 16 * 2)
                    self.assert_account(apart["kvlane"])
            self.assert_error(complete(gateway.url, [1] * 8192), 400, "8192", code="context_length_exceeded")


if __name__ == "__main__":
    unittest.main()
