"""The HTTP API of the running program: one process (serve) and three (up), what they answer to good and to bad
requests, and that splitting changes nothing. Workers one by one, faults and signals: test_program_workers.py.
"""
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import json
import shutil
import socket
import unittest

import program
from program import (
    GQA,
    SMALL,
    TINY,
    Stream,
    call,
    complete,
    connect,
    counts_of,
    load_of,
    run,
    stream_completion,
    text_of,
    wait_idle,
)

PROMPT = "The old sailor looked at the sea"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def generated(model, prompt, *flags, max_tokens=24):
    """The text that `kvlane generate` gives."""
    done = run("generate", model, *SMALL, "--prompt", prompt, "--max-tokens", max_tokens, *flags, "--json")
    return done.json()["text"]


def raw_exchange(address, data):
    """What a server says to bytes that need not be HTTP, up to the end of the connection."""
    with socket.create_connection(address, timeout=program.PATIENCE) as peer:
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        said = b""
        while piece := peer.recv(65536):
            said += piece
        return said


@program.needs_program
class Serve(program.ProgramTest):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.class_server("serve", GQA, "--port", 0, *SMALL)
        cls.url = cls.server.url

    def test_the_ready_line_says_where_and_which_process(self):
        expected = {"event": "ready", "role": "serve", "url": self.url, "pid": self.server.process.pid,
                    "model": GQA.name}
        self.assertEqual(self.server.ready, expected)

    def tearDown(self):
        # Whatever a test did, no request and no block of memory may stay behind.
        wait_idle(self.url)

    def test_completion(self):
        answer = complete(self.url, PROMPT, 24)
        self.assertEqual(text_of(answer), generated(GQA, PROMPT))
        body = answer.json()
        self.assertEqual((body["object"], body["model"]), ("text_completion", "kvlane-tiny-gqa"))
        usage = body["usage"]
        self.assertEqual(usage["completion_tokens"], 24)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + 24)
        self.assertEqual(body["kvlane"]["kv"], {"raw_bytes": 0, "shipped_bytes": 0, "codec": None})
        self.assert_account(body["kvlane"])

    def test_stream_says_the_same_then_usage_then_done(self):
        with stream_completion(self.url, PROMPT, 24, stream_options={"include_usage": True}) as stream:
            self.assertTrue(stream.response.headers["Content-Type"].startswith("text/event-stream"))
            events = list(stream)
        self.assertTrue(stream.done)
        self.assertEqual(
            "".join(choice["text"] for event in events for choice in event["choices"]),
            generated(GQA, PROMPT),
        )
        self.assertEqual(events[-2]["choices"][0]["finish_reason"], "length")
        self.assertEqual((events[-1]["choices"], events[-1]["usage"]["completion_tokens"]), ([], 24))
        self.assert_account(events[-1]["kvlane"])

    def test_stream_without_usage_carries_the_account_with_the_end(self):
        with stream_completion(self.url, PROMPT, 5) as stream:
            events = list(stream)
        self.assertTrue(stream.done)
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "length")
        self.assertNotIn("usage", events[-1])
        self.assert_account(events[-1]["kvlane"])

    def test_many_at_once_answer_as_one_alone(self):
        prompts = [PROMPT, "She", "In the year 1850 the town", "", "I do not know", "A" * 200, "Rain,", "é" * 40]
        alone = [generated(GQA, prompt) for prompt in prompts]
        sampled = {"temperature": 1.0, "top_p": 0.9, "seed": 11}
        alone_sampled = [
            generated(GQA, prompt, "--temperature", 1, "--top-p", 0.9, "--seed", 11) for prompt in prompts
        ]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            greedy = [pool.submit(complete, self.url, prompt, 24) for prompt in prompts]
            seeded = [pool.submit(complete, self.url, prompt, 24, **sampled) for prompt in prompts]
            self.assertEqual([text_of(answer.result()) for answer in greedy], alone)
            self.assertEqual([text_of(answer.result()) for answer in seeded], alone_sampled)

    def test_stop_strings_are_no_part_of_the_answer(self):
        free = text_of(complete(self.url, PROMPT, 30))
        word = free.split()[4]
        stopped = complete(self.url, PROMPT, 30, stop=["no such words", word])
        self.assertEqual(text_of(stopped), free[: free.index(word)])
        self.assertEqual(stopped.json()["choices"][0]["finish_reason"], "stop")
        with stream_completion(self.url, PROMPT, 30, stop=word) as stream:
            pieces = [choice["text"] for event in stream for choice in event["choices"]]
        self.assertEqual("".join(pieces), free[: free.index(word)])

    def test_prompt_as_token_ids_and_ids_returned(self):
        whole = complete(self.url, "", 6, return_token_ids=True).json()["choices"][0]
        self.assertEqual(len(whole["token_ids"]), 6)
        continued = complete(self.url, [0] + whole["token_ids"][:3], 3, return_token_ids=True).json()["choices"][0]
        self.assertEqual(continued["token_ids"], whole["token_ids"][3:])

    def test_other_routes(self):
        self.assertEqual(call(self.url, "/version").json()["version"], run("version").out.split()[1])
        model = call(self.url, "/v1/models").json()["data"][0]
        self.assertEqual((model["id"], model["max_model_len"]), ("kvlane-tiny-gqa", 1024))
        self.assertEqual(call(self.url, "/health").json()["status"], "ok")
        self.assertEqual(call(self.url, "/health", method="HEAD").body, b"")
        answer = call(self.url, "/v1/models", headers={"X-Request-Id": "mine-7"})
        self.assertEqual(answer.headers["X-Request-Id"], "mine-7")

    def test_one_connection_takes_request_after_request(self):
        connection = connect(self.url)
        self.addCleanup(connection.close)
        for status, body in ((200, {"prompt": "a"}), (400, {"prompt": 5}), (200, {"prompt": "b"})):
            connection.request("POST", "/v1/completions", json.dumps(body))
            response = connection.getresponse()
            self.assertEqual(response.status, status)
            response.read()

    def test_client_that_leaves_ends_its_request(self):
        for stream in (True, False):
            connection = connect(self.url)
            body = {"prompt": PROMPT, "max_tokens": 1000, "ignore_eos": True, "stream": stream}
            connection.request("POST", "/v1/completions", json.dumps(body))
            program.wait_until(lambda: load_of(self.url)["running"] == 1, "the request runs")
            connection.sock.close()
            connection.close()
            wait_idle(self.url)


