"""The program's commands that end by themselves: generate, inspect, synth, version and help, with good and
with bad input. What serves HTTP is in test_program_api.py and test_program_workers.py, bench in test_bench.py.

    KVLANE_PROGRAM=build/release/kvlane python3 -m unittest discover -s tests -p 'test_program*.py'
"""
# SPDX-License-Identifier: Apache-2.0
import json
import os
import shutil
import tempfile
import unittest

import program
from program import GQA, ROOT, SMALL, TINY, run

COMMANDS = ("serve", "up", "prefill", "decode", "gateway", "generate", "inspect", "synth", "profile", "plan", "bench")
COMMANDS += ("version",)
PROMPT = "The old sailor looked at the sea"
GOLDEN = ROOT / "tests" / "golden"


@program.needs_program
class Help(program.ProgramTest):
    def test_each_command_has_help_with_an_example_of_itself(self):
        for command in COMMANDS:
            with self.subTest(command):
                shown = run(command, "--help")
                self.assertEqual((shown.status, shown.err), (0, ""))
                self.assertRegex(shown.out, rf"Example: kvlane {command}\b")
        self.assertIn("Example: kvlane bench model", run("bench", "model", "--help").out)

    def test_help_of_workers_leaves_out_what_they_refuse(self):
        for command in ("prefill", "decode", "up"):
            shown = run(command, "--help").out
            for flag, value in (("--kv-evict", "h2o:keep=0.5"), ("--zack-online", "0.5")):
                self.assertNotIn(flag, shown)
                self.assert_refused(run(command, GQA, flag, value), "for one process")
        self.assertNotIn("--ranks-bind", run("up", "--help").out)
        self.assertIn("--kv-evict", run("serve", "--help").out)

    def test_help_lists_every_command(self):
        listed = run("--help").out
        for command in COMMANDS:
            self.assertRegex(listed, rf"(?m)^  {command} +\S")
        self.assertIn("Example: kvlane", listed)

    def test_wrong_usage_is_one_sentence_and_status_2(self):
        for arguments, fragment in (
            ((), "subcommand"),
            (("paint",), "paint"),
            (("generate",), "required"),
            (("generate", GQA, "--colour", "red"), "--colour"),
            (("generate", GQA, "again"), "again"),
            (("generate", GQA, "--max-tokens", "0"), "--max-tokens"),
            (("generate", GQA, "--max-tokens", "99999999999"), "99999999999"),
            (("generate", GQA, "--threads", "0"), "--threads"),
            (("generate", GQA, "--kv-memory", "much"), "--kv-memory"),
            (("generate", GQA, "--kv-memory", "-1"), "--kv-memory"),
            (("serve", GQA, "--port", "99999"), "--port"),
            (("serve", GQA, "--host", ""), "--host"),
            (("serve", GQA, "--api-key", "a\nb"), "--api-key"),
            (("serve", GQA, "--served-model-name", "a\x1bb"), "--served-model-name"),
            (("decode", GQA, "--lease", "nan"), "--lease"),
            (("decode", GQA, "--kv-timeout", "0.5"), "--kv-timeout"),
            (("decode", GQA, "--kv-streams", "17"), "--kv-streams"),
            (("prefill", GQA, "--kv-push", "half"), "--kv-push"),
            (("prefill", GQA, "--kv-push-memory", "1"), "--kv-push-memory"),
            (("decode", GQA, "--kv-push", "layer"), "--kv-push"),
            (("gateway", "--prefill", "http://127.0.0.1:1"), "--decode"),
            (("gateway", "--prefill", "x", "--decode", "x", "--served-model-name", "m"), "--served-model-name"),
            (("synth", "--config", GQA / "config.json", "--out", "x", "--layers", "0"), "--layers"),
            # What lacks, and where to read on.
            (("serve",), "a model directory is required; see kvlane serve --help"),
            (("bench", "codec", GQA), "--text is required; see kvlane bench codec --help"),
            (("nope",), "there is no command 'nope'; see kvlane --help"),
        ):
            with self.subTest(arguments):
                refused = run(*arguments, timeout=10)
                self.assert_refused(refused, fragment, status=2)
                self.assertLess(len(refused.err), 250)

    def test_version_tells_the_table_of_kernels(self):
        short = run("version")
        self.assertRegex(short.out, r"^kvlane \d+\.\d+\.\d+\n$")
        shown = run("version", "--verbose").out
        tiers = ("  scalar: ", "  avx2: ", "  avx512: ", "  avx512_bf16: ")
        for line in ("commit: ", "compiler: ", "machine: ", "codecs: none, splitzip", "kernels:", *tiers):
            self.assertIn("\n" + line, shown)
        self.assertEqual(shown.count("chosen by --cpu auto"), 1)
        described = run("version", "--json").json()
        names = [tier["cpu"] for tier in described["kernels"]]
        self.assertEqual(names, ["scalar", "avx2", "avx512", "avx512_bf16"])
        self.assertEqual(sum(tier["chosen"] for tier in described["kernels"]), 1)


