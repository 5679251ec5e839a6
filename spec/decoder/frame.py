"""Reader of kvlane frames, version 1, written from spec/frame.md alone.

SPDX-License-Identifier: Apache-2.0
"""

import re
import struct

import slab_hack
import slab_linear
import slab_zack
import splitzip
import splitzip_channel
from refusal import corrupt, unsupported
from xxh3 import xxh3_64

MAGIC = bytes.fromhex("8B4B564C414E450A")
VERSION = 1
HEADER_BYTES = 192
CHECKED_HEADER_BYTES = 184
BLOCK_TOKENS = 64
LAYER_MAX = 65535
KV_HEADS_MAX = 1024
HEAD_DIM_MAX = 4096
POSITION_MAX = 2**31 - 64
PLANE_ELEMENTS_MAX = 2**26
PLANE_GROWTH_BYTES_MAX = 64
SEALED_GROWTH_BYTES_MAX = 8192
FLAG_ROPE_APPLIED = 1
FLAG_SEALED = 2
ROW_FORMATS = ("bf16", "fp16")
CODECS = ("none", "splitzip", "splitzip:channel")
ELEMENT_TYPES = {2: "bf16", 3: "fp16", 4: "fp8_e4m3", 5: "fp8_e5m2"}
ELEMENT_BYTES = {2: 2, 3: 2, 4: 1, 5: 1}
FORMAT_ELEMENT_TYPES = {name: number for number, name in ELEMENT_TYPES.items()}
NAME = re.compile(rb"([a-z][a-z0-9_:=,.+-]*)\0*")

# Section 3, field by field. Reserved parts are named, so that none is forgotten.
LAYOUT = struct.Struct("<8s HHI 32s 48s 24s BBHIIIQIIIIQQ8sQ")
FIELDS = (
    "magic version header_bytes flags model format codec element_type reserved_121 tokens layer kv_heads "
    "head_dim position plane_elements k_bytes v_bytes reserved_156 body_checksum tables reserved_176 header_checksum"
).split()


def _name(field, value):
    match = NAME.fullmatch(value)
    if not match:
        raise corrupt(f"{field} is not a name: {value.rstrip(bytes(1))!r}")
    return match[1].decode("ascii")


def _require_range(raw, field, low, high):
    if not low <= raw[field] <= high:
        raise corrupt(f"{field} is {raw[field]}, outside {low} ... {high}")


def _check_ranges(raw):
    """Step 5 of section 6."""
    _require_range(raw, "element_type", min(ELEMENT_TYPES), max(ELEMENT_TYPES))
    sealed = raw["flags"] & FLAG_SEALED
    _require_range(raw, "tokens", BLOCK_TOKENS if sealed else 1, BLOCK_TOKENS)
    _require_range(raw, "layer", 0, LAYER_MAX)
    _require_range(raw, "kv_heads", 1, KV_HEADS_MAX)
    _require_range(raw, "head_dim", 1, HEAD_DIM_MAX)
    _require_range(raw, "position", 0, POSITION_MAX)
    if raw["position"] % BLOCK_TOKENS:
        raise corrupt(f"position {raw['position']} is not the start of a block")
    _require_range(raw, "plane_elements", 1, PLANE_ELEMENTS_MAX)
    if raw["plane_elements"] != raw["kv_heads"] * raw["tokens"] * raw["head_dim"]:
        raise corrupt("plane_elements is not kv_heads * tokens * head_dim")
    plane_bytes = ELEMENT_BYTES[raw["element_type"]] * raw["plane_elements"]
    if sealed and raw["codec"].rstrip(bytes(1)) == b"none":
        _require_range(raw, "k_bytes", 1, 4 * plane_bytes + SEALED_GROWTH_BYTES_MAX)
        _require_range(raw, "v_bytes", 0, 0)
    else:
        _require_range(raw, "k_bytes", 1, plane_bytes + PLANE_GROWTH_BYTES_MAX)
        _require_range(raw, "v_bytes", 1, plane_bytes + PLANE_GROWTH_BYTES_MAX)


def read_header(data):
    """Steps 1 to 5 of section 6: the header at the start of `data` in the JSON form of section 8."""
    if len(data) < 12 or data[:8] != MAGIC:
        raise corrupt("no frame begins here")
    version, header_bytes = struct.unpack_from("<HH", data, 8)
    if version != VERSION:
        raise unsupported(f"frame version {version}")
    if header_bytes != HEADER_BYTES or len(data) < HEADER_BYTES:
        raise corrupt("the header is incomplete")
    raw = dict(zip(FIELDS, LAYOUT.unpack_from(data)))
    if xxh3_64(data[:CHECKED_HEADER_BYTES]) != raw["header_checksum"]:
        raise corrupt("the header's checksum is wrong")
    sealed = bool(raw["flags"] & FLAG_SEALED)
    reserved = [raw["reserved_121"], raw["reserved_156"], any(raw["reserved_176"]), raw["tables"] and not sealed]
    if any(reserved) or raw["flags"] & ~(FLAG_ROPE_APPLIED | FLAG_SEALED):
        raise unsupported("a reserved byte or flag is set")
    _check_ranges(raw)
    format_name, codec_name = _name("format", raw["format"]), _name("codec", raw["codec"])
    if sealed and format_name in ROW_FORMATS:
        raise corrupt(f"a sealed slab of format {format_name}")
    if not sealed and FORMAT_ELEMENT_TYPES.get(format_name, raw["element_type"]) != raw["element_type"]:
        raise corrupt(f"format {format_name} has no {ELEMENT_TYPES[raw['element_type']]} planes")
    numbers = "version header_bytes layer kv_heads head_dim position tokens plane_elements k_bytes v_bytes"
    return {field: raw[field] for field in numbers.split()} | {
        "model": raw["model"].hex(),
        "format": format_name,
        "codec": codec_name,
        "element_type": ELEMENT_TYPES[raw["element_type"]],
        "rope_applied": bool(raw["flags"] & FLAG_ROPE_APPLIED),
        "body_checksum": f"{raw['body_checksum']:016x}",
        "header_checksum": f"{raw['header_checksum']:016x}",
    } | ({"sealed": True, "tables": f"{raw['tables']:016x}"} if sealed else {})


