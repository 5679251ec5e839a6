"""Reader of messages between kvlane workers, version 1, written from spec/transfer.md alone.

SPDX-License-Identifier: Apache-2.0
"""

import json
import math
import re
import struct

import frame
from refusal import Refusal, corrupt, unsupported
from xxh3 import xxh3_64

MAGIC = bytes.fromhex("8B4B564D")
VERSION = 1
HEADER = struct.Struct("<4sHBBII16sQQ")
HEADER_BYTES = HEADER.size
CHECKED_HEADER_BYTES = 40
assert HEADER_BYTES == 48

# Section 3.
TYPES = {1: "HELLO", 2: "HELLO_ACK", 3: "REJECT", 4: "BEGIN", 5: "SLAB", 6: "END", 7: "MISSING", 8: "DONE",
         9: "FETCH", 10: "ERROR", 11: "WAIT"}  # fmt: skip
BODY_BYTES_MAX = {"SLAB": 64 << 20, "END": 256 << 10, "FETCH": 0, "WAIT": 0}
CONTROL_BODY_BYTES_MAX = 64 << 10
ABOUT_LINK = ("HELLO", "HELLO_ACK", "REJECT")
CODES = ("invalid_argument not_found corrupt unsupported exhausted unavailable timeout aborted internal").split()
BLOCK_TOKENS = 64
SLABS_MAX = 4194304
TOKENS_MAX = 4194304
MISSING_MAX = 8000
FIRST_MAX = 128
TOP_MAX = 20
FLOAT_MAX = 3.4028234663852886e38
NAME = re.compile(r"[a-z][a-z0-9_:=,.+-]*")


def _member(body, name):
    if name not in body:
        raise corrupt(f"{name} is missing")
    return body[name]


