"""The reader in spec/decoder against the golden files, the worked examples of the specification and itself.

    python3 -m unittest discover -s tests -p 'test_spec_decoder.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"
READ_MESSAGES = ROOT / "spec" / "decoder" / "read_messages.py"
READ_TENSOR_FILE = ROOT / "spec" / "decoder" / "read_tensor_file.py"
READ_FRAME = ROOT / "spec" / "decoder" / "read_frame.py"
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "spec" / "decoder"))
sys.path.insert(0, str(GOLDEN))

import block_name  # noqa: E402
import channel  # noqa: E402
import frame  # noqa: E402
import kv_tables  # noqa: E402
import linear  # noqa: E402
import make  # noqa: E402
import message  # noqa: E402
import read_frame  # noqa: E402
import slab_cachegen  # noqa: E402
import slab_kvquant  # noqa: E402
import slab_linear  # noqa: E402
import slab_zack  # noqa: E402
import slab_zack_kvquant  # noqa: E402
import slabs  # noqa: E402
import splitzip  # noqa: E402
import splitzip_channel  # noqa: E402
import tensor_file  # noqa: E402
import tensor_files  # noqa: E402
import writer  # noqa: E402
import zack  # noqa: E402
from refusal import Refusal, unsupported  # noqa: E402
from xxh3 import xxh3_64  # noqa: E402


def golden(pattern, suffix="frame"):
    files = sorted(GOLDEN.glob(f"{pattern}/*.{suffix}"))
    assert files, f"no golden files in {pattern}"
    return files


def hex_dump(page, heading):
    """The bytes of the first indented hexadecimal block behind `heading`; text after four blanks is a remark."""
    text = (ROOT / "spec" / page).read_text(encoding="utf-8").split(heading)[1]
    rows = []
    for line in text.splitlines():
        if re.match(r"    [0-9A-F]{2} ", line):
            rows.append(re.split(r"    ", line[4:])[0])
        elif rows:
            break
    return bytes.fromhex("".join(rows))



class BlockNameTest(unittest.TestCase):
    """The values stand in src/engine/block_names_test.cpp too."""

    def test_names_are_those_the_library_computes(self):
        root = block_name.root(bytes(32), "bf16")
        self.assertEqual(
            root.hex(), "1e899ae4a72065a2eb4db14b16888a62a593f79d37950e073eb5d9e5d6514d32"
        )
        self.assertEqual(
            block_name.root(bytes(32), "bf16", "tenant \u00e9").hex(),
            "aa1191223db41a634299b68bcff83b4faa431a63faab59cf4bbcc0c44a3d1b5f",
        )
        self.assertEqual(
            [name.hex() for name in block_name.names(root, list(range(150)))],
            [
                "97d34ff21d6bc8f92761c59f1fe5d043aa51d3de58703430bf9386097f2016a6",
                "54f1f8c3fdde23f2ab7ffb1ecfbf9252f436d165d2f933e4d263c5ab3cc92a68",
            ],
        )

    def test_the_page_shows_them(self):
        page = (ROOT / "spec" / "block_name.md").read_text()
        root = block_name.root(bytes(32), "bf16")
        self.assertIn(root.hex(), page)
        self.assertIn(block_name.names(root, list(range(64)))[0].hex(), page)


class Xxh3(unittest.TestCase):
    # From xxhash 3.5 of PyPI over the bytes (7 i + 3) mod 256; one length for each path of the algorithm and its edges.
    KNOWN = {
        0: 0x2D06800538D394C2, 3: 0xA9088DDA485B481C, 8: 0x60539DB630471163, 16: 0xB8C859B0F030B585,
        17: 0x714A04408E79B80F, 128: 0x67425A03650261BF, 129: 0xC664BF3311C6ABC4, 184: 0x706377B00232BE20,
        240: 0x64556DC6B462A6CF, 241: 0x8BEADD3A8874FE17, 1024: 0x9B81661C641C72B1, 1025: 0x806C2072ED713576,
        3000: 0xC89178BB873C6B3D,
    }  # fmt: skip

    def test_known_answers(self):
        data = bytes((7 * i + 3) % 256 for i in range(3000))
        for length, checksum in self.KNOWN.items():
            self.assertEqual(xxh3_64(data[:length]), checksum, length)


def open_sealed(header, body):
    """Opens slabs with tables: the reader's part of what a frame does not say is in slabs.py."""
    packed, _ = body
    family, _, parameters = header["format"].partition(":")
    if slab_zack_kvquant.is_name(header["format"]):
        return open_sealed_zack_kvquant(header, packed)
    path = "slab/zack/tables.safetensors" if family == "zack" else "frame/valid/sealed_tables.safetensors"
    _, tables = kv_tables.read((GOLDEN / path).read_bytes())
    if header["tables"] != f"{kv_tables.tables_id(tables, family):016x}":
        raise unsupported("other tables")
    if family == "zack":
        name, d = header["format"], header["head_dim"]
        pages = slab_zack.widths(name, tables, zack.SHAPE)[header["layer"]]
        if header["codec"] == "none":
            slab = slab_zack.unpack(name, pages, packed)
        else:
            planes = frame.decode_sealed(header, body, slab_zack.plane_widths(pages))
            slab = slab_zack.slab_of_planes(pages, planes)
        opened = slab_zack.open_slab(name, pages, d, slab)
        return [[[plane[t * d : (t + 1) * d] for t in range(64)] for plane in head] for head in opened]
    parameters = dict(part.split("=") for part in parameters.split(","))
    if family == "cachegen":
        slab = slab_cachegen.unpack(packed, parameters, slabs.SHAPE, header["layer"], tables)
    else:
        slab = slab_kvquant.unpack(packed, parameters, slabs.SHAPE)
    about = slabs.about(header["format"]) | {"layer": header["layer"], "position": header["position"]}
    return slabs.open_slab(about, slab, tables)