@program.needs_program
class Generate(program.ProgramTest):
    def test_text_and_json_say_the_same(self):
        text = run("generate", GQA, *SMALL, "--prompt", PROMPT, "--max-tokens", 12)
        self.assertEqual((text.status, text.err), (0, ""))
        answer = run("generate", GQA, *SMALL, "--prompt", PROMPT, "--max-tokens", 12, "--json").json()
        self.assertEqual(text.out, answer["text"] + "\n")
        self.assertEqual(answer["completion_tokens"], 12)
        self.assertEqual(len(answer["tokens"]), 12)
        self.assertEqual(answer["finish_reason"], "length")
        self.assertGreater(answer["prompt_tokens"], 3)
        self.assert_account(answer)

    def test_answer_depends_neither_on_threads_nor_on_memory(self):
        def ask(seed, *flags):
            sampling = ("--temperature", 1, "--seed", seed, "--max-tokens", 24)
            return run("generate", TINY, "--prompt", PROMPT, *sampling, *flags, "--json").json()["tokens"]

        first = ask(7, "--threads", 1, "--kv-memory", "64MiB")
        self.assertEqual(first, ask(7, "--threads", 2, "--kv-memory", "1GiB"))
        self.assertNotEqual(first, ask(8, "--threads", 1, "--kv-memory", "64MiB"))

    def test_both_cpu_tiers_continue(self):
        for tier in ("scalar", "auto"):
            answer = run("generate", TINY, *SMALL, "--prompt", "She was", "--max-tokens", 4, "--cpu", tier, "--json")
            self.assertEqual(answer.json()["completion_tokens"], 4)

    def test_empty_prompt_starts_from_bos(self):
        answer = run("generate", GQA, *SMALL, "--max-tokens", 4, "--json").json()
        self.assertEqual((answer["prompt_tokens"], answer["completion_tokens"]), (1, 4))

    def test_stop_ends_before_the_text_and_takes_one_value(self):
        free = run("generate", GQA, *SMALL, "--prompt", PROMPT, "--max-tokens", 20, "--json").json()
        word = free["text"].split()[3]
        stopped = run("generate", "--stop", word, GQA, *SMALL, "--prompt", PROMPT, "--max-tokens", 20, "--json").json()
        self.assertEqual(stopped["finish_reason"], "stop")
        self.assertEqual(stopped["text"], free["text"][: free["text"].index(word)])

    def test_chat_without_a_template_is_one_sentence(self):
        self.assert_refused(run("generate", GQA, *SMALL, "--chat", "--prompt", "Hello"), "no chat template")

    def test_a_gpu_that_is_not_there(self):
        refused = run("generate", TINY, *SMALL, "--prompt", "She was", "--device", "cuda:999")
        self.assert_refused(refused, "")
        self.assertRegex(refused.err, "has no CUDA|no NVIDIA driver|no CUDA device|no GPU 999")

    def test_bad_requests(self):
        for arguments, fragment in (
            (("--prompt", "word " * 2000), "context of 1024"),
            (("--prompt", b"\xff\xfe".decode("utf-8", "surrogateescape")), "not valid UTF-8"),
            (("--temperature", "nan"), "temperature"),
            (("--top-p", "0"), "top_p"),
            (("--top-k", "-5"), "top_k"),
            (("--stop", ""), "stop"),
            (("--cpu", "abacus"), "abacus"),
            (("--device", "tpu"), "tpu"),
            (("--device", "cuda:x"), "cuda:x"),
            (("--kv-format", "fp3"), "fp3"),
            (("--kv-codec", "zip"), "zip"),
            (("--max-model-len", "5000"), "5000"),
            (("--kv-memory", "1KiB"), "1024 bytes"),
            (("--kv-memory", "400KiB", "--max-tokens", "500"), "KV memory"),
            (("--kv-memory", "900TiB"), "memory"),
        ):
            with self.subTest(arguments):
                self.assert_refused(run("generate", GQA, *arguments), fragment)


