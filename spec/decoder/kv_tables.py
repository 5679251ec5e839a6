"""Reader of files of KV tables, version 1, written from spec/kv_tables.md alone.

SPDX-License-Identifier: Apache-2.0
"""

import json
import struct

from refusal import corrupt, unsupported
from xxh3 import xxh3_64

FILE_BYTES_MAX = 1 << 30


def read(data):
    """The identity of the model (bytes), and the tables: a tuple of floats for each name."""
    if len(data) > FILE_BYTES_MAX or len(data) < 8:
        raise corrupt("the file is too long or too short")
    header_bytes = struct.unpack_from("<Q", data)[0]
    if header_bytes > len(data) - 8:
        raise corrupt("the header does not fit the file")
    try:
        header = json.loads(data[8 : 8 + header_bytes])
    except ValueError as error:
        raise corrupt("the header is no JSON") from error
    body = data[8 + header_bytes :]
    tables = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        if entry["dtype"] != "F32" or entry["shape"] != [(end - begin) // 4] or end > len(body):
            raise corrupt(f"'{name}' is no row of F32")
        tables[name] = struct.unpack_from(f"<{(end - begin) // 4}f", body, begin)
    version = tables.pop("kvlane.version", ())
    model = tables.pop("kvlane.model", ())
    tokens = tables.pop("kvlane.tokens", ())
    if len(version) != 1 or len(model) != 32 or len(tokens) != 1:
        raise corrupt("this is no file of KV tables")
    if version[0] != 1:
        raise unsupported(f"version {version[0]}")
    return bytes(int(value) for value in model), tables


def tables_id(tables, *families):
    """The `tables` of frames: spec/frame.md, section 4."""
    checksums = b""
    for name in sorted(tables):
        if name.startswith(tuple(family + "." for family in families)):
            values = struct.pack(f"<{len(tables[name])}f", *tables[name])
            checksums += struct.pack("<2Q", xxh3_64(name.encode("ascii")), xxh3_64(values))
    return xxh3_64(checksums)