def read_frame(data):
    """Steps 1 to 8 of the frame at the start of `data`: its header, coded K, coded V, and its length."""
    header = read_header(data)
    k_end = HEADER_BYTES + header["k_bytes"]
    end = k_end + header["v_bytes"]
    if len(data) < end:
        raise corrupt(f"the frame has {end} bytes, {len(data)} are there")
    if f"{xxh3_64(data[HEADER_BYTES:end]):016x}" != header["body_checksum"]:
        raise corrupt("the body's checksum is wrong")
    return header, data[HEADER_BYTES:k_end], data[k_end:end], end


def read_frames(data):
    """All frames of a file, one behind the other: (header, coded K, coded V) of each."""
    data = memoryview(data)
    at = 0
    while True:
        header, k, v, length = read_frame(data[at:])
        yield header, k, v
        at += length
        if at == len(data):
            return


def values_from_bytes(element_type, plane):
    """The values of a plane as integers of the width of their type."""
    width = ELEMENT_BYTES[element_type]
    return list(struct.unpack(f"<{len(plane) // width}{'BH'[width - 1]}", plane))


def values_to_bytes(element_type, values):
    return struct.pack(f"<{len(values)}{'BH'[ELEMENT_BYTES[element_type] - 1]}", *values)


def _decode_none(coded, element_type, elements):
    if len(coded) != ELEMENT_BYTES[element_type] * elements:
        raise corrupt(f"an uncoded plane of {elements} values has {len(coded)} bytes")
    return values_from_bytes(element_type, coded)


def _decode_values(codec, element_type, shape, coded):
    """A plane of that shape, (heads, tokens, channels)."""
    elements = shape[0] * shape[1] * shape[2]
    if codec == "none":
        return _decode_none(coded, element_type, elements)
    if codec == "splitzip":
        return splitzip.decode(coded, element_type, elements)
    if codec == "splitzip:channel":
        return splitzip_channel.decode(coded, element_type, ELEMENT_BYTES[element_type], *shape)
    raise unsupported(f"codec {codec}")


def decode_plane(header, coded):
    """Steps 9 and 10 for rows: the values of one plane as integers of the width of their type."""
    if header["format"] not in FORMAT_ELEMENT_TYPES:
        raise unsupported(f"format {header['format']}")
    shape = (header["kv_heads"], header["tokens"], header["head_dim"])
    return _decode_values(header["codec"], FORMAT_ELEMENT_TYPES[header["format"]], shape, coded)


def decode_sealed(header, body, channels):
    """The planes K and V of a sealed slab's values (section 4), which have so many channels each."""
    bf16 = FORMAT_ELEMENT_TYPES["bf16"]
    return [
        _decode_values(header["codec"], bf16, (1, BLOCK_TOKENS, width), bytes(coded))
        for width, coded in zip(channels, body)
    ]


def _has_planes(name):
    return name.startswith("zack:") and "+" not in name and slab_zack.format_of(name).codes is None


def open_slab(header, k, v, open_with_tables=None):
    """Steps 9 and 10 for a sealed slab: the values of K and of V, bf16, as planes.

    Slabs with tables are opened by `open_with_tables(header, (k, v))`, which knows the tables and the model: a list
    [head][K, V] of rows. In another codec than `none` it gets the rows from decode_sealed().
    """
    heads, d = header["kv_heads"], header["head_dim"]
    if header["element_type"] != "bf16":
        raise unsupported(f"slabs of {header['element_type']} rows")
    if header["codec"] not in CODECS:
        raise unsupported(f"codec {header['codec']}")
    if header["codec"] != "none" and not _has_planes(header["format"]):
        raise corrupt(f"slabs of format {header['format']} are not planes, to be in codec {header['codec']}")
    if int(header["tables"], 16):
        if open_with_tables is None:
            raise unsupported(f"format {header['format']} without its tables, {header['tables']}")
        pages = open_with_tables(header, (bytes(k), bytes(v)))
        return [[value for page in pages for row in page[part] for value in row] for part in range(2)]
    reader = slab_hack if header["format"].startswith("hack:") else slab_linear
    slab = reader.unpack(header["format"], heads, d, bytes(k))
    pages = reader.open_slab(header["format"], heads, d, slab)
    return [[value for page in pages for value in page[part]] for part in range(2)]


def planes_of(header, k, v, open_with_tables=None):
    """Steps 9 and 10: the values of K and of V of a frame, and their element type."""
    if "sealed" in header:
        return open_slab(header, k, v, open_with_tables), FORMAT_ELEMENT_TYPES["bf16"]
    return [decode_plane(header, plane) for plane in (k, v)], FORMAT_ELEMENT_TYPES[header["format"]]