@program.needs_program
class BrokenModels(program.ProgramTest):
    """Each case changes one thing of a good checkpoint."""

    def setUp(self):
        self.model = self.folder() / "model"
        shutil.copytree(GQA, self.model)

    def assert_fails(self, fragment):
        self.assert_refused(run("generate", self.model, *SMALL), fragment)

    def edit_config(self, **changes):
        path = self.model / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def test_missing_files(self):
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            with self.subTest(name):
                (self.model / name).rename(self.model / "away")
                self.assert_fails(name)
                (self.model / "away").rename(self.model / name)
        self.assert_refused(run("generate", self.model / "nowhere"), "nowhere")

    def test_truncated_weights(self):
        weights = self.model / "model.safetensors"
        for size in (5_000_000, 1000, 4, 0):
            with self.subTest(size):
                os.truncate(weights, size)
                self.assert_fails("model.safetensors")

    def test_garbage_in_each_file(self):
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            with self.subTest(name):
                good = (self.model / name).read_bytes()
                for garbage in (bytes(range(256)) * 64, b"{", b"[]", b"[" * 100_000):
                    (self.model / name).write_bytes(garbage)
                    self.assert_fails(name)
                (self.model / name).write_bytes(good)

    def test_shapes_that_do_not_fit(self):
        for changes, fragment in (
            ({"hidden_size": 512}, "[4096, 256]"),
            ({"num_key_value_heads": 4}, "k_proj"),
            ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
            ({"vocab_size": 8192}, "[8192, 256]"),
            ({"num_hidden_layers": 7}, "layers.6"),
            ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
            ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ):
            with self.subTest(changes):
                good = (self.model / "config.json").read_bytes()
                self.edit_config(**changes)
                self.assert_fails(fragment)
                (self.model / "config.json").write_bytes(good)

    def test_unknown_architecture(self):
        self.edit_config(architectures=["GPT2LMHeadModel"], model_type="gpt2")
        self.assert_fails("GPT2LMHeadModel")

    @unittest.skipIf(os.geteuid() == 0, "root may read every file")
    def test_unreadable_file(self):
        (self.model / "model.safetensors").chmod(0)
        self.assert_fails("Permission denied")


@program.needs_program
class Inspect(program.ProgramTest):
    def test_checkpoint(self):
        told = run("inspect", GQA, "--json").json()
        self.assertEqual((told["kind"], told["layers"], told["kv_heads"]), ("checkpoint", 6, 2))
        self.assertRegex(told["identity"], "^[0-9a-f]{64}$")
        self.assertNotEqual(told["identity"], run("inspect", TINY, "--json").json()["identity"])
        self.assertIn("\nlayers: 6\n", run("inspect", GQA).out)

    def test_frames(self):
        told = run("inspect", GOLDEN / "frame/valid/two_frames.frame", "--json").json()
        expected = json.loads((GOLDEN / "frame/valid/two_frames.json").read_text())
        self.assertEqual(len(told["frames"]), len(expected))
        for frame, wanted in zip(told["frames"], expected):
            self.assertEqual(frame, frame | wanted)

    def test_tensors_of_a_checkpoint(self):
        told = run("inspect", GQA / "model.safetensors", "--json").json()
        self.assertEqual(told["kind"], "safetensors")
        self.assertEqual(told["values"], run("inspect", GQA, "--json").json()["parameters"])
        self.assertIn({"name": "model.norm.weight", "dtype": "BF16", "shape": [256], "bytes": 512}, told["tensors"])

    def test_what_is_neither(self):
        folder = self.folder()
        (folder / "garbage").write_bytes(os.urandom(1000))
        (folder / "empty").touch()
        (folder / "cut.safetensors").write_bytes((GQA / "model.safetensors").read_bytes()[:-1])
        for path, fragment in (
            (folder / "garbage", "frame 0"),
            (folder / "empty", "is empty"),
            (folder / "nothing", "cannot open"),
            (folder, "config.json"),
            ("/dev/zero", "not a regular file"),
            (GOLDEN / "frame/corrupt/truncated_body.frame", "frame 0"),
            (GOLDEN / "frame/corrupt/header_checksum_wrong.frame", "checksum"),
            (GOLDEN / "frame/unsupported/version_2.frame", "version 2"),
            (folder / "cut.safetensors", "the file is truncated"),
        ):
            with self.subTest(path):
                self.assert_refused(run("inspect", path), fragment)


