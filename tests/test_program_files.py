"""`kvlane file encode` and `kvlane file decode` with the real program: files come back byte for byte or not at all.

    python3 -m unittest discover -s tests -p 'test_program_files.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import json
import os
import pathlib
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

import program
from program import GQA, ROOT, TINY, needs_program

READER = ROOT / "spec" / "decoder" / "read_tensor_file.py"


def bf16_values(rng, rows, channels):
    """Like those of K: each channel has exponents of its own."""
    scales = [110 + rng.randrange(12) for _ in range(channels)]
    values = (rng.getrandbits(1) << 15 | scale + rng.getrandbits(1) << 7 | rng.getrandbits(7)
              for _ in range(rows) for scale in scales)  # fmt: skip
    return struct.pack(f"<{rows * channels}H", *values)


def safetensors(tensors, metadata=None):
    """`tensors`: (name, type, shape, data)."""
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, kind, shape, data in tensors:
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for *_, data in tensors)


def npy(descr, shape, data, fortran=False):
    text = repr({"descr": descr, "fortran_order": fortran, "shape": tuple(shape)}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data


@needs_program
class FileTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, data):
        path = self.folder / name
        path.write_bytes(data)
        return path

    def names(self):
        return sorted(path.name for path in self.folder.iterdir())

    def run_well(self, *arguments):
        done = program.run("file", *arguments)
        self.assertEqual(done.status, 0, done.err)
        return done

    def refuse(self, *arguments, why, status=1):
        before = self.names()
        done = program.run("file", *arguments)
        self.assertEqual(done.status, status, done.err)
        self.assertEqual(done.out, "")
        self.assertRegex(done.err, rf"\Akvlane: .*{why}.*\n\Z")
        self.assertEqual(self.names(), before)  # nothing half written

    def round_trip(self, path, *flags):
        """Encodes and decodes `path`; returns the summary of the encoder."""
        data = path.read_bytes()
        summary = self.run_well("encode", path, "--json", *flags).json()
        coded = pathlib.Path(f"{path}.kvl")
        self.assertEqual(summary["container_bytes"], coded.stat().st_size)
        self.assertEqual(summary["file_bytes"], len(data))
        path.unlink()
        self.run_well("decode", coded)
        self.assertEqual(path.read_bytes(), data)
        self.run_well("decode", coded, "--check")
        coded.unlink()
        self.assertEqual([name for name in self.names() if "partial" in name], [])
        return summary


class RoundTripTest(FileTest):
    def test_checkpoints(self):
        for model in (TINY, GQA):
            path = self.write("model.safetensors", (model / "model.safetensors").read_bytes())
            for flags, least in (((), 1.45), (("--codec", "splitzip"), 1.3), (("--threads", "1"), 1.45)):
                self.assertGreater(self.round_trip(path, *flags)["ratio"], least)

    def test_all_threads_and_kernels_give_the_same_bytes(self):
        path = self.write("model.safetensors", (TINY / "model.safetensors").read_bytes())
        made = set()
        tiers = [kernel["cpu"] for kernel in program.run("version", "--json").json()["kernels"] if kernel["supported"]]
        for flags in (("--threads", "1"), ("--threads", "5"), *(("--cpu", tier) for tier in tiers)):
            self.run_well("encode", path, "--force", *flags)
            made.add(pathlib.Path(f"{path}.kvl").read_bytes())
        self.assertEqual(len(made), 1)

    def test_safetensors_of_all_types(self):
        rng = random.Random(1)
        types = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2,
                 "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8, "C64": 8}  # fmt: skip
        tensors = [("\u00e9\U0001f600", "BF16", [2, 0, 3], b""), ("scalar", "BF16", [], b"\x80\x3f")]
        for kind, width in types.items():
            tensors.append((f"layers.0.{kind}", kind, [7, 5], rng.randbytes(35 * width)))
        path = self.write("all.safetensors", safetensors(tensors, {"format": "pt", "title": "\u00fc"}))
        self.assertEqual(self.round_trip(path)["tensors"], len(tensors))

    def test_shards(self):
        rng = random.Random(2)
        for i in range(3):
            tensors = [(f"layers.{i}.w", "BF16", [100, 64], bf16_values(rng, 100, 64))]
            path = self.write(f"model-{i + 1:05}-of-00003.safetensors", safetensors(tensors))
            self.assertGreater(self.round_trip(path)["ratio"], 1.3)

    def test_npy(self):
        values = bf16_values(random.Random(3), 128, 64)
        for name, descr, flags, ratio in (
            ("void.npy", "|V2", ("--dtype", "bf16"), 1.35),
            ("u2.npy", "<u2", ("--dtype", "bf16", "--row", "64"), 1.35),
            ("float16.npy", "<f2", (), 0.9),
        ):
            path = self.write(name, npy(descr, (128, 64), values))
            self.assertGreater(self.round_trip(path, *flags)["ratio"], ratio)
        self.round_trip(self.write("fortran.npy", npy("<f2", (64, 128), values, fortran=True)))
        self.round_trip(self.write("scalar.npy", npy("<f8", (), bytes(8))))

    def test_raw_values(self):
        values = bf16_values(random.Random(4), 128, 64)
        path = self.write("k.bin", values)
        self.assertGreater(self.round_trip(path, "--dtype", "bf16", "--shape", "2,64,64")["ratio"], 1.35)
        for size in (0, 1, 2, 3, 255, len(values) - 1):
            path = self.write("odd.bin", values[:size])
            self.round_trip(path, "--kind", "raw", "--dtype", "bf16")
            path = self.write("odd.bin", values[:size])
            self.round_trip(path, "--kind", "raw", "--dtype", "fp8_e5m2", "--codec", "none")

    def test_pipes(self):
        path = self.write("model.safetensors", (TINY / "model.safetensors").read_bytes())
        command = [program.PROGRAM, "file", "encode", path, "--out", "-"]
        coded = subprocess.run(command, capture_output=True, timeout=program.PATIENCE, check=True).stdout
        command = [program.PROGRAM, "file", "decode", "-", "--out", "-"]
        back = subprocess.run(command, input=coded, capture_output=True, timeout=program.PATIENCE, check=True)
        self.assertEqual(back.stdout, path.read_bytes())
        self.assertIn(b"wrote -", back.stderr)
        cut = subprocess.run(command, input=coded[:-1], capture_output=True, timeout=program.PATIENCE, check=False)
        self.assertEqual(cut.returncode, 1)
        self.assertIn(b"cut off", cut.stderr)
        self.assertEqual(self.names(), ["model.safetensors"])

    def test_the_reader_of_the_specification_agrees(self):
        rng = random.Random(5)
        tensors = [("k", "BF16", [70, 2, 16], bf16_values(rng, 70, 32)), ("n", "F32", [3], rng.randbytes(12)),
                   ("fp8", "F8_E4M3", [64, 32], bytes(0x38 | rng.getrandbits(3) for _ in range(2048)))]  # fmt: skip
        path = self.write("a.safetensors", safetensors(tensors, {"x": "y"}))
        for codec in ("splitzip:channel", "splitzip", "none"):
            self.run_well("encode", path, "--codec", codec, "--force")
            back = self.folder / "back"
            command = [sys.executable, "-B", READER, f"{path}.kvl", "--out", back]
            read = subprocess.run(command, capture_output=True, timeout=program.PATIENCE, check=True)
            self.assertEqual(back.read_bytes(), path.read_bytes())
            inspected = program.run("inspect", f"{path}.kvl", "--json").json()
            for ours, theirs in zip(inspected["segments"], json.loads(read.stdout)["segments"], strict=True):
                self.assertEqual({name: ours[name] for name in theirs}, theirs)


class SummaryTest(FileTest):
    def test_tells_of_each_tensor(self):
        values = bf16_values(random.Random(6), 99, 64)
        path = self.write("a.safetensors", safetensors([("w", "BF16", [99, 64], values)]))
        done = self.run_well("encode", path, "--verbose")
        self.assertRegex(done.out, r"splitzip:channel +1\.\d+ +BF16 +\[99, 64\] +w\n")
        self.assertRegex(done.out, r"wrote .*a\.safetensors\.kvl: 1 tensors, 0\.013 MB in 0\.009 MB, ratio 1\.\d+, in ")
        self.assertEqual(done.err, "")
        each = self.run_well("encode", path, "--verbose", "--json", "--force").json()["each"]
        self.assertEqual([tensor["name"] for tensor in each], ["w"])
        self.assertIn("is right", self.run_well("decode", f"{path}.kvl", "--check").out)
        self.assertIn("codecs", program.run("inspect", f"{path}.kvl").out)

    def test_says_when_it_does_not_pay(self):
        noise = random.Random(7).randbytes(40000)
        for kind, width in (("F32", 4), ("F16", 2)):
            path = self.write("w.safetensors", safetensors([("w", kind, [40000 // width], noise)]))
            done = self.run_well("encode", path, "--force")
            self.assertRegex(done.err, rf"hardly pays: \d+ % of it is of type {kind}")
        path = self.write("noise", noise)
        self.assertIn("too evenly spread", self.run_well("encode", path, "--dtype", "bf16").err)


class RefusalTest(FileTest):
    def setUp(self):
        super().setUp()
        data = safetensors([("w", "BF16", [40, 8], bf16_values(random.Random(8), 40, 8)), ("n", "U8", [3], b"abc")])
        self.path = self.write("a.safetensors", data)
        self.run_well("encode", self.path)
        self.coded = pathlib.Path(f"{self.path}.kvl")

    def test_existing_files_stay(self):
        self.refuse("encode", self.path, why="is there already")
        self.refuse("decode", self.coded, why="is there already")
        self.path.write_bytes(b"something else")
        self.run_well("decode", self.coded, "--force")
        self.assertNotEqual(self.path.read_bytes(), b"something else")

    def test_arguments(self):
        self.refuse("encode", self.folder / "none", why="No such file")
        self.refuse("encode", self.folder, why="is a directory")
        self.refuse("decode", self.path, "--out", self.folder / "x", why="no tensor file")
        self.refuse("decode", self.coded, "--out", self.folder, why="is a directory")
        self.refuse("decode", self.coded, "--out", "/dev/null", why="no regular file")
        self.refuse("encode", self.path, "--out", self.folder / "no" / "x", why="No such file")
        self.refuse("encode", self.path, "--out", "/proc/x.kvl", why="cannot create /proc/x.kvl")
        self.refuse("encode", self.path, "--out", self.folder / "x", "--shape", "2,3", why="says its own")
        plain = self.write("plain", b"nothing in particular")
        self.refuse("encode", plain, why="say --dtype")
        self.refuse("encode", plain, "--dtype", "bf16", "--shape", "2,3", why="10 values")
        self.refuse("decode", plain, why="say with --out")
        self.refuse("encode", plain, "--codec", "zip", why="zip", status=2)
        self.refuse("decode", self.coded, "--check", "--out", self.folder / "x", why="--out excludes --check", status=2)
        self.refuse("encode", plain, "--cpu", "z80", "--dtype", "bf16", why="z80")

    def test_truncated_files(self):
        data = self.coded.read_bytes()
        for size in [*range(0, 64, 9), *range(64, len(data), 31), len(data) - 1]:
            self.coded.write_bytes(data[:size])
            self.refuse("decode", self.coded, "--out", self.folder / "x", why="a.safetensors.kvl: ")
            self.refuse("decode", self.coded, "--check", why="a.safetensors.kvl: ")

    def test_every_changed_byte_is_refused(self):
        data = self.coded.read_bytes()
        for at in range(0, len(data), 7):
            self.coded.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            self.refuse("decode", self.coded, "--out", self.folder / "x", why="a.safetensors.kvl: ")
        self.coded.write_bytes(data + b"\0")
        self.refuse("decode", self.coded, "--out", self.folder / "x", why="something follows")

    def test_a_full_disk_leaves_nothing(self):
        # A limit on sizes of files fails like a full disk, in the middle.
        model = self.write("m.safetensors", (TINY / "model.safetensors").read_bytes())
        before = self.names()

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))

        command = [program.PROGRAM, "file", "encode", model]
        done = subprocess.run(command, capture_output=True, preexec_fn=limit, timeout=program.PATIENCE, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot write", done.stderr)
        self.assertEqual(self.names(), before)

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_a_folder_without_permission(self):
        closed = self.folder / "closed"
        closed.mkdir(mode=0o500)
        self.refuse("encode", self.path, "--out", closed / "x", why="Permission denied")

    def test_a_signal_leaves_nothing(self):
        before = self.names()
        # It waits for more from the pipe, which then ends.
        command = [program.PROGRAM, "file", "decode", "-", "--out", self.folder / "x"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdin.write(self.coded.read_bytes()[:-100])
            process.stdin.flush()
            program.wait_until(lambda: len(self.names()) > len(before), "no file came into being")
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=program.PATIENCE)
        self.assertEqual(process.returncode, 1, error)
        self.assertEqual(self.names(), before)

    def test_the_worker_points_here(self):
        done = program.run("decode", self.coded)
        self.assertEqual(done.status, 1)
        self.assertIn("kvlane file decode", done.err)


if __name__ == "__main__":
    unittest.main()