def open_sealed_zack_kvquant(header, packed):
    tables, name, d = {}, header["format"], header["head_dim"]
    for folder in ("zack", "zack_kvquant"):
        tables |= kv_tables.read((GOLDEN / "slab" / folder / "tables.safetensors").read_bytes())[1]
    if header["tables"] != f"{slab_zack_kvquant.tables_id(name, tables):016x}":
        raise unsupported("other tables")
    pages = slab_zack_kvquant.widths(name, tables, zack.SHAPE)[header["layer"]]
    slab = slab_zack_kvquant.unpack(name, pages, packed)
    opened = slab_zack_kvquant.open_slab(name, pages, d, header["layer"], slab, tables)
    return [[[plane[t * d : (t + 1) * d] for t in range(64)] for plane in head] for head in opened]


class GoldenFiles(unittest.TestCase):
    def test_valid_headers_and_planes(self):
        for path in golden("*/valid"):
            with self.subTest(path.name):
                frames = list(frame.read_frames(path.read_bytes()))
                expected = json.loads(path.with_suffix(".json").read_text())
                self.assertEqual([header for header, _, _ in frames], expected)
                planes = path.with_suffix(".planes")
                if not planes.exists():  # only headers of unknown formats have none
                    self.assertNotIn(frames[0][0]["format"], frame.FORMAT_ELEMENT_TYPES)
                    continue
                data = b""
                for header, k, v in frames:
                    opened, element_type = frame.planes_of(header, k, v, open_sealed)
                    data += b"".join(frame.values_to_bytes(element_type, plane) for plane in opened)
                self.assertEqual(data, planes.read_bytes())

    def test_sealed_slabs_of_another_length_are_refused(self):
        for path in golden("frame/valid"):
            for header, body, v in frame.read_frames(path.read_bytes()):
                if "sealed" not in header:
                    continue
                with self.subTest(path.name):
                    body = bytes(body)
                    for wrong in (b"", body[:5], body[:-1], body + b"\0", body + bytes(4)):
                        with self.assertRaises(Refusal) as caught:
                            frame.open_slab(header, wrong, v, open_sealed)
                        self.assertEqual(caught.exception.kind, "corrupt")
                    if header["codec"] != "none":
                        with self.assertRaises(Refusal):
                            frame.open_slab(header, body, bytes(v)[:-1], open_sealed)

    def test_sealed_slabs_of_other_tables_are_refused(self):
        for name in ("cachegen", "kvquant", "zack", "zack_kvquant"):
            path = GOLDEN / "frame" / "valid" / f"sealed_{name}.frame"
            (header, body, v), = frame.read_frames(path.read_bytes())
            with self.assertRaises(Refusal) as caught:
                frame.open_slab(header | {"tables": "00" * 7 + "01"}, body, v, open_sealed)
            self.assertEqual(caught.exception.kind, "unsupported")
            with self.assertRaises(Refusal):
                read_frame.read_file(path)

    def test_bad_frames_are_refused_for_their_reason(self):
        for kind in ("corrupt", "unsupported"):
            for path in golden(f"frame/{kind}"):
                with self.subTest(path.name), self.assertRaises(Refusal) as caught:
                    list(frame.read_frames(path.read_bytes()))
                self.assertEqual(caught.exception.kind, kind, path.name)

    def test_bad_planes_are_refused_for_their_reason(self):
        for kind in ("corrupt", "unsupported"):
            for path in golden(f"codec/{kind}"):
                list(frame.read_frames(path.read_bytes()))  # the frame around the plane is right
                with self.subTest(path.name), self.assertRaises(Refusal) as caught:
                    read_frame.read_file(path)
                self.assertEqual(caught.exception.kind, kind, path.name)

    def test_every_truncation_and_every_changed_byte_is_refused(self):
        data = (GOLDEN / "codec" / "valid" / "splitzip_249_values_are_coded.frame").read_bytes()
        for at in range(len(data)):
            with self.assertRaises(Refusal, msg=f"cut at {at}"):
                list(frame.read_frames(data[:at]))
            with self.assertRaises(Refusal, msg=f"byte {at} changed"):
                list(frame.read_frames(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]))

    def test_the_generator_still_gives_the_committed_bytes(self):
        with tempfile.TemporaryDirectory() as directory:
            make.make(pathlib.Path(directory))
            made = {path.relative_to(directory): path.read_bytes() for path in pathlib.Path(directory).rglob("*.*")}
        paths = [path for path in GOLDEN.glob("*/**/*.*") if path.parent.name != "__pycache__"]
        committed = {path.relative_to(GOLDEN): path.read_bytes() for path in paths}
        self.assertEqual(sorted(made), sorted(committed))
        for path, data in made.items():
            self.assertEqual(data, committed[path], path)


