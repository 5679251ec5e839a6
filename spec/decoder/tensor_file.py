"""Reader of tensor files, version 1, written from spec/tensor_file.md alone.

SPDX-License-Identifier: Apache-2.0
"""

import math
import struct

import frame
import splitzip
import splitzip_channel
from refusal import corrupt, unsupported
from xxh3 import xxh3_64

MAGIC = bytes.fromhex("8B4B564C54454E0A")
END_MAGIC = bytes.fromhex("8B4B564C454E440A")
VERSION = 1
PART_BYTES = 64  # of the header, of what is before a coded plane, of the end
CHECKED_PART_BYTES = 56
ALIGNMENT = 64
ENTRY_ALIGNMENT = 8
FILE_BYTES_MAX = 2**62
SEGMENTS_MAX = 2**19
TABLE_BYTES_MAX = 2**26
PLANE_BYTES_MAX = 2**24
DIMENSIONS_MAX = 64
TYPE_NAME_BYTES_MAX = 32
KINDS = {0: "raw", 1: "npy", 2: "safetensors"}
ROLES = {0: "other", 1: "tensor"}
ELEMENT_TYPES = {0: "bytes"} | frame.ELEMENT_TYPES
ELEMENT_BYTES = {0: 1} | frame.ELEMENT_BYTES
NONE, SPLITZIP, SPLITZIP_CHANNEL = 0, 1, 2

HEADER = struct.Struct("<8s HHIQQIIB7sQQ")
ENTRY = struct.Struct("<BBBBHHQII")
RECORD = struct.Struct("<QIB3sQQ24sQ")
END = struct.Struct("<8sQQQ24sQ")
assert HEADER.size == RECORD.size == END.size == PART_BYTES
assert ENTRY.size == 24