def _is_integer(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _integer(value, name, low, high):
    if not _is_integer(value) or not low <= value <= high:
        raise corrupt(f"{name} is {value!r}, not an integer from {low} to {high}")
    return value


def _text(body, name, low, high):
    value = _member(body, name)
    if not isinstance(value, str) or not low <= len(value.encode()) <= high:
        raise corrupt(f"{name} is not a text of {low} to {high} bytes")
    return value


def _name(value, name, bytes_max):
    if not isinstance(value, str) or len(value) > bytes_max or not NAME.fullmatch(value):
        raise corrupt(f"{name} is {value!r}, not a name")
    return value


def _array(body, name, low, high):
    value = _member(body, name)
    if not isinstance(value, list) or not low <= len(value) <= high:
        raise corrupt(f"{name} is not an array of {low} to {high}")
    return value


def _number(value, name, low, high):
    if not (_is_integer(value) or isinstance(value, float)) or not low <= value <= high or math.isinf(value):
        raise corrupt(f"{name} is {value!r}, out of range")
    return value


def _seconds(value, name):
    return _number(value, name, 0, math.inf)


def _durations(body):
    durations = _member(body, "durations")
    if not isinstance(durations, dict) or len(durations) > 64:
        raise corrupt("durations is not an object of at most 64")
    if not all(1 <= len(name.encode()) <= 64 for name in durations):
        raise corrupt("the name of a duration has not 1 to 64 bytes")
    return {name: _seconds(seconds, name) for name, seconds in durations.items()}


def _hex(body, name, digits):
    text = _text(body, name, digits, digits)
    if not re.fullmatch("[0-9a-f]+", text):
        raise corrupt(f"{name} is not {digits} hexadecimal digits")
    return text


def _worker(body):
    port = _integer(_member(body, "port"), "port", 0, 65535)
    model = _hex(body, "model", 64)
    codecs = [_name(codec, "codecs", 24) for codec in _array(body, "codecs", 1, 32)]
    if not isinstance(_member(body, "capabilities"), dict):
        raise corrupt("capabilities is not an object")
    tables = {"tables": _hex(body, "tables", 16)} if "tables" in body else {}
    return {"engine": _text(body, "engine", 1, 64), "host": _text(body, "host", 0, 255), "port": port, "model": model,
            "format": _name(_member(body, "format"), "format", 128), "codecs": codecs} | tables  # fmt: skip


def _error(body):
    code = _text(body, "code", 0, 64)
    message = _text(body, "message", 0, CONTROL_BODY_BYTES_MAX)
    message = message.encode()[:4096].decode(errors="ignore")
    return {"code": code if code in CODES else "internal", "message": message}


def _begin(body):
    tokens = _integer(_member(body, "tokens"), "tokens", 1, TOKENS_MAX)
    layers = _integer(_member(body, "layers"), "layers", 1, 4096)
    if layers * -(-tokens // BLOCK_TOKENS) > SLABS_MAX:
        raise corrupt(f"{tokens} tokens in {layers} layers are too many slabs")
    begin = {"tokens": tokens, "layers": layers, "format": _name(_member(body, "format"), "format", 128),
             "codec": _name(_member(body, "codec"), "codec", 24)}  # fmt: skip
    return begin | ({"prompt": _hex(body, "prompt", 64)} if "prompt" in body else {})


def _token(value):
    return _integer(value, "token", -(2**31), 2**31 - 1)


def _logprob(value):
    return _number(value, "logprob", -FLOAT_MAX, FLOAT_MAX)


def _first(first):
    if not isinstance(first, dict):
        raise corrupt("a first token is not an object")
    read = {"token": _token(_member(first, "token"))}
    if "logprob" in first:
        read["logprob"] = _logprob(first["logprob"])
    if "top" in first:
        pairs = _array(first, "top", 0, TOP_MAX)
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise corrupt("top does not consist of pairs")
        if pairs:
            read["top"] = [[_token(token), _logprob(logprob)] for token, logprob in pairs]
    return read


def _end(body):
    read = {"round": _integer(_member(body, "round"), "round", 0, 2**32 - 1)}
    read["first"] = [_first(first) for first in _array(body, "first", 1, FIRST_MAX)]
    for name in ("seed", "raw_bytes", "shipped_bytes"):
        read[name] = _integer(_member(body, name), name, 0, 2**64 - 1)
    if "cached_tokens" in body:
        read["cached_tokens"] = _integer(body["cached_tokens"], "cached_tokens", 0, TOKENS_MAX)
    read["since_begin"] = _seconds(_member(body, "since_begin"), "since_begin")
    return read | {"durations": _durations(body)}


def _done(body):
    return {"durations": _durations(body)}


JSON_BODIES = {"HELLO": _worker, "HELLO_ACK": _worker, "REJECT": _error, "BEGIN": _begin, "END": _end, "DONE": _done,
               "ERROR": _error}  # fmt: skip


def _not_a_number(text):
    raise ValueError(f"{text} is no JSON")


def _finite(text):
    value = float(text)
    if math.isinf(value):
        _not_a_number(text)
    return value


def _json_object(data):
    try:
        # From text, not from bytes: those may begin with a byte order mark.
        body = json.loads(bytes(data).decode(), parse_float=_finite, parse_constant=_not_a_number)
        json.dumps(body, ensure_ascii=False).encode()  # lone surrogates are no text
    except (ValueError, RecursionError) as error:
        raise corrupt(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise corrupt("the body is not an object")
    return body


def _missing(data):
    if len(data) < 8:
        raise corrupt("a list of missing slabs without its prefix")
    number, count = struct.unpack_from("<II", data)
    if count > MISSING_MAX or len(data) != 8 + 8 * count:
        raise corrupt(f"a list of {count} missing slabs in {len(data)} bytes")
    return {"round": number, "slabs": [list(struct.unpack_from("<II", data, 8 + 8 * i)) for i in range(count)]}


def _slab(data):
    """Steps 1 to 8 of frame.md; what refuses a frame does not refuse the message around it."""
    try:
        header, _, _, length = frame.read_frame(data)
        if length != len(data):
            raise corrupt("bytes behind the frame")
    except Refusal as refusal:
        return {"refused": refusal.kind}
    return {"frame": header}


def read_header(data):
    """Steps 1 to 4 of section 2: (type, id in hexadecimal, length of the body, its checksum)."""
    if data[:4] != MAGIC[: len(data)]:
        raise corrupt("another protocol")
    if len(data) >= 6 and struct.unpack_from("<H", data, 4)[0] != VERSION:
        raise unsupported(f"version {struct.unpack_from('<H', data, 4)[0]}")
    if len(data) < HEADER_BYTES:
        raise corrupt("the header is incomplete")
    _, _, number, zero, body_bytes, zeros, transfer, checksum, header_checksum = HEADER.unpack_from(data)
    if xxh3_64(data[:CHECKED_HEADER_BYTES]) != header_checksum:
        raise corrupt("the header's checksum is wrong")
    if zero or zeros or number not in TYPES:
        raise unsupported("a reserved byte is set" if zero or zeros else f"type {number}")
    kind = TYPES[number]
    if body_bytes > BODY_BYTES_MAX.get(kind, CONTROL_BODY_BYTES_MAX):
        raise corrupt(f"{kind} with a body of {body_bytes} bytes")
    if kind != "ERROR" and any(transfer) == (kind in ABOUT_LINK):
        raise corrupt(f"{kind} {'with' if any(transfer) else 'without'} a transfer")
    return kind, transfer.hex(), body_bytes, checksum


def read_message(data):
    """All steps for the message at the start of `data`: type, transfer and body as an object, and its length."""
    kind, transfer, body_bytes, checksum = read_header(data)
    end = HEADER_BYTES + body_bytes
    if len(data) < end:
        raise corrupt(f"the message has {end} bytes, {len(data)} are there")
    body = data[HEADER_BYTES:end]
    if checksum != (0 if kind == "SLAB" else xxh3_64(body)):
        raise corrupt("the body's checksum is wrong")
    if kind in JSON_BODIES:
        read = JSON_BODIES[kind](_json_object(body))
    elif kind == "MISSING":
        read = _missing(body)
    else:
        read = _slab(body) if kind == "SLAB" else {}
    return {"type": kind, "transfer": transfer, "body": read}, end


def read_messages(data):
    """All messages of a file: one direction of a TCP link."""
    data = memoryview(data)
    at = 0
    while True:
        message, length = read_message(data[at:])
        yield message
        at += length
        if at == len(data):
            return