class GoldenMessages(unittest.TestCase):
    def test_valid_messages(self):
        kinds = set()
        for path in golden("message/valid", "message"):
            with self.subTest(path.name):
                read = list(message.read_messages(path.read_bytes()))
                self.assertEqual(read, json.loads(path.with_suffix(".json").read_text()))
                kinds |= {each["type"] for each in read}
        self.assertEqual(kinds, set(message.TYPES.values()))

    def test_bad_messages_are_refused_for_their_reason(self):
        for kind in ("corrupt", "unsupported"):
            for path in golden(f"message/{kind}", "message"):
                with self.subTest(path.name), self.assertRaises(Refusal) as caught:
                    list(message.read_messages(path.read_bytes()))
                self.assertEqual(caught.exception.kind, kind, path.name)

    def test_every_truncation_and_every_changed_byte_is_refused(self):
        data = (GOLDEN / "message" / "valid" / "end.message").read_bytes()
        for at in range(len(data)):
            with self.assertRaises(Refusal, msg=f"cut at {at}"):
                message.read_message(data[:at])
            with self.assertRaises(Refusal, msg=f"byte {at} changed"):
                message.read_message(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])


class GoldenTensorFiles(unittest.TestCase):
    def test_valid_files(self):
        for path in golden("tensor_file/valid", "kvl"):
            with self.subTest(path.name):
                head, original = tensor_file.read(path.read_bytes())
                self.assertEqual(head, json.loads(path.with_suffix(".json").read_text()))
                self.assertEqual(original, path.with_suffix(".original").read_bytes())

    def test_bad_files_are_refused_for_their_reason(self):
        for kind in ("corrupt", "unsupported"):
            for path in golden(f"tensor_file/{kind}", "kvl"):
                with self.subTest(path.name), self.assertRaises(Refusal) as caught:
                    tensor_file.read(path.read_bytes())
                self.assertEqual(caught.exception.kind, kind, path.name)

    def test_every_truncation_and_every_changed_byte_is_refused(self):
        data = (GOLDEN / "tensor_file" / "valid" / "rest_of_a_row.kvl").read_bytes()
        for at in range(0, len(data), 3):
            with self.assertRaises(Refusal, msg=f"cut at {at}"):
                tensor_file.read(data[:at])
            with self.assertRaises(Refusal, msg=f"byte {at} changed"):
                tensor_file.read(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])


