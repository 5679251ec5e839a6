"""Makes the golden files beside it: frames and messages that every reader accepts or refuses, forever.

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
import messages
from writer import BF16, FP16, MAGIC, Header, best_codebook, coded_body, frame, raw_body, splitzip, values_to_bytes


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
        planes = [plane for *_, k, v in frames for plane in (k, v)]
        if None not in planes:
            self.write(f"{kind}/valid/{name}.planes", b"".join(map(values_to_bytes, planes)))

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


def make_refused_frames(out):
    def corrupt(name, data):
        out.refused("frame", "corrupt", name, data)

    def unsupported(name, data):
        out.refused("frame", "unsupported", name, data)

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
    unsupported("flag_1", broken(flags=3))
    unsupported("flag_31", broken(flags=1 | 1 << 31))
    unsupported("reserved_121", broken(reserved_121=1))
    unsupported("reserved_156", broken(reserved_156=1 << 31))
    unsupported("reserved_168", broken(reserved_168=b"\1" + bytes(15)))
    unsupported("reserved_183", broken(reserved_168=bytes(15) + b"\x80"))
    for element_type in (0, 1, 4, 255):
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


def foreign(k_body, k, v=None):
    """A frame with a K body of somebody else's making; V as our encoder writes it."""
    v = k if v is None else v
    return [(planes_header(len(k), "splitzip"), k_body, splitzip(v, BF16), k, v)]


def make_valid_planes(out):
    rng = random.Random(2)

    def valid(name, frames):
        out.valid("codec", name, frames)

    few = kv_values(rng, 6)
    for element_type, name in ((BF16, "bf16"), (FP16, "fp16")):
        header = planes_header(6, "none", element_type)
        valid(f"none_{name}", [(header, values_to_bytes(few), values_to_bytes(few[::-1]), few, few[::-1])])
    valid("splitzip_typical", coded(kv_values(rng, 2048), kv_values(rng, 2048)))
    valid("splitzip_fp16_is_raw", coded(kv_values(rng, 96), [0] * 96, FP16))
    valid("splitzip_noise_is_raw", coded([rng.getrandbits(16) for _ in range(96)], [rng.getrandbits(16)] * 96))
    valid("splitzip_88_values_are_raw", coded([0] * 88, kv_values(rng, 88)))
    valid("splitzip_89_values_are_coded", coded([0] * 89, with_exponents(rng, [120 + i % 16 for i in range(89)])))
    for count in (1, 1023, 1024, 1025):
        valid(f"splitzip_{count}_values", coded(kv_values(rng, count), [0x8000] * count))
    ties = [100 + i % 20 for i in range(1280)]
    valid("splitzip_ties_go_to_the_smaller", coded(with_exponents(rng, ties), with_exponents(rng, ties[::-1])))
    # 16 exponents fill the codebook; one chunk has exactly 255 or 256 others.
    filled = [100 + i % 16 for i in range(1024)]
    edge = {count: filled + [200] * count + [110] * (1024 - count) for count in (255, 256)}
    valid("splitzip_255_and_256_escapes", coded(*[with_exponents(rng, edge[c]) for c in (255, 256)]))
    # The last chunk is raw and short; in V the middle one is.
    ends = filled * 3 + [rng.randrange(0, 100) for _ in range(300)]
    middle = filled + [rng.randrange(150, 250) for _ in range(1024)] + filled + [100] * 300
    valid("splitzip_raw_chunks", coded(with_exponents(rng, ends), with_exponents(rng, middle)))
    special = [0x0000, 0x8000, 0x0001, 0x807F, 0x7F80, 0xFF80, 0x7F81, 0x7FC0, 0xFFFF, 0x7FFF] * 16
    valid("splitzip_zeros_subnormals_infinities_nans", coded(special, special[::-1]))


def make_foreign_planes(out):
    rng = random.Random(3)

    def valid(name, k_body, k):
        data = k_body if isinstance(k_body, bytes) else k_body.to_bytes()
        out.valid("codec", f"foreign_{name}", foreign(data, k))

    nine = [0x3F80, 0xC000, 0x0000, 0x3FC0, 0x7F80, 0x3F00, 0xBF80, 0x4049, 0x7FC1]
    valid("coded_although_raw_is_shorter", coded_body(nine), nine)
    values = kv_values(rng, 96)
    valid("raw_although_coded_is_shorter", raw_body(values, BF16), values)
    valid("raw_chunk_without_need", coded_body(values[:32], raw_chunks=(0,)), values[:32])
    valid("escapes_that_are_in_the_codebook", coded_body(values, escape=(0, 1, 50, 95)), values)
    valid("escapes_for_a_quarter", coded_body(values, escape=range(1, 96, 4)), values)
    poor = sorted(set(best_codebook(values)) - {124} | {255})
    valid("codebook_with_a_useless_entry", coded_body(values, codebook=poor), values)
    body = coded_body(values, escape=(7, 8))
    body.codes[7] = body.codes[8] = 15
    valid("codes_under_escapes", body, values)
    body = coded_body(values[:32], raw_chunks=(0,))
    body.codes = [i % 16 for i in range(32)]
    valid("codes_in_a_raw_chunk", body, values[:32])


def small_body(**fields):
    """A right body of 96 values with two escapes, changed as told."""
    body = coded_body(SMALL, escape=(3, 90), codebook=list(range(118, 134)))
    assert body.counts == [2]
    for name, value in fields.items():
        assert hasattr(body, name)
        setattr(body, name, value)
    return body.to_bytes()


SMALL = with_exponents(random.Random(4), [120 + i % 7 for i in range(96)])