@program.needs_program
class BadRequests(program.ProgramTest):
    """Status, OpenAI's form and a sentence for each, from one process and from the gateway alike."""

    FIELDS = (
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [4096]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({}, "prompt"),
        ({"prompt": "a", "max_token": 5}, "max_token"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 2**63}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 1.5}, "max_tokens"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "temperature": 1e300}, "temperature"),
        ({"prompt": "a", "top_p": 0}, "top_p"),
        ({"prompt": "a", "top_k": -2}, "top_k"),
        ({"prompt": "a", "seed": 1.5}, "seed"),
        ({"prompt": "a", "stop": ""}, "stop"),
        ({"prompt": "a", "stop": ["x"] * 17}, "stop"),
        ({"prompt": "a", "stop": "x" * 257}, "stop"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "best_of": 2}, "best_of"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logit_bias": {"4096": 1}}, "logit_bias"),
        ({"prompt": "a", "min_tokens": 17}, "min_tokens"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "stream": "yes"}, "stream"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": "a", "kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params"),
    )
    BODIES = (
        b"",
        b"{",
        b"[]",
        b'{"prompt": NaN}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "\xff\xfe"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a"} and more',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    )

    @classmethod
    def setUpClass(cls):
        cls.serve = cls.class_server("serve", GQA, "--port", 0, *SMALL)
        cls.up = cls.class_server("up", GQA, "--port", 0, *SMALL)

    def each(self):
        for server in (self.serve, self.up):
            with self.subTest(server.ready["role"]):
                yield server

    def test_wrong_fields_are_named(self):
        for server in self.each():
            for body, param in self.FIELDS:
                with self.subTest(body=body):
                    self.assert_error(call(server.url, "/v1/completions", body), 400, "", param)

    def test_bodies_that_are_no_request(self):
        for server in self.each():
            for body in self.BODIES:
                with self.subTest(body=body[:40]):
                    self.assert_error(call(server.url, "/v1/completions", body), 400, "The body ")

    def test_prompt_longer_than_the_context(self):
        for server in self.each():
            code = "context_length_exceeded"
            self.assert_error(complete(server.url, "word " * 2000), 400, "1024", "prompt", code)
            self.assert_error(complete(server.url, "word", 1024), 400, "1024", "max_tokens", code)

    def test_unknown_model_route_and_method(self):
        for server in self.each():
            self.assert_error(complete(server.url, "a", model="other"), 404, "other", "model", "model_not_found")
            self.assert_error(call(server.url, "/v2/nothing"), 404, "/v2/nothing")
            self.assert_error(call(server.url, "/v1/completions"), 405, "GET")

    def test_chat_without_a_template(self):
        messages = {"messages": [{"role": "user", "content": "Hello"}]}
        for server in self.each():
            answer = call(server.url, "/v1/chat/completions", messages)
            self.assert_error(answer, 400, "no chat template", "messages")

    def test_chat_messages_that_are_none(self):
        for server in self.each():
            for messages in ([], "hello", [{"role": "user"}], [{"role": "wizard", "content": "x"}], [5]):
                answer = call(server.url, "/v1/chat/completions", {"messages": messages})
                self.assertEqual(answer.status, 400)
                self.assertTrue(answer.error()["param"].startswith("messages"))

    def test_bodies_that_are_too_long(self):
        for server in self.each():
            answer = call(server.url, "/v1/completions", b'{"prompt": "' + b"a" * (9 << 20) + b'"}')
            self.assert_error(answer, 413, "longer than the limit")
            answer = call(server.url, "/health", headers={"X-Long": "a" * 20_000})
            self.assert_error(answer, 431, "longer than the limit")

    def test_peer_that_speaks_another_protocol(self):
        for server in self.each():
            hello_of_tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
            for noise in (hello_of_tls, b"SSH-2.0-x\r\n\r\n", bytes(range(256)) * 64):
                said = raw_exchange(server.address(), noise)
                self.assertTrue(said == b"" or said.startswith(b"HTTP/1.1 400 "), said[:100])
            self.assertEqual(complete(server.url, "a", 2).status, 200)