class GoldenSlabs(unittest.TestCase):
    def test_slabs_open_to_what_lies_beside_them(self):
        for path in golden("slab/linear", "slab"):
            with self.subTest(path.name):
                foreign = path.name.startswith("foreign.")
                parts = path.name.removeprefix("foreign.").removesuffix(".slab").split(".")
                name = parts[0] + (":" + ",".join(parts[1:]) if len(parts) > 1 else "")
                heads = slab_linear.open_slab(name, 1 if foreign else 2, linear.HEAD_DIM, path.read_bytes())
                self.assertEqual(linear.rows_to_bytes(heads), path.with_suffix(".opened").read_bytes())

    def test_another_length_is_refused(self):
        data = (GOLDEN / "slab" / "linear" / "mxfp4.slab").read_bytes()
        for wrong in (b"", data[:-1], data + bytes(1)):
            with self.assertRaises(Refusal) as caught:
                slab_linear.open_slab("mxfp4", 2, linear.HEAD_DIM, wrong)
            self.assertEqual(caught.exception.kind, "corrupt")

    def test_unknown_names_are_refused(self):
        for name in ("bf16", "mxfp4_e2m1", "fp8_e9m9", "int4", "kivi:bits=2", "mxfp4:bits=2"):
            with self.subTest(name), self.assertRaises(Refusal) as caught:
                slab_linear.planes(name)
            self.assertEqual(caught.exception.kind, "unsupported")

    def test_a_window_changes_no_byte(self):
        self.assertEqual(slab_linear.planes("mxfp4:sink=1,recent=2"), slab_linear.planes("mxfp4"))

    def test_constant_groups_come_back(self):
        rows = [[0x3FC0] * (linear.TOKENS * linear.HEAD_DIM)] * 2
        for name in ("int4:sym=0", "int8:sym=0", "kivi:bits=2,group=32"):
            slab = linear.seal(name, [rows])
            self.assertEqual([list(p) for p in slab_linear.open_slab(name, 1, linear.HEAD_DIM, slab)[0]], rows)


class WorkedExamples(unittest.TestCase):
    def test_slab_linear(self):
        block = [0x40A0, 0xC020, 0x3E80, 0x40E0, *[0] * 28]
        self.assertEqual(linear.seal_floats("e2m1", block, True), (bytes([127]), [6, 12, 0, 7, *[0] * 28]))
        self.assertEqual(linear.seal_floats("e4m3", block, False)[0], bytes([121]))
        metadata, codes = linear.seal_integers("uint2", [0xBFC0, 0x3E9A, 0x3F80, 0x4000], "min-scale")
        self.assertEqual((metadata.hex(), codes), ("00beab3c", [0, 2, 2, 3]))
        opened = [slab_linear.to_bf16(slab_linear.to_fp32(-1.5 + 1.1669921875 * code)) for code in codes]
        self.assertEqual(opened, [0xBFC0, 0x3F56, 0x3F56, 0x4000])

    def test_frame(self):
        expected = (GOLDEN / "frame" / "valid" / "worked_example.frame").read_bytes()
        self.assertEqual(hex_dump("frame.md", "## 9. Worked example"), expected)

    def test_tensor_file(self):
        expected = (GOLDEN / "tensor_file" / "valid" / "worked_example.kvl").read_bytes()
        self.assertEqual(hex_dump("tensor_file.md", "## 11. Worked example"), expected)
        self.assertEqual(tensor_files.tensor_file([tensor_files.EXAMPLE]), expected)

    def test_splitzip(self):
        values = [0x3F80, 0xC000, 0x0000, 0x3FC0, 0x7F80, 0x3F00, 0xBF80, 0x4049, 0x7FC1]
        for heading, made in (
            ("## 7. Worked example", writer.coded_body(values).to_bytes()),
            ("the encoder writes", writer.splitzip(values, writer.BF16)),
        ):
            shown = hex_dump("splitzip.md", heading)
            self.assertEqual(shown, made)
            self.assertEqual(splitzip.decode(shown, writer.BF16, 9), values)

    def test_splitzip_channel(self):
        body = hex_dump("splitzip_channel.md", "## 7. Worked example")
        self.assertEqual(body, channel.Body(channel.EXAMPLE, *channel.EXAMPLE_SHAPE).to_bytes())
        self.assertEqual(splitzip_channel.decode(body, 2, 2, *channel.EXAMPLE_SHAPE), channel.EXAMPLE)


