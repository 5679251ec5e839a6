"""Extents of a state store, written and read as ../store.md says, sections 4 and 5.

    python3 spec/decoder/extent.py FILE     # a segment or an exported file: one line of JSON for each extent

SPDX-License-Identifier: Apache-2.0
"""

import json
import struct
import sys

from refusal import corrupt, unsupported
from xxh3 import xxh3_64

PAGE = 4096
MAGIC = b"\x8bKVLEXT\n"
FIXED = struct.Struct("<8sHHI32s48s24sBBHIIIQ32sHHHHQQQ12sI")
PART = struct.Struct("<IIIIQ16sQ")
PARTS_MAX = 80
BYTES_MAX = 1 << 28
assert FIXED.size == 224 and PART.size == 48


def padded(data):
    return data + bytes(-len(data) % PAGE)


def build(name, parts, checksums=None, *, kind=2, layer=0, position=0, model=bytes(32), codec="none", width=8):
    """An extent of planes: `parts` are bytes, one for each layer. `checksums` of them, if they are known."""
    table, page = b"", 1
    for index, part in enumerate(parts):
        checksum = checksums[index] if checksums else xxh3_64(part)
        table += PART.pack(page, len(part), 0, 0, checksum, bytes(16), 0)
        page += len(padded(part)) // PAGE
    fixed = FIXED.pack(MAGIC, 1, PAGE, 0, model, b"attention_input", codec.encode(), 2, kind, 64, layer, 1, width,
                       position, name, len(parts), 0, 1, 0, 0, page * PAGE, 0, bytes(12), 0)  # fmt: skip
    head = (fixed + table).ljust(PAGE - 8, b"\0")
    return head + struct.pack("<Q", xxh3_64(head)) + b"".join(map(padded, parts))


def is_name(text):
    return (text[:1].isalpha() and text[:1].islower()
            and not set(text) - set("abcdefghijklmnopqrstuvwxyz0123456789_:=,.+-"))  # fmt: skip


def refuse_unless(condition, why, kind=corrupt):
    if not condition:
        raise kind(why)


def parse_head(page):
    """The header as a dictionary. Makes all checks of section 4."""
    refuse_unless(len(page) >= PAGE and page[:8] == MAGIC, "no extent begins here")
    (_, version, header_bytes, flags, model, form, codec, element, kind, tokens, layer, heads, width, position,
     name, layers, shard, shards, zero_182, tables, extent_bytes, key_id, nonce, zero_220) = FIXED.unpack_from(page)
    refuse_unless(version == 1, f"version {version}", unsupported)
    refuse_unless(header_bytes == PAGE and struct.unpack_from("<Q", page, PAGE - 8)[0] == xxh3_64(page[: PAGE - 8]),
                  "header: wrong size or checksum")  # fmt: skip
    end = FIXED.size + PART.size * min(layers, PARTS_MAX)
    refuse_unless(flags < 8 and zero_182 == zero_220 == 0 and not any(page[end : PAGE - 8]), "reserved", unsupported)
    refuse_unless(1 <= layers <= PARTS_MAX and layer + layers <= 65536, "layers")
    rotated, sealed, encrypted = (bool(flags >> bit & 1) for bit in range(3))
    form, codec = form.rstrip(b"\0").decode("ascii", "replace"), codec.rstrip(b"\0").decode("ascii", "replace")
    refuse_unless(is_name(form) and is_name(codec), "names")
    refuse_unless(kind in (1, 2) and (2 if kind == 1 else 1) <= element <= 5, "kind or element type")
    refuse_unless(element > 1 or codec == "none", "codec")
    refuse_unless((64 if sealed else 1) <= tokens <= 64, "tokens")
    refuse_unless(1 <= heads <= (1 if kind == 2 else 1024), "heads")
    refuse_unless(1 <= width <= (1 << 20 if kind == 2 else 4096), "width")
    refuse_unless(position <= 2**31 - 64 and position % 64 == 0, "position")
    refuse_unless(1 <= shards <= 1024 and shard < shards, "shards")
    refuse_unless(kind == 1 or not (rotated or sealed), "hidden states that are sealed or rotated")
    refuse_unless(not (sealed and form in ("bf16", "fp16")) and (sealed or not tables), "sealed")
    refuse_unless(encrypted or (key_id == 0 and not any(nonce)), "a key without encryption")
    parts, page_at = [], 1
    one_plane = kind == 2 or (sealed and codec == "none")
    for index in range(layers):
        at, k_bytes, v_bytes, zero_12, checksum, tag, zero_40 = PART.unpack_from(page, FIXED.size + PART.size * index)
        refuse_unless(zero_12 == zero_40 == 0, "reserved", unsupported)
        refuse_unless(at == page_at and k_bytes > 0 and (v_bytes == 0) == one_plane, "a part")
        refuse_unless(encrypted or not any(tag), "a tag without encryption")
        parts.append({"offset": at * PAGE, "k_bytes": k_bytes, "v_bytes": v_bytes, "checksum": checksum})
        page_at += -(-(k_bytes + v_bytes) // PAGE)
    refuse_unless(extent_bytes == page_at * PAGE <= BYTES_MAX, "size")
    return {"name": name.hex(), "kind": {1: "kv", 2: "hidden"}[kind], "layer": layer, "layers": layers, "shard": shard,
            "shards": shards, "position": position, "tokens": tokens, "model": model.hex(), "format": form,
            "codec": codec, "encrypted": encrypted, "bytes": extent_bytes, "parts": parts}  # fmt: skip


def parts_of(head, extent):
    """The bytes of each part, checked, of an extent whose header is `head`."""
    for part in head["parts"]:
        data = extent[part["offset"] :][: part["k_bytes"] + part["v_bytes"]]
        refuse_unless(xxh3_64(data) == part["checksum"], "a part's checksum")
        yield data


def walk(data):
    """The extents of an exported file, one behind the other."""
    at = 0
    while at < len(data):
        head = parse_head(data[at : at + PAGE])
        refuse_unless(at + head["bytes"] <= len(data), "an extent is cut off")
        yield head, data[at : at + head["bytes"]]
        at += head["bytes"]


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        for found, whole in walk(file.read()):
            list(parts_of(found, whole))
            print(json.dumps(found))