@program.needs_program
class Chat(program.ProgramTest):
    """The bundled models have no template; this one is the bundled one with a template."""

    @classmethod
    def setUpClass(cls):
        model = cls.class_folder() / "chatty"
        shutil.copytree(TINY, model)
        config = json.loads((model / "tokenizer_config.json").read_text())
        (model / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": CHATML}))
        cls.model = model
        cls.serve = cls.class_server("serve", model, "--port", 0, *SMALL)
        cls.up = cls.class_server("up", model, "--port", 0, *SMALL)

    REQUEST = {
        "model": "chatty",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
        "temperature": 0,
        "max_tokens": 10,
    }

    def test_answer_is_what_follows_the_rendered_template(self):
        rendered = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
        expected = text_of(complete(self.serve.url, rendered, 10))
        for server in (self.serve, self.up):
            answer = call(server.url, "/v1/chat/completions", self.REQUEST).json()
            self.assertEqual(answer["object"], "chat.completion")
            self.assertEqual(answer["choices"][0]["message"], {"role": "assistant", "content": expected})

    def test_context_is_what_the_kv_memory_holds(self):
        for command in ("serve", "up"):
            server = self.server(command, self.model, "--port", 0, "--kv-memory", "2MiB", "--threads", 1)
            listed = call(server.url, "/v1/models").json()["data"][0]
            context = listed["max_model_len"]
            self.assertTrue(64 <= context < 1024 and context % 64 == 0, context)
            self.assertIn(f"holds {context} tokens", server.stderr())
            request = {key: value for key, value in self.REQUEST.items() if key != "max_tokens"}
            answer = call(server.url, "/v1/chat/completions", request)
            self.assertEqual(answer.status, 200, answer.body)
            self.assertLessEqual(answer.json()["usage"]["total_tokens"], context)
            refused = call(server.url, "/v1/chat/completions", request | {"max_tokens": context})
            self.assert_error(refused, 400, f"maximum context length is {context} tokens", param="max_tokens")

    def test_stream(self):
        expected = call(self.serve.url, "/v1/chat/completions", self.REQUEST).json()
        content = expected["choices"][0]["message"]["content"]
        for server in (self.serve, self.up):
            request = self.REQUEST | {"stream_options": {"include_usage": True}}
            with Stream(server.url, "/v1/chat/completions", request) as stream:
                events = list(stream)
            self.assertTrue(stream.done)
            self.assertEqual(events[0]["choices"][0]["delta"]["role"], "assistant")
            deltas = [choice["delta"] for event in events for choice in event["choices"]]
            self.assertEqual("".join(delta.get("content") or "" for delta in deltas), content)
            self.assertEqual(counts_of(events[-1]), counts_of(expected))

    def test_template_that_is_not_understood_costs_chats_only(self):
        model = self.folder() / "strange"
        shutil.copytree(TINY, model)
        (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{% macro f() %}{% endmacro %}"}))
        serve = self.server("serve", model, "--port", 0, *SMALL)
        self.assertEqual(complete(serve.url, "Hello", 4).status, 200)
        answer = call(serve.url, "/v1/chat/completions", self.REQUEST | {"model": "strange"})
        self.assert_error(answer, 400, "the tag 'macro' is not supported", "messages")
        self.assertIn("chat requests will be refused", serve.stderr())

    def test_generate_chat_says_the_same(self):
        one = self.REQUEST | {"messages": [{"role": "user", "content": "Hello"}]}
        expected = call(self.serve.url, "/v1/chat/completions", one).json()["choices"][0]["message"]["content"]
        told = run("generate", self.model, *SMALL, "--chat", "--prompt", "Hello", "--max-tokens", 10, "--json")
        self.assertEqual(told.json()["text"], expected)


@program.needs_program
class Up(program.ProgramTest):
    PROMPTS = ("", "She", PROMPT, "word " * 63, "The rain beat against the windows. " * 60)

    def test_three_processes_answer_as_one_with_both_codecs(self):
        serve = self.server("serve", GQA, "--port", 0, *SMALL)
        shipped = {}
        for codec in ("none", "splitzip"):
            up = self.server("up", GQA, "--port", 0, "--kv-codec", codec, *SMALL)
            for prompt in self.PROMPTS:
                for sampling in ({}, {"temperature": 0.8, "seed": 3}):
                    with self.subTest(codec=codec, prompt=prompt[:20], **sampling):
                        alone = complete(serve.url, prompt, 20, **sampling).json()
                        apart = complete(up.url, prompt, 20, **sampling).json()
                        self.assertEqual(apart["choices"], alone["choices"])
                        self.assertEqual(counts_of(apart), counts_of(alone))
                        self.assert_account(apart["kvlane"])
                        kv = apart["kvlane"]["kv"]
                        # K and V of 6 layers with 2 heads of 64 values of 2 bytes.
                        self.assertEqual(kv["raw_bytes"], alone["usage"]["prompt_tokens"] * 2 * 6 * 2 * 64 * 2)
                        shipped[codec, prompt] = kv["shipped_bytes"]
            self.assertEqual(up.stop(), 0)
        long = self.PROMPTS[-1]
        raw = kv["raw_bytes"]
        self.assertGreater(shipped["none", long], raw)
        self.assertLess(shipped["splitzip", long], 0.9 * raw)

    def test_stream_through_the_gateway(self):
        up = self.server("up", GQA, "--port", 0, "--kv-codec", "splitzip", *SMALL)
        with stream_completion(up.url, PROMPT, 24, stream_options={"include_usage": True}) as stream:
            events = list(stream)
        self.assertTrue(stream.done)
        text = "".join(choice["text"] for event in events for choice in event["choices"])
        self.assertEqual(text, generated(GQA, PROMPT))
        self.assertGreater(events[-1]["kvlane"]["kv"]["shipped_bytes"], 0)
        self.assert_account(events[-1]["kvlane"])
        self.assertEqual(call(up.url, "/v1/models").json()["data"][0]["id"], "kvlane-tiny-gqa")
        self.assertEqual(call(up.url, "/health").json()["status"], "ok")


if __name__ == "__main__":
    unittest.main()
