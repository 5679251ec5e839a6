"""`kvlane store warm` with the real program: texts that are in the store before anybody asks for them.

    python3 -m unittest discover -s tests -p 'test_program_store_warm.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import json
import shutil
import unittest

from program import GQA, SMALL, ProgramTest, call, complete, needs_program, run

SEA = "The old sailor told his story of the sea and of the storm that took his ship. "
HILL = "The farmer looked down from the hill and saw the fields, white with the first snow of the year. "
QUESTION = "\nAnd then"
# As those of models that think: behind the last question an answer has a mark that later prompts do not repeat.
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if loop.last and message['role'] == 'assistant' %}<think></think>\n{% endif %}"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def say(role, content):
    return {"role": role, "content": content}


@needs_program
class WarmTest(ProgramTest):
    def setUp(self):
        self.files = self.folder()
        self.store = self.files / "store"
        self.sea = self.write("sea.txt", SEA * 12)
        self.hill = self.write("hill.txt", HILL * 9)

    def write(self, name, text):
        path = self.files / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def warm(self, *arguments, status=0, memory="64MiB", model=GQA):
        """Files by name, and the summary; with what was said of it on stderr."""
        given = ("--store", self.store, "--kv-memory", memory, "--threads", "1", "--json")
        done = run("store", "warm", model, *arguments, *given)
        self.assertEqual(done.status, status, done.err)
        lines = [json.loads(line) for line in done.out.splitlines()]
        files = {line["file"]: line for line in lines[:-1]}
        for file in files.values():
            if "tokens" in file:
                whole = file["tokens"] // 64 * 64
                self.assertEqual(file["stored"] + file["lost"], whole, file)
                self.assertEqual(file["found"] + file["computed"], whole, file)
        return files, lines[-1]["summary"], done.err

    def generate(self, prompt, *arguments, store=True):
        given = ("--store", self.store) if store else ()
        done = run("generate", GQA, *SMALL, *given, "--prompt", prompt, "-n", "20", "--json", *arguments)
        self.assertEqual(done.status, 0, done.err)
        return done.json()

    def assert_restored(self, text, file, *arguments):
        """A prompt that begins so has the answer it has without a store, and computes no whole block of `text`."""
        truth = self.generate(text + QUESTION, store=False)
        answer = self.generate(text + QUESTION, *arguments)
        self.assertEqual(answer["tokens"], truth["tokens"])
        self.assertEqual(truth["cached_tokens"], 0)
        self.assertEqual(answer["cached_tokens"], file["tokens"] // 64 * 64)
        self.assertGreater(answer["account"]["restore"], 0)

    def test_prompts_that_begin_so_are_restored(self):
        for number, form in enumerate(
            (
                ("--store-form", "kv"),
                ("--store-form", "hidden"),
                ("--store-form", "hidden=3"),
                ("--store-form", "kv", "--store-codec", "splitzip"),
            )
        ):
            with self.subTest(form):
                self.store = self.files / f"store{number}"
                files, summary, said = self.warm(self.sea, self.hill, *form)
                self.assertEqual(said, "")
                for path, text in ((self.sea, SEA * 12), (self.hill, HILL * 9)):
                    file = files[str(path)]
                    self.assertGreaterEqual(file["computed"], 128)
                    self.assertEqual((file["found"], file["lost"]), (0, 0))
                    self.assert_restored(text, file, *form)
                self.assertEqual((summary["files"], summary["failed"], summary["evicted"]), (2, 0, 0))
                self.assertEqual(summary["stored"], sum(file["stored"] for file in files.values()))
                # Prompts have added blocks of their own; files are there as they were.
                again, summary, _ = self.warm(self.sea, self.hill, *form)
                self.assertEqual(summary["computed"], 0)
                for path, file in again.items():
                    self.assertEqual(file["found"], files[path]["computed"])
                done = run("store", "verify", self.store)
                self.assertEqual(done.status, 0, done.err)

    def test_the_planned_form(self):
        files, _, _ = self.warm(self.sea, "--store-form", "auto")
        self.assertEqual(files[str(self.sea)]["lost"], 0)
        again, _, _ = self.warm(self.sea, "--store-form", "auto")
        self.assertEqual(again[str(self.sea)]["computed"], 0)

    def test_several_directories_and_a_key(self):
        key = self.write("key", "5a" * 32)
        given = ("--store-form", "kv", "--store-key", key, "--store", self.files / "second")
        files, _, _ = self.warm(self.sea, self.hill, *given)
        self.assertTrue(list((self.files / "second").rglob("*.seg")))
        self.assert_restored(HILL * 9, files[str(self.hill)], *given)

    def test_a_server_restores_what_was_warmed(self):
        files, _, _ = self.warm(self.sea, "--store-form", "kv")
        server = self.server("serve", GQA, "--port", 0, *SMALL, "--store", self.store, "--store-form", "kv")
        answer = complete(server.url, SEA * 12 + QUESTION, 10).json()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertEqual(cached, files[str(self.sea)]["stored"])
        # It makes of the text what the command made of it.
        tokens = call(server.url, "/tokenize", {"prompt": SEA * 12}).json()
        self.assertEqual(tokens["count"], files[str(self.sea)]["tokens"])

    def chatty(self):
        """The model with a chat template."""
        model = self.files / "chatty"
        shutil.copytree(GQA, model)
        config = json.loads((model / "tokenizer_config.json").read_text())
        (model / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
        return model

    def cached(self, server, messages, **fields):
        """Tokens of a chat's prompt that need not be computed, and its answer."""
        answer = call(server.url, "/v1/chat/completions",
                      {"messages": messages, "max_tokens": 10, "temperature": 0} | fields).json()  # fmt: skip
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"][0]["message"]["content"]

    def test_chats(self):
        model = self.chatty()
        system = [say("system", SEA * 6)]
        asked = [say("system", HILL * 4), say("user", SEA * 2)]
        answered = [say("user", SEA * 2 + HILL), say("assistant", HILL * 5)]
        chats = [system, asked, answered]
        paths = [self.write(f"{i}.json", json.dumps({"messages": chat} if i else chat)) for i, chat in enumerate(chats)]
        form = ("--store-form", "kv")
        files, summary, said = self.warm("--chat", *paths, *form, model=model)
        self.assertEqual((said, summary["failed"], summary["lost"], summary["found"]), ("", 0, 0, 0))
        again, summary, _ = self.warm("--chat", *paths, *form, model=model)
        self.assertEqual(summary["computed"], 0)
        server = self.server("serve", model, "--port", 0, *SMALL, "--store", self.store, *form)
        other = self.server("serve", model, "--port", 0, *SMALL)
        for path, chat in zip(paths, chats):
            file = files[str(path)]
            self.assertGreaterEqual(file["stored"], 128)
            # All of the messages is in, whatever is said next, and no more than the next one's beginning.
            text = call(other.url, "/tokenize", {"messages": chat, "add_generation_prompt": False}).json()["count"]
            self.assertLess(abs(file["tokens"] - text), 16)
            ends = [[]] if chat is asked else [[say("user", "Who was it?")], [say("user", HILL)]]
            ends += [[say("assistant", "A sailor."), say("user", "And then?")]] if chat is asked else []
            for end in ends:
                cached, content = self.cached(server, chat + end)
                self.assertEqual(cached, file["stored"], end)
                self.assertEqual(content, self.cached(other, chat + end)[1])

    def test_a_salt(self):
        form = ("--store-form", "kv")
        files, _, _ = self.warm(self.sea, "--salt", "tenant 7", *form)
        stored = files[str(self.sea)]["stored"]
        self.assertEqual(files[str(self.sea)]["computed"], stored)
        self.assertEqual(self.warm(self.sea, "--salt", "tenant 7", *form)[1]["found"], stored)
        server = self.server("serve", GQA, "--port", 0, *SMALL, "--store", self.store, *form)
        for salt, expected in (({"cache_salt": "tenant 8"}, 0), ({}, 0), ({"cache_salt": "tenant 7"}, stored)):
            answer = complete(server.url, SEA * 12 + QUESTION, 10, **salt).json()
            self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], expected, salt)

    def test_chats_that_are_none_are_a_sentence_each(self):
        model = self.chatty()
        bad = {
            "[1": "not valid JSON",
            "[]": "'messages' must be an array of 1 to",
            '{"messages": [], "model": "m"}': "'model'",
            "{}": "'messages' must be an array",
            '[{"role": "tool", "content": "x"}]': "'messages[0].role' must be system, user or assistant",
            '[{"role": "user"}]': "'messages[0].content' is missing",
        }
        paths = [self.write(f"{number}.json", text) for number, text in enumerate(bad)]
        good = self.write("good.json", json.dumps([say("user", SEA * 8)]))
        files, summary, said = self.warm("--chat", *paths, good, "--store-form", "kv", model=model, status=1)
        self.assertEqual((summary["files"], summary["failed"]), (len(bad) + 1, len(bad)))
        self.assertGreater(files[str(good)]["stored"], 0)
        for path, why, sentence in zip(paths, bad.values(), said.splitlines()):
            self.assertTrue(sentence.startswith(f"kvlane: {path}: "), sentence)
            self.assertIn(why, sentence)
        _, _, said = self.warm("--chat", good, "--store-form", "kv", status=1)
        self.assertIn(f"{good}: This model has no chat template", said.splitlines()[0])

    def test_text_in_front_of_all(self):
        prefix = self.write("prefix.txt", SEA * 4)
        form = ("--store-form", "kv")
        self.warm(prefix, *form)
        files, _, _ = self.warm(self.hill, "--prefix", prefix, *form)
        self.assertGreaterEqual(files[str(self.hill)]["found"], 64)
        self.assertGreater(files[str(self.hill)]["computed"], 0)
        self.assert_restored(SEA * 4 + HILL * 9, files[str(self.hill)], *form)

    def test_many_files_that_begin_alike_are_computed_once(self):
        # More than the KV memory holds.
        shared = SEA * 6
        paths = [self.write(f"{i:02}.txt", shared + f"Story {i}. " + HILL * (i % 5)) for i in range(30)]
        for number, form in enumerate(("kv", "hidden")):
            self.store = self.files / f"store{number}"
            files, summary, said = self.warm(*paths, "--store-form", form, memory="2MiB")
            self.assertEqual((summary["files"], summary["failed"], summary["lost"], said), (30, 0, 0, ""))
            self.assertEqual(len(files), 30)
            self.assertLess(summary["computed"], summary["tokens"] / 2)
            for i in (0, 17):
                self.assert_restored(paths[i].read_text(), files[str(paths[i])], "--store-form", form)

    def test_whole_blocks_of_what_fits_the_context(self):
        form = ("--store-form", "kv", "--max-model-len", "129")
        paths = [self.write(f"{words}.txt", " ".join(["the sea"] * words)) for words in (3, *range(60, 67))]
        files, summary, said = self.warm(*paths, *form, status=1)
        fit = [file for file in files.values() if "error" not in file]
        self.assertEqual((fit[0]["stored"], fit[0]["lost"]), (0, 0))  # less than a block
        self.assertEqual(fit[-1]["stored"], 128)  # all of it, and one token is left for an answer
        self.assertEqual(fit[-1]["tokens"], 128)
        refused = [file for file in files.values() if "error" in file]
        self.assertEqual(len(fit) + len(refused), len(paths))
        for file in refused:
            self.assertIn(f"{file['file']} has ", file["error"])
            self.assertIn("too many for prompts of a model with a context of 129", file["error"])
            self.assertIn(file["error"], said)
        self.assertEqual((summary["files"], summary["failed"]), (len(paths), len(refused)))
        _, summary, _ = self.warm(*paths, *form, status=1)
        self.assertEqual(summary["computed"], 0)

    def test_files_that_are_no_texts_are_a_sentence_each_and_the_others_go_on(self):
        bad = {
            self.write("empty.txt", ""): "is empty",
            self.write("latin.txt", b"caf\xe9 " * 100): "UTF-8",
            self.files / "missing.txt": "missing.txt",
            self.files: "not a regular file",
        }
        files, summary, said = self.warm(*bad, self.sea, "--store-form", "kv", status=1)
        self.assertEqual(files[str(self.sea)]["computed"], summary["stored"])
        self.assertEqual((summary["files"], summary["failed"]), (5, 4))
        sentences = said.splitlines()
        self.assertEqual(len(sentences), 5, said)
        for (path, why), sentence in zip(bad.items(), sentences):
            self.assertTrue(sentence.startswith("kvlane: "), sentence)
            self.assertIn(str(path), sentence)
            self.assertIn(why, sentence)
            self.assertEqual("kvlane: " + files[str(path)]["error"], sentence)
        self.assertIn("4 of 5 files are not stored", sentences[-1])

    def test_what_people_read(self):
        given = ("store", "warm", GQA, self.sea, *SMALL, "--store", self.store, "--store-form", "kv")
        done = run(*given)
        self.assertEqual((done.status, done.err), (0, ""))
        file, summary = done.out.splitlines()
        self.assertRegex(file, rf"^{self.sea}: (\d+) of \d+ tokens are stored, 0 were there, \1 computed$")
        self.assertRegex(summary, r"^1 of 1 files, in whole blocks of 64: ")
        self.assertRegex(run(*given).out.splitlines()[0], r"stored, (\d+) were there, 0 computed$")
        self.assertIn("  kvlane store warm DIR --chat ", run("store", "warm", "--help").out)

    def test_what_had_to_go_is_said(self):
        paths = [self.write(f"{i}.txt", f"Story {i}. " + SEA * 12) for i in range(24)]
        form = ("--store-form", "kv", "--store-max", "4MiB")
        # What nobody asked for again makes room.
        for half in (paths[:5], paths[5:10]):
            _, summary, said = self.warm(*half, *form)
            self.assertEqual(summary["lost"], 0)
        self.assertGreater(summary["evicted"], 0)
        self.assertIn("the store was full", said)
        self.assertIn("of 0 of these files", said)
        # Not all of them fit.
        files, summary, said = self.warm(*paths, *form, status=1)
        there = json.loads(run("store", "stat", self.store, "--json").out)["extents"]
        self.assertLessEqual(summary["stored"], 64 * there)  # a file's end is of no use without its beginning
        self.assertGreater(summary["stored"], 0)
        self.assertGreater(summary["failed"], 12)
        self.assertIn("of 24 files are not stored, or not all of them", said)

    def test_wrong_usage(self):
        self.assert_refused(run("store", "warm", GQA, self.sea), "--store is required", status=2)
        self.assert_refused(run("store", "warm", GQA, "--store", self.store), "FILE is required", status=2)
        given = ("store", "warm", GQA, self.sea, *SMALL, "--store", self.store)
        self.assert_refused(run(*given, "--prefix", self.files / "none"), "none")
        self.assert_refused(run(*given, "--chat", "--prefix", self.sea), "--prefix excludes --chat", status=2)
        self.assert_refused(run(*given, "--salt", "x" * 257), "--salt must be valid UTF-8 of at most 256 bytes")
        self.assert_refused(run(*given, "--salt", "caf\udce9"), "--salt must be valid UTF-8")
        self.assert_refused(run(*given, "--store-form", "pickle"), "unknown form of stored state 'pickle'")
        self.assert_refused(run(*given, "--store-form", "kv", "--no-enable-prefix-caching"), "prefix cache")


if __name__ == "__main__":
    unittest.main()