def _pad(x, alignment):
    return -(-x // alignment) * alignment


def _checksum_is_right(part):
    return xxh3_64(part[:CHECKED_PART_BYTES]) == struct.unpack_from("<Q", part, CHECKED_PART_BYTES)[0]


def _read_header(data):
    """Steps 1 to 6 of section 8: kind, bytes of the original, planes, segments, bytes and checksum of the table."""
    if len(data) < 12 or data[:8] != MAGIC:
        raise corrupt("no tensor file begins here")
    version, header_bytes = struct.unpack_from("<HH", data, 8)
    if version != VERSION:
        raise unsupported(f"tensor file version {version}")
    if header_bytes != PART_BYTES or len(data) < PART_BYTES or not _checksum_is_right(data[:PART_BYTES]):
        raise corrupt("the header is incomplete or its checksum is wrong")
    _, _, _, flags, file_bytes, planes, segments, table_bytes, kind, zeros, table_checksum, _ = HEADER.unpack_from(data)
    if flags or any(zeros):
        raise unsupported("a reserved byte or flag of the header is set")
    if kind not in KINDS:
        raise unsupported(f"kind {kind}")
    if file_bytes > FILE_BYTES_MAX or segments > SEGMENTS_MAX:
        raise corrupt("a size in the header is out of range")
    if table_bytes > TABLE_BYTES_MAX or table_bytes % ALIGNMENT:
        raise corrupt("a size in the header is out of range")
    if len(data) < PART_BYTES + table_bytes + PART_BYTES * planes + PART_BYTES:
        raise corrupt(f"{planes} planes cannot be in {len(data)} bytes")
    return KINDS[kind], file_bytes, planes, segments, table_bytes, table_checksum


def _check_entry(segment):
    """The rules of section 4 for one segment in its JSON form, with "number", the number of its element type."""
    number = segment["number"]
    if segment["role"] == "other" and (number or segment["shape"] or segment["type_name"] or segment["name"]):
        raise corrupt("bytes between tensors have a type, a shape or a name")
    if len(segment["shape"]) > DIMENSIONS_MAX or len(segment["type_name"]) > TYPE_NAME_BYTES_MAX:
        raise corrupt("a tensor has too many dimensions or too long a type")
    if not segment["row_elements"] or not segment["plane_rows"]:
        raise corrupt("a row or a plane has nothing")
    if ELEMENT_BYTES[number] * segment["row_elements"] * segment["plane_rows"] > PLANE_BYTES_MAX:
        raise corrupt("a plane is too large")
    if number and segment["bytes"] != ELEMENT_BYTES[number] * math.prod(segment["shape"]):
        raise corrupt("the shape of a tensor does not fit its bytes")


def _read_entry(table, at):
    """The segment at `at` and where the next one begins."""
    if at + ENTRY.size > len(table):
        raise corrupt("an entry runs over the end of the table")
    role, number, dimensions, type_name_bytes, name_bytes, zero, size, row_elements, plane_rows = ENTRY.unpack_from(
        table, at
    )
    shape_end = at + ENTRY.size + 8 * dimensions
    type_name_end = shape_end + type_name_bytes
    name_end = type_name_end + name_bytes
    end = _pad(name_end, ENTRY_ALIGNMENT)
    if end > len(table):
        raise corrupt("an entry runs over the end of the table")
    if role not in ROLES or number not in ELEMENT_TYPES:
        raise unsupported(f"role {role}, element type {number}")
    if zero or any(table[name_end:end]):
        raise unsupported("a reserved byte of an entry is set")
    type_name = table[shape_end:type_name_end]
    if not all(0x20 <= c <= 0x7E for c in type_name):
        raise corrupt("the name of a type is not printable")
    segment = {
        "role": ROLES[role],
        "element_type": ELEMENT_TYPES[number],
        "type_name": bytes(type_name).decode("ascii"),
        "name": bytes(table[type_name_end:name_end]).decode("utf-8", "replace"),
        "shape": list(struct.unpack_from(f"<{dimensions}Q", table, at + ENTRY.size)),
        "bytes": size,
        "row_elements": row_elements,
        "plane_rows": plane_rows,
        "number": number,
    }
    _check_entry(segment)
    return segment, end


def _read_table(table, count):
    """Step 8, but for the sums."""
    segments, at = [], 0
    for _ in range(count):
        segment, at = _read_entry(table, at)
        segments.append(segment)
    if len(table) - at >= ALIGNMENT or any(table[at:]):
        raise corrupt("something follows the entries in the table")
    return segments


def _planes(segment):
    """Section 5: (rows, values of a row) of each plane."""
    row = segment["row_elements"]
    values = segment["bytes"] // ELEMENT_BYTES[segment["number"]]
    whole, rest = divmod(values, row * segment["plane_rows"])
    for _ in range(whole):
        yield segment["plane_rows"], row
    rows, rest = divmod(rest, row)
    if rows:
        yield rows, row
    if rest:
        yield 1, rest


def _plane_count(segment):
    row = segment["row_elements"]
    whole, rest = divmod(segment["bytes"] // ELEMENT_BYTES[segment["number"]], row * segment["plane_rows"])
    return whole + (rest >= row) + (rest % row > 0)


def _decode(codec, coded, number, rows, row):
    """Step 13: the bytes of the plane."""
    if codec == NONE:
        return bytes(coded)
    if codec == SPLITZIP:
        values = splitzip.decode(coded, number, rows * row)
    else:
        values = splitzip_channel.decode(coded, number, ELEMENT_BYTES[number], 1, rows, row)
    return frame.values_to_bytes(number, values)


def _read_record(data, at, expected, number, rows, row):
    """Steps 9 to 13 of the record at `at`: the bytes of its plane, its checksum, where the next part begins."""
    begin = at + PART_BYTES
    if begin > len(data) or not _checksum_is_right(data[at:begin]):
        raise corrupt(f"plane {expected} is incomplete or its checksum is wrong")
    found, coded_bytes, codec, zeros, coded_checksum, plane_checksum, more_zeros, record_checksum = RECORD.unpack_from(
        data, at
    )
    if found != expected:
        raise corrupt(f"plane {found} where {expected} is due")
    if any(zeros) or any(more_zeros):
        raise unsupported("a reserved byte of a plane is set")
    if codec not in (NONE, SPLITZIP, SPLITZIP_CHANNEL):
        raise unsupported(f"codec {codec}")
    plane_bytes = ELEMENT_BYTES[number] * rows * row
    if not 1 <= coded_bytes <= plane_bytes or codec == NONE and coded_bytes != plane_bytes:
        raise corrupt(f"plane {expected} of {plane_bytes} bytes claims {coded_bytes} coded ones")
    if number == 0 and codec != NONE:
        raise corrupt("bytes with a codec")
    coded_end = begin + coded_bytes
    end = begin + _pad(coded_bytes, ALIGNMENT)
    if end > len(data):
        raise corrupt(f"plane {expected} is cut off")
    coded = data[begin:coded_end]
    if xxh3_64(coded) != coded_checksum:
        raise corrupt(f"the coded bytes of plane {expected} have a wrong checksum")
    if any(data[coded_end:end]):
        raise corrupt(f"the padding of plane {expected} is not zero")
    plane = _decode(codec, coded, number, rows, row)
    if xxh3_64(plane) != plane_checksum:
        raise corrupt(f"plane {expected} has other values than the original")
    return plane, record_checksum, end


def _check_end(data, at, planes, chain):
    """Steps 14 and 15."""
    part = data[at : at + PART_BYTES]
    if len(part) < PART_BYTES or part[:8] != END_MAGIC or not _checksum_is_right(part):
        raise corrupt("the end is incomplete or its checksum is wrong")
    _, end_planes, container_bytes, end_chain, zeros, _ = END.unpack(part)
    if any(zeros):
        raise unsupported("a reserved byte of the end is set")
    if (end_planes, container_bytes, end_chain) != (planes, at + PART_BYTES, chain):
        raise corrupt("the end belongs to another file")
    if len(data) != at + PART_BYTES:
        raise corrupt("something follows the end")


def read(data):
    """All steps: what the file says of the original in the form of section 10, and the original."""
    data = memoryview(data)
    kind, file_bytes, planes, count, table_bytes, table_checksum = _read_header(data)
    at = PART_BYTES + table_bytes
    table = data[PART_BYTES:at]
    if len(table) != table_bytes or xxh3_64(table) != table_checksum:
        raise corrupt("the table is incomplete or its checksum is wrong")
    segments = _read_table(table, count)
    if sum(s["bytes"] for s in segments) != file_bytes or sum(map(_plane_count, segments)) != planes:
        raise corrupt("the segments do not add up to the header")
    chain = struct.unpack_from("<Q", data, CHECKED_PART_BYTES)[0]
    original, number = [], 0
    for segment in segments:
        for rows, row in _planes(segment):
            plane, record_checksum, at = _read_record(data, at, number, segment["number"], rows, row)
            chain = xxh3_64(struct.pack("<QQ", chain, record_checksum))
            original.append(plane)
            number += 1
    _check_end(data, at, planes, chain)
    for segment in segments:
        del segment["number"]
    head = {"version": VERSION, "kind": kind, "file_bytes": file_bytes, "planes": planes, "segments": segments}
    return head, b"".join(original)
