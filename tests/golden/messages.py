"""The golden messages of spec/transfer.md, right ones and wrong ones, for make.py.

An encoder of its own: the expectation beside each valid message is what went into it.
SPDX-License-Identifier: Apache-2.0
"""

import json
import struct

from writer import Header, frame, values_to_bytes, xxh3_64

ID = bytes(range(1, 17))
NO_ID = bytes(16)
NAMES = "? HELLO HELLO_ACK REJECT BEGIN SLAB END MISSING DONE FETCH ERROR WAIT".split()
HELLO, HELLO_ACK, REJECT, BEGIN, SLAB, END, MISSING, DONE, FETCH, ERROR, WAIT = range(1, 12)
FLOAT_MAX = 3.4028234663852886e38


def message(kind, body=b"", transfer=ID, **fields):
    """A message; an object becomes a JSON body. Any field can be set to a wrong value."""
    if not isinstance(body, bytes):
        body = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    head = {"magic": b"\x8bKVM", "version": 1, "type": kind, "zero": 0, "body_bytes": len(body), "zeros": 0,
            "transfer": transfer, "body_checksum": 0 if kind == SLAB else xxh3_64(body)}  # fmt: skip
    header_checksum = fields.pop("header_checksum", None)
    assert not set(fields) - set(head)
    checked = struct.pack("<4sHBBII16sQ", *(head | fields).values())
    return checked + struct.pack("<Q", header_checksum or xxh3_64(checked)) + body


WORKER = {"engine": "worker-1", "host": "::1", "port": 4711, "model": "5c" * 32, "format": "bf16",
          "codecs": ["none", "splitzip"], "capabilities": {}}  # fmt: skip
BEGINNING = {"tokens": 100, "layers": 2, "format": "bf16", "codec": "splitzip"}
ENDING = {"round": 0, "first": [{"token": 17}], "seed": 7, "raw_bytes": 1000, "shipped_bytes": 700,
          "since_begin": 0.75, "durations": {"prefill": 0.5, "wait_for_memory": 3.25}}  # fmt: skip
FULL_TOP = [[-(2**31) + i, -FLOAT_MAX] for i in range(20)]
SLAB_HEADER = Header(layer=1, tokens=2, head_dim=2, position=64)
SLAB_FRAME = frame(SLAB_HEADER, values_to_bytes([1, 2, 3, 4]), values_to_bytes([5, 6, 7, 8]))


def without(body, name):
    return {key: value for key, value in body.items() if key != name}


