"""The unmodified `openai` package and curl against running servers: one process, and three behind a gateway.

The package is optional: `scripts/setup test` puts it into build/venv. Without it the tests that need it are
skipped; those with curl need curl.
"""
# SPDX-License-Identifier: Apache-2.0
import json
import math
import shutil
import subprocess
import unittest

import program
from program import GQA, SMALL, call, wait_idle, wait_until
from test_program_api import CHATML

try:
    import openai
except ImportError:
    openai = None

PROMPT = "The old sailor looked at the sea"
MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]
needs_openai = unittest.skipUnless(openai, "the Python package 'openai' is missing: run scripts/setup test")
needs_curl = unittest.skipUnless(shutil.which("curl"), "curl is missing")


class ClientTest(program.ProgramTest):
    """A server and a gateway over the same model, with a chat template and a key."""

    KEY = "secret"

    @classmethod
    def setUpClass(cls):
        cls.model = cls.class_folder() / "model"
        shutil.copytree(GQA, cls.model)
        settings = cls.model / "tokenizer_config.json"
        fields = json.loads(settings.read_text()) if settings.exists() else {}
        settings.write_text(json.dumps(fields | {"chat_template": CHATML}))
        flags = ("--port", 0, *SMALL, "--served-model-name", "tiny")
        cls.serve = cls.class_server("serve", cls.model, *flags, KVLANE_API_KEY=cls.KEY)
        cls.up = cls.class_server("up", cls.model, *flags, KVLANE_API_KEY=cls.KEY)

    def tearDown(self):
        wait_idle(self.serve.url)

    def each(self):
        for server in (self.serve, self.up):
            with self.subTest(server.ready["role"]):
                yield server


