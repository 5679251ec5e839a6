"""The readers of sealed slabs in spec/decoder against the golden files, and against bytes from nobody.

    python3 -m unittest discover -s tests -p 'test_spec_slabs.py'

Standard library only.
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib
import random
import struct
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "spec" / "decoder"))
sys.path.insert(0, str(GOLDEN))

import binary32  # noqa: E402
import kv_tables  # noqa: E402
import slab_cachegen  # noqa: E402
import slab_kvquant  # noqa: E402
import slabs  # noqa: E402
from refusal import Refusal  # noqa: E402

READERS = {"cachegen": slab_cachegen, "kvquant": slab_kvquant}


def cases():
    """What a golden slab is, its bytes, and its files' common path."""
    for path in sorted((GOLDEN / "slab" / "valid").glob("*.json")):
        about = json.loads(path.read_text())
        if about["format"].split(":")[0] in READERS:
            yield about, path.with_suffix(".slab").read_bytes(), path


def parameters_of(about):
    return dict(part.split("=") for part in about["format"].split(":")[1].split(","))


def shape_of(about):
    return about["kv_heads"], about["head_dim"], about["layers"]


class GoldenSlabs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.tables = kv_tables.read((GOLDEN / "slab" / "tables.safetensors").read_bytes())

    def test_they_open_to_their_pages(self):
        count = 0
        for about, slab, path in cases():
            with self.subTest(path.name):
                page = slabs.as_bytes(slabs.open_slab(about, slab, self.tables))
                self.assertEqual(page, path.with_suffix(".page").read_bytes())
                reader = READERS[about["format"].split(":")[0]]
                self.assertEqual(reader.used_bytes(slab, shape_of(about), parameters_of(about)), len(slab))
                count += 1
        self.assertEqual(count, 16)

    def test_pages_are_near_their_rows(self):
        for about, _, path in cases():
            if "usual" not in path.name:
                continue
            rows, page = (
                [binary32.from_bf16(bits) for (bits,) in struct.iter_unpack("<H", path.with_suffix(end).read_bytes())]
                for end in (".rows", ".page")
            )
            error = sum((a - b) ** 2 for a, b in zip(rows, page)) / sum(a * a for a in rows)
            self.assertLess(error, 0.3, path.name)

    def test_both_kinds_of_cachegen_pages_are_there(self):
        kinds = set()
        for about, slab, _ in cases():
            if not about["format"].startswith("cachegen"):
                continue
            parameters, shape = parameters_of(about), shape_of(about)
            raw = sum(
                slab_cachegen.Tensor(parameters, shape, 0, is_key, self.tables).raw_bytes() for is_key in (True, False)
            )
            first, second = struct.unpack_from("<2I", slab)
            kinds.add(second - first == raw)
        self.assertEqual(kinds, {True, False})

    def test_kvquant_keeps_and_cuts_outliers(self):
        cut = set()
        for about, slab, path in cases():
            if about["format"].startswith("kvquant"):
                cut.add(struct.unpack_from("<I", slab)[0] > 0)
                kept = struct.unpack_from("<I", slab, 4 * 4)[0]
                self.assertEqual(kept > 0, "outliers1" in path.name)
        self.assertEqual(cut, {True, False})

    def test_any_bytes_open_to_something(self):
        rng = random.Random(5)
        for about, slab, _ in cases():
            damaged = bytearray(slab.ljust(len(slab) + 4 * 256, b"\0"))  # the memory that a slab has
            for _ in range(40):
                damaged[rng.randrange(min(len(damaged), 400))] = rng.randrange(256)
            pages = slabs.open_slab(about, bytes(damaged), self.tables)
            self.assertEqual(len(slabs.as_bytes(pages)), 4 * 64 * about["kv_heads"] * about["head_dim"])

    def test_tables_say_whose_they_are(self):
        self.assertEqual(self.model, slabs.MODEL)
        data = (GOLDEN / "slab" / "tables.safetensors").read_bytes()
        for bad in (b"", data[:4], data[:1000], data.replace(b"kvlane.model", b"kvlane.molar")):
            with self.assertRaises(Refusal):
                kv_tables.read(bad)


class Binary32(unittest.TestCase):
    def test_rounding_to_bf16_is_half_to_even(self):
        for bits in (0x3F80, 0x3F81, 0x0001, 0x7F7E):
            x, up = binary32.from_bf16(bits), binary32.from_bf16(bits + 1)
            self.assertEqual(binary32.to_bf16((x + up) / 2), bits + (bits & 1))
            self.assertEqual(binary32.to_bf16(x), bits)


class CachegenBins(unittest.TestCase):
    def test_they_are_those_of_the_page(self):
        self.assertEqual([slab_cachegen.bins_of(2, True, layer, 32) for layer in (0, 9, 10, 31)], [32, 32, 16, 16])
        self.assertEqual([slab_cachegen.bins_of(1, False, layer, 80) for layer in (19, 20)], [16, 12])


if __name__ == "__main__":
    unittest.main()