def make_refused_planes(out):
    def corrupt(name, k_body, k=SMALL):
        out.refused("codec", "corrupt", name, frame(planes_header(len(k), "splitzip"), k_body, splitzip(k, BF16)))

    def patched(body, at, value):
        return body[:at] + bytes([value]) + body[at + 1 :]

    for name, length in (("short", 11), ("long", 13)):
        data = bytes(range(length))
        out.refused("codec", "corrupt", f"none_{name}", frame(planes_header(6, "none"), data, bytes(12)))
    v_broken = frame(planes_header(96, "splitzip"), splitzip(SMALL, BF16), small_body(mode=2))
    out.refused("codec", "corrupt", "splitzip_v_plane", v_broken)
    good = small_body()
    corrupt("splitzip_truncated_prefix", good[:15])
    corrupt("splitzip_prefix_only", good[:16])
    corrupt("splitzip_last_byte_missing", good[:-1])
    corrupt("splitzip_last_row_missing", good[:-16])
    corrupt("splitzip_trailing_byte", good + bytes(1))
    corrupt("splitzip_trailing_row", good + bytes(16))
    corrupt("splitzip_mode_2", small_body(mode=2))
    corrupt("splitzip_element_type_0", small_body(element_type=0))
    corrupt("splitzip_element_type_of_fp16", small_body(element_type=FP16))
    corrupt("splitzip_raw_of_fp16", raw_body(SMALL, FP16))
    corrupt("splitzip_reserved_byte", small_body(reserved=1))
    corrupt("splitzip_elements_95", small_body(elements=95))
    corrupt("splitzip_elements_97", small_body(elements=97))
    corrupt("splitzip_escapes_97", small_body(escapes=97))
    corrupt("splitzip_escapes_4294967295", small_body(escapes=2**32 - 1))
    corrupt("splitzip_escapes_1", small_body(escapes=1))
    corrupt("splitzip_escapes_3", small_body(escapes=3))
    corrupt("splitzip_raw_exponents_1", small_body(raw_exponent_count=1))
    corrupt("splitzip_raw_exponents_4294967295", small_body(raw_exponent_count=2**32 - 1))
    corrupt("splitzip_count_1", small_body(counts=[1]))
    corrupt("splitzip_count_3", small_body(counts=[3]))
    corrupt("splitzip_count_65535_without_exponents", small_body(counts=[65535]))
    corrupt("splitzip_positions_equal", small_body(positions=[3, 3]))
    corrupt("splitzip_positions_descending", small_body(positions=[90, 3]))
    corrupt("splitzip_position_behind_short_chunk", small_body(positions=[3, 96]))
    corrupt("splitzip_position_65535", small_body(positions=[3, 65535]))
    corrupt("splitzip_codebook_equal", small_body(codebook=[118] + list(range(118, 133))))
    corrupt("splitzip_codebook_descending", small_body(codebook=list(range(133, 117, -1))))
    corrupt("splitzip_tables_padding", patched(good, len(good) - 1, 1))
    raw = raw_body(SMALL[:90], BF16)
    corrupt("splitzip_raw_padding", patched(raw, len(raw) - 1, 1), SMALL[:90])
    even = coded_body(SMALL[:90]).to_bytes()
    corrupt("splitzip_codes_padding", patched(even, 32 + 47, 1), SMALL[:90])
    odd = coded_body(SMALL[:89]).to_bytes()
    corrupt("splitzip_code_behind_last_value", patched(odd, 32 + 44, odd[32 + 44] | 1), SMALL[:89])
    corrupt("splitzip_sign_mantissa_padding", patched(odd, 32 + 48 + 89, 128), SMALL[:89])
    corrupt("splitzip_raw_with_escapes", patched(raw_body(SMALL, BF16), 8, 1))
    corrupt("splitzip_raw_with_raw_exponents", patched(raw_body(SMALL, BF16), 12, 1))
    make_refused_chunks(corrupt)
    unsupported = small_body(version=2)
    out.refused("codec", "unsupported", "splitzip_version_2",
                frame(planes_header(96, "splitzip"), unsupported, small_body()))
    for name, names in (("codec", {"codec": "splitzap"}), ("format", {"format": "fp8_e5m2"})):
        out.refused("codec", "unsupported", f"unknown_{name}", broken(**names))


def make_refused_chunks(corrupt):
    """Tables of bodies with more than one chunk."""
    long = with_exponents(random.Random(5), [120 + i % 7 for i in range(2040)])

    def body(**fields):
        made = coded_body(long, escape=tuple(range(300)))
        assert made.counts == [65535, 0] and len(made.raw_exponents) == 1024
        for name, value in fields.items():
            setattr(made, name, value)
        return made.to_bytes()

    corrupt("splitzip_count_256", body(counts=[256, 0], positions=list(range(256)), values=[120] * 256,
                                       raw_exponents=[]), long)
    corrupt("splitzip_count_65534", body(counts=[65534, 0]), long)
    corrupt("splitzip_raw_exponents_of_other_chunk", body(counts=[0, 65535]), long)
    corrupt("splitzip_raw_exponents_of_one_chunk_more", body(counts=[65535, 65535]), long)
    corrupt("splitzip_raw_exponents_of_no_chunk", body(counts=[0, 0]), long)
    corrupt("splitzip_counts_sum_wraps", body(counts=[255, 2], positions=[1], values=[120], raw_exponents=[]), long)
    corrupt("splitzip_position_in_next_chunk",
            body(counts=[1, 0], positions=[1024], values=[120], raw_exponents=[]), long)


def make(directory):
    out = Out(directory)
    make_valid_frames(out)
    make_refused_frames(out)
    make_valid_planes(out)
    make_foreign_planes(out)
    make_refused_planes(out)
    channel.make_valid(out)
    channel.make_refused(out)
    messages.make_valid(out.write)
    messages.make_refused(out.write)


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent)
