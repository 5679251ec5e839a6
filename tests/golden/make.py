"""Makes the golden files beside it: frames, messages, tensor files, slabs: what readers accept or refuse, forever.

    python3 tests/golden/make.py [DIR]

A file that has been released is never changed; new cases are added. tests/test_spec_decoder.py checks that this script
still gives the committed bytes. Layout: README.md.
SPDX-License-Identifier: Apache-2.0
"""

import json
import pathlib
import random
import sys

import channel
import hack
import linear
import messages
import slabs
import tensor_files
import zack
import zack_kvquant
from writer import (
    BF16, FP8_E4M3, FP8_E5M2, FP16, MAGIC, Header, best_codebook, coded_body, escape_words, frame, raw_body, splitzip,
    values_to_bytes,
)  # fmt: skip

# The expectation beside a slab is what the readers of spec/decoder make of it.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "spec" / "decoder"))
import extents  # noqa: E402
import kv_tables  # noqa: E402
import slab_hack  # noqa: E402
import slab_linear  # noqa: E402
import slab_zack  # noqa: E402
import slab_zack_kvquant  # noqa: E402


class Out:
    """Collects files and writes them below one directory."""

    def __init__(self, directory):
        self.directory = directory

    def write(self, path, data):
        path = self.directory / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def valid(self, kind, name, frames):
        """`frames` is a list of (header, coded k, coded v, plane k, plane v); planes may be None."""
        data = b"".join(frame(header, k, v) for header, k, v, _, _ in frames)
        headers = [header.to_json() for header, *_ in frames]
        self.write(f"{kind}/valid/{name}.frame", data)
        self.write(f"{kind}/valid/{name}.json", json.dumps(headers, indent=1).encode() + b"\n")
        planes = [(plane, header.element_type) for header, *_, k, v in frames for plane in (k, v)]
        if all(plane is not None for plane, _ in planes):
            self.write(f"{kind}/valid/{name}.planes", b"".join(values_to_bytes(*plane) for plane in planes))

    def refused(self, kind, why, name, data):
        self.write(f"{kind}/{why}/{name}.frame", data)


def kv_values(rng, count):
    """Values like those of a real KV plane: exponents in one window, 1 in 256 far below it."""
    def value():
        bits = rng.getrandbits(8)
        spread = bin(rng.getrandbits(12)).count("1")
        exponent = 118 + spread if bits else 60 + rng.getrandbits(5)
        return rng.getrandbits(1) << 15 | exponent << 7 | rng.getrandbits(7)

    return [value() for _ in range(count)]


def with_exponents(rng, exponents):
    return [rng.getrandbits(1) << 15 | e << 7 | rng.getrandbits(7) for e in exponents]


# ---------------------------------------------------------------------------------------------------------------
# Frames, with codec `none`.

K4, V4 = [0x3F80, 0x4000, 0xBF80, 0x3F00], [0x0000, 0x8000, 0x7F80, 0x4049]


def plain(header, k=K4, v=V4):
    return header, values_to_bytes(k), values_to_bytes(v), k, v


def broken(**fields):
    """A small frame with right checksums and the given wrong fields."""
    return frame(Header(**fields), values_to_bytes(K4), values_to_bytes(V4))


def make_valid_frames(out):
    rng = random.Random(1)
    example = plain(Header(layer=3, tokens=2, head_dim=2, position=128))
    out.valid("frame", "worked_example", [example])
    out.valid("frame", "fp16_without_rope", [plain(Header(element_type=FP16, flags=0))])
    wide = Header(layer=65535, kv_heads=1024, head_dim=1, position=2**31 - 64)
    out.valid("frame", "largest_fields", [plain(wide, kv_values(rng, 1024), kv_values(rng, 1024))])
    full = Header(tokens=64, kv_heads=3, head_dim=5)
    second = Header(layer=1, tokens=64, kv_heads=3, head_dim=5)
    out.valid("frame", "two_frames", [plain(h, kv_values(rng, 960), kv_values(rng, 960)) for h in (full, second)])
    # The body of an unknown format means nothing to this version; its header can be shown.
    names = Header(format="zack:keep=0.5+hack:k=2,v=2,p=64,round=rn,diag=16", codec="rans:order=1,table=0-15a")
    assert len(names.format) == 48 and len(names.codec) == 24
    out.valid("frame", "longest_names", [(names, b"k", b"v" * 72, None, None)])