def make_valid(write):
    def valid(name, *parts):
        """Each part is (type, body as sent, body as read, id)."""
        data = b"".join(message(kind, body, transfer) for kind, body, _, transfer in parts)
        read = [{"type": NAMES[k], "transfer": i.hex(), "body": body} for k, _, body, i in parts]
        write(f"message/valid/{name}.message", data)
        write(f"message/valid/{name}.json", json.dumps(read).encode() + b"\n")

    def same(name, kind, body, transfer=ID):
        valid(name, (kind, body, without(body, "capabilities"), transfer))

    same("hello", HELLO, WORKER, NO_ID)
    same("hello_ack", HELLO_ACK, WORKER | {"engine": "w" * 64, "host": "", "port": 0, "codecs": ["n"] * 32}, NO_ID)
    later = WORKER | {"capabilities": {"tls": True}, "later": {"more": [1]}}
    valid("hello_with_more", (HELLO, later, without(WORKER, "capabilities"), NO_ID))
    same("hello_with_tables", HELLO, WORKER | {"format": "cachegen:form=paper", "tables": "00c0ffee00c0ffee"}, NO_ID)
    same("reject", REJECT, {"code": "invalid_argument", "message": "another model"}, NO_ID)
    same("error_of_link", ERROR, {"code": "corrupt", "message": ""}, NO_ID)
    same("error_of_transfer", ERROR, {"code": "exhausted", "message": "no room: \u00fc\u20ac"})
    unknown = {"code": "gone_fishing", "message": "x" * 4097}
    valid("error_cut_off", (ERROR, unknown, {"code": "internal", "message": "x" * 4096}, ID))
    same("begin", BEGIN, BEGINNING)
    same("begin_largest", BEGIN, {"tokens": 4194304, "layers": 64, "format": "z" * 96, "codec": "s" * 24})
    same("begin_of_a_prompt", BEGIN, BEGINNING | {"prompt": "0a1b" * 16})
    valid("slab", (SLAB, SLAB_FRAME, {"frame": SLAB_HEADER.to_json()}, ID))
    valid("slab_that_is_no_frame", (SLAB, b"no frame", {"refused": "corrupt"}, ID))
    same("end", END, ENDING)
    logprob = {"token": 5, "logprob": -0.5, "top": [[5, -0.5], [9, -1.25]]}
    same("end_of_three_answers", END, ENDING | {"first": [logprob, {"token": -1}, logprob | {"token": 0}]})
    largest = {"token": 2**31 - 1, "logprob": FLOAT_MAX, "top": FULL_TOP}
    most = {"round": 2**32 - 1, "first": [largest] * 128, "seed": 2**64 - 1, "raw_bytes": 2**64 - 1,
            "shipped_bytes": 2**64 - 1, "since_begin": 0,
            "durations": {f"{i:064}": 1.5 for i in range(64)}}  # fmt: skip
    same("end_largest", END, most)
    empty_top = [{"token": 1, "top": []}]
    valid("end_with_empty_top", (END, ENDING | {"first": empty_top}, ENDING | {"first": [{"token": 1}]}, ID))
    valid("missing", (MISSING, struct.pack("<6I", 4, 2, 0, 1, 1, 0), {"round": 4, "slabs": [[0, 1], [1, 0]]}, ID))
    valid("missing_nothing", (MISSING, bytes(8), {"round": 0, "slabs": []}, ID))
    same("done", DONE, {"durations": {"transfer": 0.5}})
    valid("fetch", (FETCH, b"", {}, ID))
    valid("wait", (WAIT, b"", {}, ID))
    valid("a_sender_that_is_held", (BEGIN, BEGINNING, BEGINNING, ID), (BEGIN, BEGINNING, BEGINNING, ID),
          (SLAB, SLAB_FRAME, {"frame": SLAB_HEADER.to_json()}, ID), (END, ENDING, ENDING, ID))  # fmt: skip


def make_refused(write):
    def corrupt(name, data):
        write(f"message/corrupt/{name}.message", data)

    def unsupported(name, data):
        write(f"message/unsupported/{name}.message", data)

    good = message(BEGIN, BEGINNING)
    for name, length in {"empty_file": 0, "truncated_magic": 3, "truncated_version": 5, "truncated_header": 47,
                         "missing_body": 48, "truncated_body": len(good) - 1}.items():  # fmt: skip
        corrupt(name, good[:length])
    corrupt("trailing_byte", good + b"\0")
    corrupt("magic_of_a_frame", message(BEGIN, BEGINNING, magic=b"\x8bKVL"))
    corrupt("text", b"GET / HTTP/1.1\r\n\r\n")
    unsupported("version_0", message(BEGIN, BEGINNING, version=0))
    unsupported("version_2", message(BEGIN, BEGINNING, version=2))
    corrupt("header_checksum_wrong", message(BEGIN, BEGINNING, header_checksum=1))
    corrupt("body_checksum_wrong", message(BEGIN, BEGINNING, body_checksum=1))
    corrupt("slab_with_body_checksum", message(SLAB, SLAB_FRAME, body_checksum=xxh3_64(SLAB_FRAME)))
    unsupported("reserved_byte", message(BEGIN, BEGINNING, zero=1))
    unsupported("reserved_word", message(BEGIN, BEGINNING, zeros=1 << 31))
    for kind in (0, 12, 255):
        unsupported(f"type_{kind}", message(kind, b""))
    for kind, most in {BEGIN: 65536, END: 262144, SLAB: 67108864, FETCH: 0, WAIT: 0, MISSING: 65536}.items():
        corrupt(f"{NAMES[kind].lower()}_too_long", message(kind, b"", body_bytes=most + 1))
    corrupt("wait_with_a_body", message(WAIT, b"{}"))
    corrupt("wait_without_transfer", message(WAIT, b"", NO_ID))
    corrupt("begin_without_transfer", message(BEGIN, BEGINNING, NO_ID))
    corrupt("hello_with_transfer", message(HELLO, WORKER))
    for name, body in {
        "empty": b"", "null": b"null", "array": b"[1]", "open": b"{", "bad_utf8": b'{"a":"\xff"}', "nan": b'{"a":NaN}',
        "byte_order_mark": b"\xef\xbb\xbf" + good[48:], "two_objects": good[48:] * 2, "deep": b"[" * 60000,
        "lone_surrogate": b'{"a":"\\ud800"}',
    }.items():  # fmt: skip
        corrupt(f"json_{name}", message(BEGIN, body))
    for name, body in {
        "shorter_than_its_prefix": bytes(7), "count_wrong": struct.pack("<4I", 1, 2, 0, 0),
        "odd_bytes": struct.pack("<4I", 1, 1, 0, 0) + b"\0",
        "count_8001": struct.pack("<II", 1, 8001) + bytes(8 * 8001),
        "count_wraps": struct.pack("<II", 1, 1 << 29),
    }.items():  # fmt: skip
        corrupt(f"missing_{name}", message(MISSING, body))
    make_refused_members(corrupt)