class SplitZipBodies(unittest.TestCase):
    """Bodies too short for a frame: it leaves them no room to grow."""

    def test_all_lengths_of_short_groups(self):
        rng = random.Random(7)
        for element_type in writer.FIELDS:
            bits = writer.FIELDS[element_type][0]
            for count in [*range(140), 255, 256, 257, 383, 385]:
                values = [rng.getrandbits(bits) for _ in range(count)]
                for raw_chunks in ((), (0,), (1,)):
                    body = writer.coded_body(values, raw_chunks=raw_chunks, element_type=element_type).to_bytes()
                    self.assertEqual(splitzip.decode(body, element_type, count), values, (element_type, count))


class ChannelBodies(unittest.TestCase):
    """Frames have at most 64 rows, bodies do not. The values stand in src/codec/channel_test.cpp too."""

    def test_more_rows_than_a_tile(self):
        state, values = 1, []
        for i in range(2 * 130 * 131):
            state = (state * 1664525 + 1013904223) % 2**32
            below = 16 - ((state >> 16) | 1 << 8).bit_length()  # 0 to 7
            exponent = state >> 8 & 255 if state >> 20 & 63 == 0 else 120 + i % 131 % 5 - below
            values.append(state >> 7 & 0x8000 | exponent << 7 | state & 127)
        body = channel.encode(values, writer.BF16, 2, 130, 131)
        self.assertEqual(splitzip_channel.decode(body, writer.BF16, 2, 2, 130, 131), values)
        checksum = 14695981039346656037
        for byte in body:
            checksum = (checksum ^ byte) * 1099511628211 % 2**64
        self.assertEqual((body[1], len(body), checksum), (1, 45632, 3937359373327168065))


class Program(unittest.TestCase):
    def run_it(self, *arguments, program=READ_FRAME):
        command = [sys.executable, "-B", str(program), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def test_prints_headers_and_writes_planes(self):
        path = GOLDEN / "frame" / "valid" / "two_frames.frame"
        with tempfile.TemporaryDirectory() as directory:
            done = self.run_it(path, "--planes", directory)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout), json.loads(path.with_suffix(".json").read_text()))
            written = [pathlib.Path(directory, name).read_bytes() for name in ("0.k", "0.v", "1.k", "1.v")]
        self.assertEqual(b"".join(written), path.with_suffix(".planes").read_bytes())

    def test_prints_messages(self):
        path = GOLDEN / "message" / "valid" / "a_sender_that_is_held.message"
        done = self.run_it(path, program=READ_MESSAGES)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout), json.loads(path.with_suffix(".json").read_text()))
        done = self.run_it(GOLDEN / "message" / "corrupt" / "wait_with_a_body.message", program=READ_MESSAGES)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"\A.*wait_with_a_body.message: corrupt: .*\n\Z")

    def test_gives_the_original_of_a_tensor_file(self):
        path = GOLDEN / "tensor_file" / "valid" / "several_types.kvl"
        with tempfile.TemporaryDirectory() as directory:
            out = pathlib.Path(directory, "original")
            done = self.run_it(path, "--out", out, program=READ_TENSOR_FILE)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout), json.loads(path.with_suffix(".json").read_text()))
            self.assertEqual(out.read_bytes(), path.with_suffix(".original").read_bytes())
            bad = GOLDEN / "tensor_file" / "corrupt" / "planes_of_two_files.kvl"
            done = self.run_it(bad, "--out", pathlib.Path(directory, "none"), program=READ_TENSOR_FILE)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, r"\A.*planes_of_two_files.kvl: corrupt: .*\n\Z")
            self.assertFalse(pathlib.Path(directory, "none").exists())

    def test_a_bad_file_gives_one_sentence_and_status_1(self):
        for path in (GOLDEN / "codec" / "corrupt" / "splitzip_mode_2.frame", GOLDEN / "no_such_file"):
            done = self.run_it(path)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, rf"\A.*{path.name}.*\n\Z")


if __name__ == "__main__":
    unittest.main()