# Sealed slabs: one of each family, as their encoders beside this file make them.

def make_sealed_frames(out):
    heads = linear.example_rows()
    for name in ("fp8_e4m3", "mxfp6_e2m3", "int4:sym=0", "kivi:bits=2,group=32"):
        header = Header(flags=3, format=name, tokens=64, kv_heads=2, head_dim=linear.HEAD_DIM, layer=1, position=64)
        opened = slab_linear.open_slab(name, 2, linear.HEAD_DIM, linear.seal(name, heads))
        planes = [[value for head in opened for value in head[part]] for part in range(2)]
        body = linear.packed(name, heads)
        out.valid("frame", "sealed_" + name.split(":")[0], [(header, body, b"", *planes)])
    name, case = "hack:k=2,v=4,mix=0", hack.CASES["hack:k=2,v=4,mix=0"]
    sections = list(hack.sections(case, hack.example_rows(case.rows)))
    opened = slab_hack.open_slab(name, hack.HEADS, case.head_dim, b"".join(map(hack.pad64, sections)))
    planes = [[value for head in opened for value in head[part]] for part in range(2)]
    header = Header(flags=3, format=name, tokens=64, kv_heads=hack.HEADS, head_dim=case.head_dim, layer=hack.LAYER,
                    position=hack.POSITION)  # fmt: skip
    out.valid("frame", "sealed_hack", [(header, b"".join(sections), b"", *planes)])
    rng = random.Random(10)
    tables = slabs.make_tables(rng)
    rows = [slabs.draw_rows(rng, 100) for _ in range(2)]
    for name, encoder, flags in (
        ("cachegen:form=paper", slabs.Cachegen, 3), ("kvquant:bits=3,outliers=1,room=slab", slabs.Kvquant, 2)
    ):  # fmt: skip
        family = name.split(":")[0]
        stored = kv_tables.tables_id(slabs.as_stored(tables), family).to_bytes(8, "little") + bytes(8)
        header = Header(flags=flags, format=name, tokens=64, kv_heads=slabs.HEADS, head_dim=slabs.DIM,
                        layer=slabs.LAYER, position=slabs.POSITION, reserved_168=stored)  # fmt: skip
        body = encoder(name, tables).seal(*rows)
        pages = slabs.open_slab(slabs.about(name), body, tables)
        planes = [[value for page in pages for row in page[part] for value in row] for part in range(2)]
        out.valid("frame", f"sealed_{family}", [(header, body, b"", *planes)])
    out.write("frame/valid/sealed_tables.safetensors", slabs.tables_file(tables))
    make_sealed_zack_frames(out)


