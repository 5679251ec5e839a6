"""The golden tensor files of spec/tensor_file.md, right ones and wrong ones, for make.py.

An encoder of its own: the expectation beside each valid file is what went into it.
SPDX-License-Identifier: Apache-2.0
"""

import json
import random
import struct

import channel
from writer import BF16, FP8_E4M3, FP16, coded_body, pad, splitzip, values_to_bytes, xxh3_64

BYTES = 0
VALUE_BYTES = {BYTES: 1, BF16: 2, FP16: 2, FP8_E4M3: 1}
TYPE_NAMES = {BYTES: "bytes", BF16: "bf16", FP16: "fp16", FP8_E4M3: "fp8_e4m3"}
KINDS = ("raw", "npy", "safetensors")
NONE, SPLITZIP, CHANNEL = 0, 1, 2


def checked(data):
    return data + struct.pack("<Q", xxh3_64(data))


class Segment:
    """A tensor, or with role 0 bytes between tensors. What is given is written, right or wrong."""

    def __init__(self, data=b"", element_type=BYTES, shape=(), name="", type_name="", row=1, rows=1 << 20, **fields):
        self.data, self.element_type, self.shape = data, element_type, shape
        self.name, self.type_name = name.encode(), type_name.encode()
        self.row, self.rows = row, rows
        self.role, self.size, self.zero, self.padding = 1, len(data), 0, None
        self.codecs = {}  # by number of the plane in the segment; else the first one that shrinks
        self.bodies = {}
        assert set(fields) <= set(vars(self)), fields
        vars(self).update(fields)

    def entry(self):
        head = struct.pack("<BBBBHHQII", self.role, self.element_type, len(self.shape), len(self.type_name),
                           len(self.name), self.zero, self.size, self.row, self.rows)  # fmt: skip
        text = struct.pack(f"<{len(self.shape)}Q", *self.shape) + self.type_name + self.name
        return head + (pad(text, 8) if self.padding is None else text + self.padding)

    def planes(self):
        """(rows, values of a row, bytes) of each, section 5."""
        width = VALUE_BYTES.get(self.element_type, 1)
        values, at = len(self.data) // width, 0
        while at < values:
            rows = min(self.rows, (values - at) // self.row)
            rows, row = (rows, self.row) if rows else (1, values - at)
            yield rows, row, self.data[at * width : (at + rows * row) * width]
            at += rows * row

    def to_json(self):
        return {"role": ("other", "tensor")[self.role], "element_type": TYPE_NAMES[self.element_type],
                "type_name": self.type_name.decode(), "name": self.name.decode(), "shape": list(self.shape),
                "bytes": self.size, "row_elements": self.row, "plane_rows": self.rows}  # fmt: skip


def other(data):
    return Segment(data, role=0)


def body_of(codec, element_type, rows, row, plane):
    values = list(struct.unpack(f"<{rows * row}{'BH'[VALUE_BYTES[element_type] - 1]}", plane))
    return splitzip(values, element_type) if codec == SPLITZIP else channel.encode(values, element_type, 1, rows, row)


def record(number, plane, codec=NONE, coded=None, **fields):
    coded = plane if coded is None else coded
    head = {"number": number, "coded_bytes": len(coded), "codec": codec, "zeros": bytes(3),
            "coded_checksum": xxh3_64(coded), "plane_checksum": xxh3_64(plane), "more_zeros": bytes(24)}  # fmt: skip
    padding = fields.pop("padding", bytes(-len(coded) % 64))
    assert set(fields) <= set(head), fields
    return checked(struct.pack("<QIB3sQQ24s", *(head | fields).values())) + coded + padding


def records(segments, codec, change=None):
    """All records; `change` maps numbers of planes to fields of their records."""
    made = []
    for segment in segments:
        for rows, row, plane in segment.planes():
            number, use, coded = len(made), NONE, None
            if codec != NONE and segment.element_type != BYTES:
                coded = body_of(codec, segment.element_type, rows, row, plane)
                use, coded = (codec, coded) if len(coded) < len(plane) else (NONE, None)
            made.append(record(**({"number": number, "plane": plane, "codec": use, "coded": coded}
                                  | (change or {}).get(number, {}))))  # fmt: skip
    return made


def header_of(all_segments, table, number_of_planes, fields):
    head = {"magic": b"\x8bKVLTEN\n", "version": 1, "header_bytes": 64, "flags": 0,
            "file_bytes": sum(s.size for s in all_segments), "planes": number_of_planes,
            "segments": len(all_segments),
            "table_bytes": len(table), "kind": 0, "zeros": bytes(7), "table_checksum": xxh3_64(table)}  # fmt: skip
    assert set(fields) <= set(head), fields
    return checked(struct.pack("<8sHHIQQIIB7sQ", *(head | fields).values()))


def end_of(header, made, before, **fields):
    chain = struct.unpack("<Q", header[56:])[0]
    for each in made:
        chain = xxh3_64(struct.pack("<QQ", chain, struct.unpack_from("<Q", each, 56)[0]))
    end = {"magic": b"\x8bKVLEND\n", "planes": len(made), "container_bytes": before + 64, "chain": chain,
           "zeros": bytes(24)}  # fmt: skip
    assert set(fields) <= set(end), fields
    return checked(struct.pack("<8sQQQ24s", *(end | fields).values()))


def tensor_file(segments, codec=NONE, header=None, table=None, made=None, end=None, change=None):
    """`header` and `end` are fields to set wrongly; `table` replaces the table, `made` the records."""
    if table is None:
        table = pad(b"".join(segment.entry() for segment in segments), 64)
    if made is None:
        made = records(segments, codec, change)
    head = header_of(segments, table, len(made), header or {})
    data = head + table + b"".join(made)
    return data + end_of(head, made, len(data), **(end or {}))


def bf16(rng, rows, channels):
    return values_to_bytes(channel.plane_of(rng, 1, rows, channels, 5))


def tensor(rng, rows, channels, name, **fields):
    return Segment(bf16(rng, rows, channels), BF16, (rows, channels), name, "BF16", row=channels, rows=64, **fields)


EXAMPLE = Segment(values_to_bytes([0x3F80, 0x4000, 0xBF80, 0x3F00]), BF16, (2, 2), "w", "BF16", row=2, rows=64)


def make_valid(write):
    rng = random.Random(11)

    def valid(name, segments, codec=NONE, kind=0, **how):
        data = tensor_file(segments, codec, {"kind": kind}, **how)
        head = {"version": 1, "kind": KINDS[kind], "file_bytes": sum(s.size for s in segments),
                "planes": sum(1 for s in segments for _ in s.planes()),
                "segments": [s.to_json() for s in segments]}  # fmt: skip
        write(f"tensor_file/valid/{name}.kvl", data)
        write(f"tensor_file/valid/{name}.json", json.dumps(head, indent=1).encode() + b"\n")
        write(f"tensor_file/valid/{name}.original", b"".join(s.data for s in segments))

    valid("worked_example", [EXAMPLE])
    valid("nothing", [])
    valid("no_bytes", [Segment(b"", BF16, (0, 7), "empty", "BF16", row=64, rows=64), other(b"")])
    valid("scalar", [Segment(b"\x80\x3f", BF16, (), "scalar", "BF16", row=64, rows=64)])
    valid("bytes", [other(bytes(range(256)) * 9)])
    for codec, name in ((SPLITZIP, "splitzip"), (CHANNEL, "channel")):
        segments = [other(b"header"), tensor(rng, 150, 32, "k"), other(b"\0"), tensor(rng, 70, 16, "v"), other(b"end")]
        valid(name, segments, codec, kind=2)
    plane = bf16(rng, 67, 32)
    valid("rest_of_a_row", [Segment(plane[:-14], BF16, (len(plane) // 2 - 7,), "", "bf16", row=32, rows=64)], CHANNEL)
    eight = bytes(rng.getrandbits(3) | 0x38 for _ in range(2048))
    mixed = [
        other(b"\x93NUMPY"),
        Segment(eight, FP8_E4M3, (32, 64), "fp8", "F8_E4M3", row=64, rows=64),
        Segment(bf16(rng, 4, 32), FP16, (4, 32), "fp16", "F16", row=32, rows=64),
        Segment(b"\1\2\3\4" * 5, BYTES, (5,), "\u00e9t\u00e9", "I32"),
        Segment(b"\x21" * 3, BYTES, (2, 3), "half bytes", "F4"),
    ]
    valid("several_types", mixed, SPLITZIP, kind=1)
    valid("long_entry", [Segment(b"\0\0", BF16, (1,) * 64, "n" * 300, "t" * 32)])
    # Right, though no writer of ours would: a codec that does not shrink as much as it could, tiny planes.
    values = channel.plane_of(rng, 1, 32, 32)
    foreign = Segment(values_to_bytes(values), BF16, (32, 32), "w", "BF16", row=32, rows=32)
    body = coded_body(values, escape=(0, 1, 5)).to_bytes()
    valid("foreign_escapes", [foreign], change={0: {"codec": SPLITZIP, "coded": body}})
    valid("foreign_tiny_planes", [Segment(b"abcdefg", BYTES, (7,), "w", "U8", row=2, rows=1)])


def make_refused(write):
    rng = random.Random(12)
    good = [other(b"12345"), tensor(rng, 100, 32, "w")]
    data = tensor_file(good, CHANNEL)
    planes = records(good, CHANNEL)

    def corrupt(name, made):
        write(f"tensor_file/corrupt/{name}.kvl", made)

    def unsupported(name, made):
        write(f"tensor_file/unsupported/{name}.kvl", made)

    def header(**fields):
        return tensor_file(good, CHANNEL, header=fields)

    def entry(**fields):
        """A file of one tensor of 8 values with these fields."""
        return tensor_file([Segment(**({"data": bytes(16), "element_type": BF16, "shape": (8,), "row": 64, "rows": 64}
                                       | fields))])  # fmt: skip

    corrupt("empty_file", b"")
    for at, name in ((11, "version"), (63, "header"), (64, "table"), (130, "in_the_table"), (191, "record"),
                     (260, "in_a_plane"), (len(data) - 64, "end"), (len(data) - 1, "in_the_end")):  # fmt: skip
        corrupt(f"truncated_{name}", data[:at])
    corrupt("trailing_byte", data + b"\0")
    corrupt("magic", header(magic=b"\x8bKVLANE\n"))
    unsupported("version_0", header(version=0))
    unsupported("version_2", header(version=2))
    corrupt("header_bytes", header(header_bytes=128))
    corrupt("header_checksum", data[:63] + bytes([data[63] ^ 1]) + data[64:])
    corrupt("table_checksum", header(table_checksum=1))
    unsupported("flags", header(flags=1))
    unsupported("reserved_41", header(zeros=b"\1" + bytes(6)))
    unsupported("reserved_47", header(zeros=bytes(6) + b"\1"))
    unsupported("kind_3", header(kind=3))
    for field, values in {
        "file_bytes": (0, 6404, 6406, 2**62 + 1, 2**64 - 1), "planes": (0, 2, 4, 2**64 - 1),
        "segments": (0, 1, 3, 2**19 + 1, 2**32 - 1), "table_bytes": (0, 64, 127, 192, 2**26 + 64, 2**32 - 64),
    }.items():  # fmt: skip
        for value in values:
            corrupt(f"{field}_{value}", header(**{field: value}))
    unsupported("role_2", entry(role=2))
    for element_type in (1, 6, 255):
        unsupported(f"element_type_{element_type}", entry(element_type=element_type))
    unsupported("entry_reserved_6", entry(zero=1))
    unsupported("entry_padding", entry(name="w", padding=bytes(6) + b"\1"))
    corrupt("other_with_type", entry(role=0, shape=()))
    corrupt("other_with_shape", entry(role=0, element_type=BYTES))
    corrupt("other_with_name", entry(role=0, element_type=BYTES, shape=(), name="w"))
    corrupt("other_with_type_name", entry(role=0, element_type=BYTES, shape=(), type_name="U8"))
    corrupt("dimensions_65", entry(shape=(8,) + (1,) * 64))
    corrupt("type_name_33", entry(type_name="t" * 33))
    corrupt("type_name_not_printable", entry(type_name="BF\n6"))
    corrupt("row_elements_0", zero_rows(row=0, rows=64))
    corrupt("plane_rows_0", zero_rows(row=64, rows=0))
    corrupt("plane_too_large", entry(row=1 << 17, rows=65))
    corrupt("plane_size_wraps", entry(row=2**31, rows=2))
    corrupt("shape_too_small", entry(shape=(7,)))
    corrupt("shape_too_large", entry(shape=(9,)))
    corrupt("shape_wraps", entry(shape=(2**63, 2**63, 8)))
    corrupt("shape_wraps_to_size", entry(shape=(2**63 + 4, 2)))
    corrupt("sizes_wrap", wrapping())
    table = b"".join(segment.entry() for segment in good)
    corrupt("table_with_a_rest", tensor_file(good, CHANNEL, table=pad(table, 64) + bytes(64)))
    corrupt("table_with_something_behind", tensor_file(good, CHANNEL, table=pad(table + b"\1", 64)))
    corrupt("entry_behind_the_table", tensor_file([entry_over_the_end()]))
    make_refused_records(good, planes, corrupt, unsupported)
    make_refused_ends(good, data, corrupt, unsupported)


def make_refused_ends(good, data, corrupt, unsupported):
    for field, value in (("planes", 2), ("container_bytes", len(data) + 64), ("chain", 1), ("magic", b"\x8bKVLTEN\n")):
        corrupt(f"end_{field}", tensor_file(good, CHANNEL, end={field: value}))
    unsupported("end_reserved", tensor_file(good, CHANNEL, end={"zeros": bytes(23) + b"\1"}))
    corrupt("end_checksum", data[:-1] + bytes([data[-1] ^ 1]))


def zero_rows(row, rows):
    """Such segments have no planes that one could write."""
    segment = Segment(bytes(16), BF16, (8,), row=row, rows=rows)
    return tensor_file([segment], made=[record(0, bytes(16))])


def wrapping():
    """Two segments whose sizes add up to 64 bits and 16 bytes."""
    large = Segment(b"", BYTES, (), size=2**64 - 8, rows=1 << 20)
    small = Segment(b"", BYTES, (), size=24)
    return tensor_file([large, small], header={"file_bytes": 16, "planes": 0}, made=[])


def entry_over_the_end():
    segment = Segment(bytes(16), BF16, (8,), row=64, rows=64)
    segment.entry = lambda: struct.pack("<BBBBHHQII", 1, BF16, 1, 0, 65535, 0, 16, 64, 64) + struct.pack("<Q", 8)
    return segment


def make_refused_records(good, planes, corrupt, unsupported):
    def changed(plane, **fields):
        return tensor_file(good, CHANNEL, change={plane: fields})

    corrupt("record_number", changed(1, number=2))
    corrupt("records_exchanged", tensor_file(good, made=[planes[0], planes[2], planes[1]]))
    corrupt("record_missing", tensor_file(good, made=planes[:2], header={"planes": 3}))
    corrupt("record_twice", tensor_file(good, made=planes + planes[2:], header={"planes": 3}))
    broken = planes[0][:63] + bytes([planes[0][63] ^ 1]) + planes[0][64:]
    corrupt("record_checksum", tensor_file(good, made=[broken, *planes[1:]]))
    unsupported("codec_3", changed(1, codec=3))
    unsupported("codec_255", changed(1, codec=255))
    unsupported("record_reserved_13", changed(1, zeros=b"\0\0\1"))
    unsupported("record_reserved_32", changed(1, more_zeros=b"\1" + bytes(23)))
    corrupt("bytes_with_codec", changed(0, codec=SPLITZIP))
    corrupt("coded_bytes_0", changed(1, coded_bytes=0))
    corrupt("coded_bytes_too_many", changed(1, coded_bytes=64 * 32 * 2 + 1))
    corrupt("coded_bytes_4294967295", changed(1, coded_bytes=2**32 - 1))
    corrupt("none_too_short", changed(0, coded=b"1234"))
    corrupt("none_too_long", changed(0, coded=b"123456"))
    corrupt("coded_checksum", changed(1, coded_checksum=1))
    corrupt("plane_checksum", changed(1, plane_checksum=1))
    corrupt("plane_checksum_of_none", changed(0, plane_checksum=1))
    corrupt("record_padding", changed(0, padding=bytes(58) + b"\1"))
    corrupt("codec_of_another", changed(1, codec=SPLITZIP))
    raw = struct.pack("<4B3I", 1, 0, BF16, 0, 64, 1, 32)
    corrupt("body_of_another_shape", changed(1, coded=raw + bytes(64)))
    # Each record is right, the planes are those of another file with the same table.
    rng = random.Random(13)
    others = records([good[0], tensor(rng, 100, 32, "w")], CHANNEL)
    real, foreign = tensor_file(good, made=planes), tensor_file(good, made=[planes[0], planes[1], others[2]])
    chain = struct.unpack_from("<Q", real, len(real) - 40)[0]
    end = struct.pack("<8sQQQ24s", b"\x8bKVLEND\n", 3, len(foreign), chain, bytes(24))
    corrupt("planes_of_two_files", foreign[:-64] + checked(end))
