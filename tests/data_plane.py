"""A second implementation of spec/transfer.md's side of a peer, for tests: just enough to fetch and to push the KV
cache of one sequence, and to do it wrong. Standard library only; shares nothing with the program.
"""
# SPDX-License-Identifier: Apache-2.0
import contextlib
import json
import pathlib
import socket
import struct
import sys
import time
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "spec" / "decoder"))
from xxh3 import xxh3_64  # noqa: E402

PATIENCE = 30
MAGIC = b"\x8bKVM"
HEADER = struct.Struct("<4sHBBII16sQ")
HELLO, HELLO_ACK, REJECT, BEGIN, SLAB, END, MISSING, DONE, FETCH, ERROR, WAIT = range(1, 12)
JOIN = 13
NO_TRANSFER = bytes(16)


class Message(NamedTuple):
    type: int
    transfer: bytes
    body: bytes

    def json(self):
        return json.loads(self.body)


def encode(kind, body=b"", transfer=NO_TRANSFER, version=1):
    """A message; anything but bytes becomes a JSON body."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    checksum = 0 if kind == SLAB else xxh3_64(body)
    head = HEADER.pack(MAGIC, version, kind, 0, len(body), 0, transfer, checksum)
    return head + struct.pack("<Q", xxh3_64(head)) + body


class Link:
    """One connection to a worker's data plane."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=PATIENCE)
        self.stream = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.stream.close()
        self.socket.close()

    def send(self, kind, body=b"", transfer=NO_TRANSFER):
        self.socket.sendall(encode(kind, body, transfer))

    def send_cache(self, cache, transfer):
        for frame in cache.frames:
            self.send(SLAB, frame, transfer)
        self.send(END, cache.end, transfer)

    def receive(self):
        """The next message; None when the worker has closed the link."""
        with contextlib.suppress(ConnectionResetError):
            head = self.stream.read(HEADER.size + 8)
            if head:
                magic, version, kind, zero, size, zeros, transfer, checksum = HEADER.unpack_from(head)
                assert (magic, version, zero, zeros) == (MAGIC, 1, 0, 0), head
                assert head[HEADER.size :] == struct.pack("<Q", xxh3_64(head[: HEADER.size]))
                body = self.stream.read(size)
                assert len(body) == size and checksum == (0 if kind == SLAB else xxh3_64(body))
                return Message(kind, transfer, body)
        return None

    def greet(self, model, kv_format="bf16", codecs=("none", "splitzip")):
        """The handshake; returns the worker's answer."""
        worker = {"engine": "test", "host": "127.0.0.1", "port": 0, "model": model, "format": kv_format}
        self.send(HELLO, worker | {"codecs": list(codecs), "capabilities": {}})
        return self.receive()


class Cache(NamedTuple):
    """What one transfer carries: the objects of BEGIN and END, and the frames between."""

    begin: dict
    frames: list
    end: dict


def fetch(address, model, transfer):
    """Fetches parked KV: a Cache, or the message that refused it."""
    with Link(address) as link:
        answer = link.greet(model)
        if answer.type != HELLO_ACK:
            return answer
        link.send(FETCH, b"", transfer)
        begin, frames = None, []
        while message := link.receive():
            if message.type == BEGIN:
                begin = message.json()
            elif message.type == SLAB:
                frames.append(message.body)
            elif message.type == END:
                link.send(DONE, {"durations": {}}, transfer)
                return Cache(begin, frames, message.json())
            elif message.type in (ERROR, REJECT):
                return message
        raise AssertionError("the link was closed in the middle of a transfer")


def push(address, model, transfer, cache):
    """Pushes a cache to a worker that expects it; returns the message that ends the transfer."""
    with Link(address) as link:
        answer = link.greet(model)
        if answer.type != HELLO_ACK:
            return answer
        link.send(BEGIN, cache.begin, transfer)
        link.send_cache(cache, transfer)
        held = False
        while message := link.receive():
            is_here = message.type == MISSING and message.body[4:8] == bytes(4)
            if message.type == WAIT:
                held = True
                time.sleep(0.05)
                link.send(BEGIN, cache.begin, transfer)
            elif is_here and held:
                held = False
                link.send_cache(cache, transfer)
            elif not is_here:
                return message
        raise AssertionError("the link was closed in the middle of a transfer")