@program.needs_program
class Gguf(program.ProgramTest):
    FILES = ROOT / "tests" / "fixtures" / "gguf"

    def test_a_file_or_a_part_stands_for_its_directory(self):
        split = self.FILES / "split"
        parts = sorted(split.iterdir())
        told = run("inspect", split, "--json").json()
        self.assertEqual([shard["file"] for shard in told["shards"]], [part.name for part in parts])
        for part in parts:
            self.assertEqual(run("inspect", part, "--json").json()["identity"], told["identity"])
        folder = self.folder()
        shutil.copy(self.FILES / "phi3.gguf", folder / "model.gguf")
        generate = ("--prompt", "t1", "--max-tokens", 4, *SMALL)
        answers = [run("generate", model, *generate) for model in (folder, folder / "model.gguf")]
        self.assertEqual([answer.status for answer in answers], [0, 0], answers[0].err)
        self.assertEqual(answers[0].out, answers[1].out)

    def test_what_is_not_one_model(self):
        folder = self.folder()
        for part in sorted((self.FILES / "split").iterdir())[1:]:
            shutil.copy(part, folder / part.name)
        self.assert_refused(run("inspect", folder), "model-00001-of-00003.gguf")
        shutil.copy(self.FILES / "split" / "model-00001-of-00003.gguf", folder)
        shutil.copy(self.FILES / "llama.gguf", folder)
        self.assert_refused(run("inspect", folder), "llama.gguf")
        self.assert_refused(run("generate", folder / "none.gguf", "--prompt", "a"), "none.gguf")


@program.needs_program
class Synth(program.ProgramTest):
    def test_synth_is_a_function_of_its_seed(self):
        folder = self.folder()

        def identity(name, *flags):
            command = ("synth", "--config", GQA / "config.json", "--layers", 1, "--out", folder / name)
            made = run(*command, *flags, "--json")
            self.assertGreater(made.json()["weight_bytes"], 0)
            return run("inspect", folder / name, "--json").json()["identity"]

        first = identity("a")
        self.assertEqual(first, identity("b", "--seed", 0))
        self.assertNotEqual(first, identity("c", "--seed", 1))
        self.assertNotIn(identity("d", "--seed", 2**64 - 1), (first, identity("e", "--seed", 2**63)))

    def test_numbers_are_not_taken_for_others(self):
        store = self.folder() / "store"
        for flag, text, sentence in (
            ("--seed", 2**64, f"{2**64} is too large"),
            ("--seed", -1, "-1 is negative"),
            ("--seed", "010", "010 begins with 0"),
            ("--seed", "", "a number is missing"),
            ("--max-tokens", "010", "010 begins with 0"),
            ("--temperature", "", "a number is missing"),
            ("--store-max", -1, "-1 is negative"),
            ("--store-max", 2**64 + 1, f"{2**64 + 1} is too large"),
        ):
            done = run("generate", GQA, "--prompt", "x", "--store", store, flag, text)
            self.assert_refused(done, f"{flag}: {sentence}", status=2)
        self.assert_refused(run("serve", GQA, "--port", ""), "--port: a number is missing", status=2)
        self.assertFalse(store.exists())

    def test_options_of_a_store_want_a_store(self):
        for flag, value in (
            ("--store-key", "/nowhere"), ("--store-max", "1GiB"), ("--store-memory", "1GiB"), ("--store-form", "kv"),
            ("--store-codec", "splitzip"), ("--store-direct", "off"), ("--store-profile", "/nowhere"),
        ):  # fmt: skip
            with self.subTest(flag):
                self.assert_refused(run("serve", GQA, "--port", 0, flag, value), f"{flag} requires --store", status=2)

    def test_synth_does_not_touch_what_is_there(self):
        with tempfile.TemporaryDirectory() as name:
            (program.pathlib.Path(name) / "config.json").write_text("mine")
            refused = run("synth", "--config", GQA / "config.json", "--out", name)
            self.assert_refused(refused, "already holds")
            self.assertEqual(os.listdir(name), ["config.json"])
        self.assert_refused(run("synth", "--config", GQA / "config.json", "--out", "/proc/here"), "/proc/here")
        self.assert_refused(run("synth", "--config", "/nowhere", "--out", name), "/nowhere")
        readme = ROOT / "README.md"
        refused = run("synth", "--config", readme, "--out", "/tmp/unwritten")
        self.assert_refused(refused, f"{readme}: it is not valid JSON")


if __name__ == "__main__":
    unittest.main()