def make_refused_members(corrupt):
    def wrong(kind, body, transfer, values):
        for name in without(body, "capabilities"):
            corrupt(f"{NAMES[kind].lower()}_without_{name}", message(kind, without(body, name), transfer))
        for number, (name, value) in enumerate(values):
            corrupt(f"{NAMES[kind].lower()}_{name}_{number}", message(kind, body | {name: value}, transfer))

    wrong(HELLO, WORKER, NO_ID, [
        ("engine", ""), ("engine", "e" * 65), ("engine", 7), ("host", "h" * 256), ("port", -1), ("port", 65536),
        ("port", 1.5), ("port", True), ("model", "5c"), ("model", "X" * 64), ("format", "BF 16"), ("format", "f" * 129),
        ("codecs", []), ("codecs", ["none", ""]), ("codecs", ["none", 3]), ("codecs", ["none"] * 33),
        ("capabilities", "all"), ("tables", "5c"), ("tables", "00C0FFEE00C0FFEE"), ("tables", 7),
    ])  # fmt: skip
    wrong(BEGIN, BEGINNING, ID, [
        ("tokens", 0), ("tokens", 4194305), ("tokens", 1.0), ("layers", 0), ("layers", 4097), ("format", "9"),
        ("codec", "c" * 25), ("prompt", "5c"), ("prompt", "5C" * 32), ("prompt", 7),
    ])  # fmt: skip
    corrupt("begin_too_many_slabs", message(BEGIN, BEGINNING | {"tokens": 4194304, "layers": 65}))
    wrong(END, ENDING, ID, [
        ("round", -1), ("round", 2**32), ("first", {}), ("first", []), ("first", [17]), ("first", [{"token": 1}] * 129),
        ("first", [{}]), ("first", [{"token": 2**31}]), ("first", [{"token": -(2**31) - 1}]),
        ("first", [{"token": 1.0}]),
        ("first", [{"token": 1, "logprob": None}]), ("first", [{"token": 1, "logprob": -3.5e38}]),
        ("first", [{"token": 1, "top": {}}]), ("first", [{"token": 1, "top": [[1]]}]),
        ("first", [{"token": 1, "top": [[1, "-1"]]}]), ("first", [{"token": 1, "top": [[2**31, -1]]}]),
        ("first", [{"token": 1, "top": FULL_TOP + [[1, -1]]}]), ("seed", -1), ("seed", 2**64), ("raw_bytes", "1"),
        ("shipped_bytes", None), ("since_begin", -0.5), ("durations", []), ("durations", {"prefill": -1}),
        ("durations", {"prefill": "1"}), ("durations", {"": 1}), ("durations", {"d" * 65: 1}),
        ("durations", {str(i): 1 for i in range(65)}),
    ])  # fmt: skip
    wrong(DONE, {"durations": {}}, ID, [("durations", 1)])
    wrong(ERROR, {"code": "corrupt", "message": "m"}, ID, [("code", 1), ("message", None)])