@program.needs_program
@needs_openai
class OpenAiPackage(ClientTest):
    def client(self, server, **options):
        client = openai.OpenAI(base_url=server.url + "/v1", api_key=self.KEY, max_retries=0, **options)
        self.addCleanup(client.close)
        return client

    def clients(self):
        for server in self.each():
            yield self.client(server)

    def test_models(self):
        for client in self.clients():
            (model,) = client.models.list()
            self.assertEqual((model.id, model.object), ("tiny", "model"))

    def test_completion(self):
        texts = []
        for client in self.clients():
            answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=24, temperature=0)
            (choice,) = answer.choices
            self.assertEqual((choice.index, choice.finish_reason, choice.logprobs), (0, "length", None))
            self.assertEqual(answer.usage.completion_tokens, 24)
            self.assertGreaterEqual(answer.usage.prompt_tokens_details.cached_tokens, 0)
            texts.append(choice.text)
        self.assertEqual(texts[0], texts[1])

    def test_stream_says_the_same(self):
        for client in self.clients():
            ask = {"model": "tiny", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
            whole = client.completions.create(**ask)
            chunks = list(client.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
            self.assertEqual("".join(c.choices[0].text for c in chunks[:-1]), whole.choices[0].text)
            self.assertEqual(chunks[-2].choices[0].finish_reason, "length")
            self.assertEqual((chunks[-1].choices, chunks[-1].usage.completion_tokens), ([], 24))

    def test_chat(self):
        for client in self.clients():
            ask = {"model": "tiny", "messages": MESSAGES, "max_completion_tokens": 12, "seed": 5}
            whole = client.chat.completions.create(**ask)
            (choice,) = whole.choices
            self.assertEqual(choice.message.role, "assistant")
            self.assertTrue(choice.message.content)
            chunks = list(client.chat.completions.create(**ask, stream=True))
            self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
            said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            self.assertEqual(said, choice.message.content)

    def test_several_answers(self):
        for client in self.clients():
            ask = {"model": "tiny", "prompt": PROMPT, "max_tokens": 16, "n": 4, "seed": 7, "temperature": 1}
            whole = client.completions.create(**ask)
            self.assertEqual([choice.index for choice in whole.choices], [0, 1, 2, 3])
            self.assertGreater(len({choice.text for choice in whole.choices}), 1, "they draw apart")
            texts, ends = [""] * 4, [None] * 4
            for chunk in client.completions.create(**ask, stream=True):
                for choice in chunk.choices:
                    self.assertIsNone(ends[choice.index], "nothing behind the end of an answer")
                    texts[choice.index] += choice.text
                    ends[choice.index] = choice.finish_reason
            self.assertEqual(texts, [choice.text for choice in whole.choices])
            self.assertEqual(ends, [choice.finish_reason for choice in whole.choices])

    def test_logprobs_of_completions(self):
        for client in self.clients():
            ask = {"model": "tiny", "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 3}
            (choice,) = client.completions.create(**ask).choices
            told = choice.logprobs
            self.assertEqual("".join(told.tokens), choice.text)
            self.assertEqual(len(told.tokens), 12)
            for token, logprob, top, offset in zip(
                told.tokens, told.token_logprobs, told.top_logprobs, told.text_offset
            ):
                self.assertLessEqual(logprob, 0)
                self.assertEqual(max(top, key=top.get), token, "greedy takes the most likely one")
                self.assertAlmostEqual(top[token], logprob)
                self.assertEqual(len(top), 3)
                self.assertTrue(choice.text[offset:].startswith(token))
            streamed = [c.choices[0].logprobs for c in client.completions.create(**ask, stream=True)]
            streamed = [logprobs for logprobs in streamed if logprobs]
            for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                joined = [item for logprobs in streamed for item in getattr(logprobs, field)]
                self.assertEqual(joined, getattr(told, field), field)

    def test_logprobs_of_chats(self):
        for client in self.clients():
            ask = {"model": "tiny", "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
            ask |= {"logprobs": True, "top_logprobs": 2}
            (choice,) = client.chat.completions.create(**ask).choices
            said = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
            self.assertEqual(said.decode("utf-8", "replace"), choice.message.content)
            for entry in choice.logprobs.content:
                self.assertEqual(len(entry.top_logprobs), 2)
                self.assertEqual(entry.top_logprobs[0].token, entry.token)
                self.assertLessEqual(sum(math.exp(top.logprob) for top in entry.top_logprobs), 1 + 1e-5)
            chunks = client.chat.completions.create(**ask, stream=True)
            streamed = [c.choices[0].logprobs.content for c in chunks if c.choices[0].logprobs]
            self.assertEqual([entry for part in streamed for entry in part], choice.logprobs.content)

    def test_bias_and_stops(self):
        for server in self.each():
            client = self.client(server)
            ask = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
            further = {"return_token_ids": True}
            first = client.completions.create(**ask, extra_body=further).choices[0]
            tokens = first.token_ids
            # A token that may not come does not; one that must come does.
            banned = client.completions.create(**ask, logit_bias={str(tokens[0]): -100}, extra_body=further)
            self.assertNotIn(tokens[0], banned.choices[0].token_ids)
            forced = client.completions.create(**ask, logit_bias={"300": 100}, extra_body=further)
            self.assertEqual(forced.choices[0].token_ids, [300] * 8)
            # The third token ends the answer, unless it must be longer.
            stop = further | {"stop_token_ids": [tokens[2]], "ignore_eos": True}
            stopped = client.completions.create(**ask, extra_body=stop).choices[0]
            end = tokens.index(tokens[2])
            self.assertEqual((stopped.token_ids, stopped.finish_reason), (tokens[:end], "stop"))
            longer = client.completions.create(**ask, extra_body=stop | {"min_tokens": 6}).choices[0]
            self.assertGreaterEqual(len(longer.token_ids), 6)

    def test_penalties(self):
        for client in self.clients():
            ask = {"model": "tiny", "prompt": PROMPT, "max_tokens": 64, "temperature": 0}
            further = {"return_token_ids": True, "ignore_eos": True}
            plain = client.completions.create(**ask, extra_body=further).choices[0].token_ids
            other = client.completions.create(
                **ask, frequency_penalty=2, presence_penalty=2, extra_body=further
            ).choices[0].token_ids
            self.assertGreater(len(set(other)), len(set(plain)))

    def test_further_fields_are_taken(self):
        for client in self.clients():
            answer = client.chat.completions.create(
                model="tiny", messages=MESSAGES, max_completion_tokens=4, user="me", top_p=0.9, stop=["\n\n"],
                extra_body={"cache_salt": "tenant", "priority": 3, "min_p": 0.05, "repetition_penalty": 1.1}
                | {"top_k": 9},
            )
            self.assertLessEqual(answer.usage.completion_tokens, 4)

    def test_errors_have_the_packages_types(self):
        for server in self.each():
            client = self.client(server)
            ask = {"model": "tiny", "prompt": PROMPT}
            with self.assertRaises(openai.BadRequestError) as refused:
                client.completions.create(**ask, suffix="x")
            self.assertEqual(refused.exception.param, "suffix")
            with self.assertRaises(openai.BadRequestError) as longer:
                client.completions.create(**ask, max_tokens=10**6)
            self.assertEqual(longer.exception.code, "context_length_exceeded")
            with self.assertRaises(openai.NotFoundError) as unknown:
                client.completions.create(model="other", prompt=PROMPT)
            self.assertEqual(unknown.exception.code, "model_not_found")
            with self.assertRaises(openai.AuthenticationError):
                openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0).models.list()

    def test_a_closed_stream_aborts_all_its_answers(self):
        for server in self.each():
            client = self.client(server)
            stream = client.completions.create(
                model="tiny", prompt=PROMPT, max_tokens=400, n=4, stream=True, extra_body={"ignore_eos": True}
            )
            next(iter(stream))
            stream.close()
            if server is self.serve:
                wait_idle(server.url)
                metrics = call(server.url, "/metrics").body.decode()
                self.assertRegex(metrics, r'kvlane_request_failures_total\{[^}]*reason="aborted"[^}]*\} [1-9]')


@program.needs_program
@needs_curl
class Curl(ClientTest):
    """As a person would try it."""

    def curl(self, server, path, body=None, *flags):
        command = ["curl", "-sS", "-N", "--max-time", str(program.PATIENCE), *flags, server.url + path]
        if body is not None:
            command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        done = subprocess.run(command, capture_output=True, check=False, timeout=2 * program.PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode()

    def authorised(self, server, path, body=None):
        return self.curl(server, path, body, "-H", f"Authorization: Bearer {self.KEY}")

    def test_a_stream(self):
        for server in self.each():
            body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "n": 2, "stream": True}
            events = self.authorised(server, "/v1/completions", body).split("\n\n")
            self.assertEqual(events[-2:], ["data: [DONE]", ""])
            texts = {0: "", 1: ""}
            for event in events[:-2]:
                for choice in json.loads(event.removeprefix("data: "))["choices"]:
                    texts[choice["index"]] += choice["text"]
            self.assertEqual(texts[0], texts[1], "greedy ones say the same")

    def test_tokenize_there_and_back(self):
        for server in self.each():
            answer = json.loads(self.authorised(server, "/tokenize", {"prompt": PROMPT, "return_token_strs": True}))
            self.assertEqual(answer["count"], len(answer["tokens"]))
            self.assertEqual(answer["count"], len(answer["token_strs"]))
            self.assertTrue("".join(answer["token_strs"]).endswith(PROMPT))
            self.assertGreater(answer["max_model_len"], 0)
            bare = json.loads(
                self.authorised(server, "/tokenize", {"prompt": PROMPT, "add_special_tokens": False})
            )["tokens"]
            text = json.loads(self.authorised(server, "/detokenize", {"tokens": bare}))
            self.assertEqual(text, {"prompt": PROMPT})
            chat = json.loads(self.authorised(server, "/tokenize", {"messages": MESSAGES}))
            used = json.loads(
                self.authorised(server, "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1})
            )["usage"]["prompt_tokens"]
            self.assertEqual(chat["count"], used)

    def test_metrics_need_no_key_and_parse(self):
        self.authorised(self.serve, "/v1/completions", {"prompt": PROMPT, "max_tokens": 3, "ignore_eos": True})
        text = wait_until(lambda: self.curl(self.serve, "/metrics"), "metrics")
        values = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        self.assertGreaterEqual(values['kvlane_generation_tokens_total{model_name="tiny"}'], 3)
        self.assertEqual(values['vllm:generation_tokens_total{model_name="tiny"}'],
                         values['kvlane_generation_tokens_total{model_name="tiny"}'])
        self.assertIn('vllm:kv_cache_usage_perc{model_name="tiny"}', values)
        self.assertIn("kvlane_gateway_requests_waiting", self.curl(self.up, "/metrics"))

    def test_a_missing_key_is_told(self):
        for server in self.each():
            for path in ("/v1/models", "/tokenize"):
                body = {"prompt": "a"} if path == "/tokenize" else None
                self.assertEqual(json.loads(self.curl(server, path, body))["error"]["code"], "invalid_api_key")


if __name__ == "__main__":
    unittest.main()