def make_sealed_zack_frames(out):
    """Their tables are those of slab/zack."""
    tables = zack.make_tables()
    stored = kv_tables.tables_id(tables, "zack").to_bytes(8, "little") + bytes(8)

    def valid(file_name, name, rows, k, v, codec="none"):
        layer = zack.CASES[name].layer
        header = Header(flags=3, format=name, codec=codec, tokens=64, kv_heads=zack.HEADS, head_dim=zack.DIM,
                        layer=layer, position=zack.POSITION, reserved_168=stored)  # fmt: skip
        slab = b"".join(zack.pages(name, tables, rows))
        opened = slab_zack.open_slab(name, zack.widths_of(name, tables)[layer], zack.DIM, slab)
        planes = [[value for head in opened for value in head[part]] for part in range(2)]
        out.valid("frame", file_name, [(header, k, v, *planes)])

    name, rows = zack.FRAME, zack.example_rows()
    valid("sealed_zack", name, rows, zack.packed(name, tables, rows), b"")
    name, rows = zack.FRAME_OF_VALUES, zack.bell_rows()
    planes = zack.planes(name, tables, rows)
    valid("sealed_zack_splitzip", name, rows, *(splitzip(plane, BF16) for plane in planes), "splitzip")
    coded = (channel.encode(plane, BF16, 1, 64, len(plane) // 64) for plane in planes)
    valid("sealed_zack_channel", name, rows, *coded, "splitzip:channel")
    make_sealed_zack_kvquant_frame(out)


def make_sealed_zack_kvquant_frame(out):
    """Its tables are those of slab/zack and of slab/zack_kvquant."""
    name = zack_kvquant.FRAME
    tables, layer = slabs.as_stored(zack.make_tables() | zack_kvquant.make_tables()), zack_kvquant.CASES[name]
    stored = slab_zack_kvquant.tables_id(name, tables).to_bytes(8, "little") + bytes(8)
    header = Header(flags=3, format=name, tokens=64, kv_heads=zack.HEADS, head_dim=zack.DIM, layer=layer,
                    position=zack.POSITION, reserved_168=stored)  # fmt: skip
    body = zack_kvquant.seal(name, tables, zack.example_rows())
    widths = zack_kvquant.widths_of(name, tables)[layer]
    opened = slab_zack_kvquant.open_slab(name, widths, zack.DIM, layer, body, tables)
    planes = [[value for head in opened for value in head[part]] for part in range(2)]
    out.valid("frame", "sealed_zack_kvquant", [(header, body, b"", *planes)])


def make_refused_sealed_frames(corrupt, unsupported):
    def sealed(v=b"", **fields):
        fields = {"flags": 3, "format": "int8:sym=1", "tokens": 64} | fields
        return frame(Header(**fields), bytes(640), v)

    corrupt("sealed_rows", sealed(format="bf16"))
    corrupt("sealed_in_a_codec", sealed(codec="splitzip"))
    in_a_codec = {"format": "zack:keep=0.5", "codec": "splitzip", "head_dim": 64}
    corrupt("sealed_in_a_codec_v_bytes_0", sealed(**in_a_codec))
    corrupt("sealed_in_a_codec_k_bytes_8257", sealed(v=b"v", k_bytes=8257, **in_a_codec))
    corrupt("sealed_in_a_codec_v_bytes_8257", sealed(v=b"v", v_bytes=8257, **in_a_codec))
    corrupt("sealed_in_a_codec_rows", sealed(v=b"v", **in_a_codec | {"format": "bf16"}))
    corrupt("sealed_63_tokens", sealed(tokens=63))
    corrupt("sealed_v_bytes_1", sealed(v=b"v"))
    corrupt("sealed_k_bytes_0", sealed(k_bytes=0))
    corrupt("sealed_k_bytes_10241", sealed(k_bytes=10241))
    unsupported("sealed_reserved_176", sealed(reserved_168=bytes(8) + b"\1" + bytes(7)))


def make_refused_frames(out):
    def corrupt(name, data):
        out.refused("frame", "corrupt", name, data)

    def unsupported(name, data):
        out.refused("frame", "unsupported", name, data)

    make_refused_sealed_frames(corrupt, unsupported)
    good = broken()
    corrupt("empty_file", b"")
    corrupt("truncated_magic", good[:7])
    corrupt("truncated_version", good[:11])
    corrupt("truncated_header", good[:191])
    corrupt("truncated_body", good[:-1])
    corrupt("missing_body", good[:192])
    corrupt("trailing_byte", good + b"\0")
    corrupt("magic_of_another_file", broken(magic=b"\x89PNG\r\n\x1a\n"))
    corrupt("magic_after_text_mode", broken(magic=MAGIC[:7] + b"\r"))
    unsupported("version_0", broken(version=0))
    unsupported("version_2", broken(version=2))
    corrupt("header_bytes_200", broken(header_bytes=200))
    corrupt("header_checksum_wrong", good[:191] + bytes([good[191] ^ 1]) + good[192:])
    corrupt("body_checksum_wrong", broken(body_checksum=1))
    unsupported("flag_2", broken(flags=5))
    unsupported("flag_31", broken(flags=1 | 1 << 31))
    unsupported("reserved_121", broken(reserved_121=1))
    unsupported("reserved_156", broken(reserved_156=1 << 31))
    unsupported("reserved_168", broken(reserved_168=b"\1" + bytes(15)))
    unsupported("reserved_183", broken(reserved_168=bytes(15) + b"\x80"))
    for element_type in (0, 1, 6, 255):
        corrupt(f"element_type_{element_type}", broken(element_type=element_type, format="bf16"))
    for field, values in {
        "tokens": (0, 65), "layer": (65536, 2**32 - 1), "kv_heads": (0, 1025), "head_dim": (0, 4097),
        "position": (1, 63, 2**31 - 63, 2**31, 2**63), "k_bytes": (0, 73, 2**32 - 1), "v_bytes": (0, 73),
        "plane_elements": (0, 3, 5, 2**32 - 1),
    }.items():  # fmt: skip
        for value in values:
            extra = {"plane_elements": 4} if field in ("tokens", "kv_heads", "head_dim") else {}
            corrupt(f"{field}_{value}", broken(**{field: value}, **extra))
    largest = {"kv_heads": 1024, "tokens": 64, "head_dim": 4096}
    corrupt("plane_elements_above_limit", broken(**largest))
    corrupt("plane_elements_wraps_to_0", broken(**largest, plane_elements=0))
    corrupt("lengths_exchanged", broken(k_bytes=7, v_bytes=10))
    corrupt("format_empty", broken(format=""))
    corrupt("format_upper_case", broken(format="BF16"))
    corrupt("format_digit_first", broken(format="8bit"))
    corrupt("format_after_zero", broken(format="bf16\0x"))
    corrupt("format_not_ascii", broken(format=b"bf16\xe9"))
    corrupt("format_of_other_type", broken(format="fp16"))
    corrupt("fp8_k_bytes_69", broken(element_type=FP8_E5M2, k_bytes=69))
    corrupt("codec_empty", broken(codec=""))
    corrupt("codec_blank", broken(codec="no ne"))
    corrupt("codec_last_byte_only", broken(codec=bytes(23) + b"n"))


# ---------------------------------------------------------------------------------------------------------------
# Coded planes.

def planes_header(count, codec, element_type=BF16):
    """A header for planes of `count` values: one head, as many tokens as divide it."""
    tokens = max(t for t in range(1, 65) if count % t == 0 and count // t <= 4096)
    return Header(codec=codec, element_type=element_type, tokens=tokens, head_dim=count // tokens)


def coded(k, v, element_type=BF16):
    header = planes_header(len(k), "splitzip", element_type)
    return [(header, splitzip(k, element_type), splitzip(v, element_type), k, v)]


def foreign(k_body, k, element_type=BF16):
    """A frame with a K body of somebody else's making; V as our encoder writes it."""
    return [(planes_header(len(k), "splitzip", element_type), k_body, splitzip(k, element_type), k, k)]


def fp8_values(rng, count, element_type):
    """Exponents around the middle, one in 128 anywhere."""
    rest_bits, low, window = (4, 5, 6) if element_type == FP8_E4M3 else (3, 9, 14)

    def exponent():
        return low + rng.randrange(window) if rng.getrandbits(7) else rng.getrandbits(7 - rest_bits + 1)

    return [
        rng.getrandbits(1) << 7 | exponent() << rest_bits - 1 | rng.getrandbits(rest_bits - 1)
        for _ in range(count)
    ]  # fmt: skip


FP8 = ((FP8_E4M3, "fp8_e4m3"), (FP8_E5M2, "fp8_e5m2"))


def make_valid_planes(out):
    rng = random.Random(2)

    def valid(name, frames):
        out.valid("codec", name, frames)

    few = kv_values(rng, 6)
    for element_type, name in ((BF16, "bf16"), (FP16, "fp16"), *FP8):
        k = few if element_type in (BF16, FP16) else [value & 255 for value in few]
        header, planes = planes_header(6, "none", element_type), (k, k[::-1])
        valid(f"none_{name}", [(header, *(values_to_bytes(plane, element_type) for plane in planes), *planes)])
    valid("splitzip_typical", coded(kv_values(rng, 2048), kv_values(rng, 2048)))
    valid("splitzip_fp16_is_raw", coded(kv_values(rng, 96), [0] * 96, FP16))
    valid("splitzip_noise_is_raw", coded([rng.getrandbits(16) for _ in range(384)], [rng.getrandbits(16)] * 384))
    valid("splitzip_248_values_are_raw", coded([0] * 248, kv_values(rng, 248)))
    valid("splitzip_249_values_are_coded", coded([0] * 249, with_exponents(rng, [120 + i % 16 for i in range(249)])))
    for count in (1, 255, 256, 383, 385, 511, 512, 513, 1025):
        valid(f"splitzip_{count}_values", coded(kv_values(rng, count), [0x8000] * count))
    ties = [100 + i % 20 for i in range(1280)]
    valid("splitzip_ties_go_to_the_smaller", coded(with_exponents(rng, ties), with_exponents(rng, ties[::-1])))
    # 16 exponents fill the codebook; one chunk has exactly 127 or 128 others.
    filled = [100 + i % 16 for i in range(1024)]
    edge = {count: filled + [200] * count + [110] * (256 - count) for count in (127, 128)}
    valid("splitzip_127_and_128_escapes", coded(*[with_exponents(rng, edge[c]) for c in (127, 128)]))
    # The last chunk is raw, short and odd; in V the middle one is.
    ends = filled * 3 + [rng.randrange(0, 100) for _ in range(195)]
    middle = filled + [rng.randrange(150, 250) for _ in range(256)] + (filled * 2)[256:] + [100] * 195
    valid("splitzip_raw_chunks", coded(with_exponents(rng, ends), with_exponents(rng, middle)))
    special = [0x0000, 0x8000, 0x0001, 0x807F, 0x7F80, 0xFF80, 0x7F81, 0x7FC0, 0xFFFF, 0x7FFF] * 32
    valid("splitzip_zeros_subnormals_infinities_nans", coded(special, special[::-1]))
    make_valid_fp8_planes(valid, rng)


def make_valid_fp8_planes(valid, rng):
    for element_type, name in FP8:
        for count in (2048, 1281, 1406, 1535):
            planes = [fp8_values(rng, count, element_type) for _ in range(2)]
            valid(f"splitzip_{name}_{count}_values", coded(*planes, element_type))
        noise = [[rng.getrandbits(8) for _ in range(2048)] for _ in range(2)]
        valid(f"splitzip_{name}_noise_is_raw", coded(*noise, element_type))
        # One raw chunk, which has exponents from outside the codebook only.
        rare = 0x7F if element_type == FP8_E4M3 else 0x7D
        plane = fp8_values(rng, 4096, element_type)
        plane[1024:1280] = [rare] * 256
        valid(f"splitzip_{name}_raw_chunk", coded(plane, [0x80] * 4096, element_type))


def make_foreign_planes(out):
    rng = random.Random(3)

    def valid(name, k_body, k, element_type=BF16):
        data = k_body if isinstance(k_body, bytes) else k_body.to_bytes()
        out.valid("codec", f"foreign_{name}", foreign(data, k, element_type))

    # Frames leave a coded plane 64 bytes to grow, so bodies that could be shorter need planes of some length.
    values = kv_values(rng, 2048)
    valid("coded_although_raw_is_shorter", coded_body(values[:128]), values[:128])
    valid("raw_although_coded_is_shorter", raw_body(values, BF16), values)
    valid("raw_chunk_without_need", coded_body(values[:2003], raw_chunks=(7,)), values[:2003])
    valid("escapes_that_are_in_the_codebook", coded_body(values, escape=(0, 1, 50, 255, 2047)), values)
    valid("escapes_for_a_fifth", coded_body(values, escape=range(1, 2048, 5)), values)
    poor = sorted(set(best_codebook(values)) - {124} | {255})
    valid("codebook_with_a_useless_entry", coded_body(values, codebook=poor), values)
    body = coded_body(values, escape=(7, 8))
    body.codes[7] = body.codes[8] = 15
    valid("codes_under_escapes", body, values)
    body = coded_body(values, raw_chunks=(0,))
    body.codes[:256] = [i % 16 for i in range(256)]
    valid("codes_in_a_raw_chunk", body, values)
    for element_type, name in FP8:
        for count in (2049, 2053, 2179):
            plane = fp8_values(rng, count, element_type)
            body = coded_body(plane, escape=(0, count - 1), element_type=element_type)
            valid(f"{name}_{count}_values", body, plane, element_type)
        plane = fp8_values(rng, 2053, element_type)
        body = coded_body(plane, raw_chunks=(8,), element_type=element_type)
        valid(f"{name}_short_raw_chunk", body, plane, element_type)


def small_body(**fields):
    """A right body of 2080 values with two escapes in the first chunk and one in the last, changed as told."""
    body = coded_body(SMALL, escape=(3, 90, 2048 + 31), codebook=list(range(118, 134)))
    assert body.counts == small_counts(2, 1)
    for name, value in fields.items():
        assert hasattr(body, name)
        setattr(body, name, value)
    return body.to_bytes()


def small_counts(first, last=1):
    return [first] + [0] * 7 + [last]


def small_table(first, last=(31,)):
    """Its escape table with other places in its chunks."""
    return [escape_words([120] * 256, first), escape_words([120] * 256, last)]


SMALL = with_exponents(random.Random(4), [120 + i % 7 for i in range(2080)])


def patched(body, at, value):
    return body[:at] + bytes([value]) + body[at + 1 :]


def make_refused_planes(out):
    def corrupt(name, k_body, k=SMALL, element_type=BF16):
        header = planes_header(len(k), "splitzip", element_type)
        out.refused("codec", "corrupt", name, frame(header, k_body, splitzip(k, element_type)))

    for name, length in (("short", 11), ("long", 13)):
        data = bytes(range(length))
        out.refused("codec", "corrupt", f"none_{name}", frame(planes_header(6, "none"), data, bytes(12)))
    # Only slabs of values have planes.
    codes = Header(flags=3, format="int8:sym=1", codec="splitzip", tokens=64, head_dim=64)
    out.refused("codec", "corrupt", "sealed_codes", frame(codes, *[splitzip(SMALL, BF16)] * 2))
    v_broken = frame(planes_header(2080, "splitzip"), splitzip(SMALL, BF16), small_body(mode=2))
    out.refused("codec", "corrupt", "splitzip_v_plane", v_broken)
    good = small_body()
    corrupt("splitzip_truncated_prefix", good[:15])
    corrupt("splitzip_prefix_only", good[:16])
    corrupt("splitzip_last_byte_missing", good[:-1])
    corrupt("splitzip_last_line_missing", good[:-64])
    corrupt("splitzip_trailing_byte", good + bytes(1))
    corrupt("splitzip_trailing_line", good + bytes(64))
    corrupt("splitzip_raw_trailing_row", raw_body(SMALL, BF16) + bytes(16))
    corrupt("splitzip_mode_2", small_body(mode=2))
    corrupt("splitzip_element_type_0", patched(good, 2, 0))
    corrupt("splitzip_element_type_of_fp16", patched(good, 2, FP16))
    corrupt("splitzip_raw_of_fp16", raw_body(SMALL, FP16))
    corrupt("splitzip_coded_fp16", patched(good, 2, FP16), SMALL, FP16)
    corrupt("splitzip_reserved_byte", small_body(reserved=1))
    corrupt("splitzip_reserved_12", small_body(reserved_12=1))
    corrupt("splitzip_elements_2079", small_body(elements=2079))
    corrupt("splitzip_elements_2081", small_body(elements=2081))
    corrupt("splitzip_table_words_2081", small_body(table_words=2081))
    corrupt("splitzip_table_words_4294967295", small_body(table_words=2**32 - 1))
    corrupt("splitzip_table_words_2", small_body(table_words=2))
    corrupt("splitzip_table_words_4", small_body(table_words=4))
    corrupt("splitzip_count_1", small_body(counts=small_counts(1, 1)))
    corrupt("splitzip_count_3", small_body(counts=small_counts(3, 1)))
    corrupt("splitzip_count_128", small_body(counts=small_counts(128, 1), tables=small_table(range(128))))
    corrupt("splitzip_count_254", small_body(counts=small_counts(254, 1), tables=small_table(range(254))))
    corrupt("splitzip_count_255_without_exponents", small_body(counts=small_counts(255, 1)))
    other_chunk = small_body(counts=small_counts(1, 255), tables=small_table([]) + [bytes(256)])
    corrupt("splitzip_exponents_of_another_chunk", other_chunk)
    corrupt("splitzip_counts_sum_wraps", small_body(counts=small_counts(127, 127), tables=small_table([0])))
    corrupt("splitzip_places_equal", small_body(tables=small_table([3, 3])))
    corrupt("splitzip_places_descending", small_body(tables=small_table([90, 3])))
    corrupt("splitzip_place_behind_short_chunk", small_body(tables=small_table([3, 90], [32])))
    corrupt("splitzip_place_255_of_short_chunk", small_body(tables=small_table([3, 90], [255])))
    corrupt("splitzip_codebook_equal", small_body(codebook=[118] + list(range(118, 133))))
    corrupt("splitzip_codebook_descending", small_body(codebook=list(range(133, 117, -1))))
    raw = raw_body(SMALL[:2078], BF16)
    corrupt("splitzip_raw_padding", patched(raw, len(raw) - 1, 1), SMALL[:2078])
    corrupt("splitzip_raw_with_table_words", patched(raw_body(SMALL, BF16), 8, 1))
    make_refused_padding(corrupt)
    make_refused_fp8(corrupt)
    out.refused("codec", "unsupported", "splitzip_version_2",
                frame(planes_header(2080, "splitzip"), small_body(version=2), small_body()))
    for name, names in (("codec", {"codec": "splitzap"}), ("format", {"format": "fp9"})):
        out.refused("codec", "unsupported", f"unknown_{name}", broken(**names))


def make_refused_padding(corrupt):
    """2079 values: a gap behind every section, and a short group of 31 with an unused nibble."""
    odd = SMALL[:2079]
    body = coded_body(odd, codebook=list(range(118, 134)))
    good = body.to_bytes()
    rests = 64 + 1088
    counts = rests + 2112
    assert len(good) == counts + 64 and not any(body.counts)
    for name, at in {
        "codebook": 32, "codebook_end": 63, "nibbles": 64 + 1040, "nibbles_end": rests - 1,
        "rests": rests + 2079, "rests_end": counts - 1, "counts": counts + 9, "table": counts + 10,
        "table_end": counts + 63,
    }.items():  # fmt: skip
        corrupt(f"splitzip_padding_behind_{name}", patched(good, at, 1), odd)
    last = 64 + 1039
    corrupt("splitzip_nibble_of_no_place", patched(good, last, good[last] | 16), odd)
    body = coded_body(odd, raw_chunks=(8,))
    good = body.to_bytes()
    corrupt("splitzip_byte_behind_odd_raw_chunk", patched(good, counts + 10 + 31, 1), odd)


def make_refused_fp8(corrupt):
    for element_type, name in FP8:
        exponent_limit, entries = (16, 8) if element_type == FP8_E4M3 else (32, 16)
        plane = fp8_values(random.Random(5), 4101, element_type)

        def body(change, raw_chunks=(), plane=plane, element_type=element_type):
            made = coded_body(plane, escape=(4100,), raw_chunks=raw_chunks, element_type=element_type)
            change(made)
            return made.to_bytes()

        def refuse(case, data, plane=plane, element_type=element_type, name=name):
            corrupt(f"splitzip_{name}_{case}", data, plane, element_type)

        def high_codebook(made, limit=exponent_limit):
            made.codebook[-1] = limit

        def high_escape(made, limit=exponent_limit):
            made.tables[-1] = escape_words([limit] * 5, [4])

        def high_raw(made, limit=exponent_limit):
            made.tables[0] = bytes(255) + bytes([limit])

        refuse("codebook_out_of_range", body(high_codebook))
        refuse("escape_out_of_range", body(high_escape))
        refuse("raw_exponent_out_of_range", body(high_raw, (0,)))
        # The last group has five values: three bytes of nibbles, two of pairs, one of bits.
        good = body(lambda made: None)
        nibbles, pairs, bits = 64 + 2050, 64 + 2112 + 1025, 64 + 2112 + 1088 + 512
        refuse("nibble_of_no_place", patched(good, nibbles, good[nibbles] | 16))
        refuse("pair_of_no_place", patched(good, pairs, good[pairs] | 64))
        refuse("bit_of_no_place", patched(good, bits, good[bits] | 128))
        if entries == 8:
            refuse("codebook_of_16", patched(good, 31, 15))


def make(directory):
    out = Out(directory)
    make_valid_frames(out)
    make_sealed_frames(out)
    make_refused_frames(out)
    make_valid_planes(out)
    make_foreign_planes(out)
    make_refused_planes(out)
    channel.make_valid(out)
    channel.make_refused(out)
    messages.make_valid(out.write)
    messages.make_refused(out.write)
    tensor_files.make_valid(out.write)
    tensor_files.make_refused(out.write)
    extents.make(out.write)
    linear.make(out.write, slab_linear.open_slab)
    hack.make(out.write, slab_hack.open_slab)
    slabs.make(out, random.Random(20261122))
    zack.make(out.write, slab_zack.open_slab)
    zack_kvquant.make(out.write, slab_zack_kvquant.open_slab)


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent)
