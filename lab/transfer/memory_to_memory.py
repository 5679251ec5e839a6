#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much less plain sockets carry when bytes come from memory and go to memory, as K and V do, than when both ends
use one small buffer again and again, as iperf3 does.

Two network namespaces with nothing that limits the link but the processor; --streams connections of a process each at
both ends, --gib in all, once through buffers of 128 KiB and once through memory that each byte has of its own; in
turns, --rounds times. Prints GB/s and the ratio. Needs root, and ip of package iproute2.

    lab/transfer/memory_to_memory.py --streams 4 --rounds 5
"""

import argparse
import mmap
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from shaped_workers import FAR, FAR_ADDRESS, NEAR, two_namespaces  # pylint: disable=wrong-import-position

PORT = 7100
PIECE = 1 << 20
SMALL = 1 << 17
PAGE = 4096


def touched(size):
    """Memory whose pages are there."""
    memory = mmap.mmap(-1, size)
    for page in range(0, size, PAGE):
        memory[page] = 1
    return memoryview(memory)


def in_children(connections, work):
    for connection in connections:
        if os.fork() == 0:
            work(connection)
            os._exit(0)  # pylint: disable=protected-access


def receive(streams, size, total):
    """Says 'ready' on standard output, then takes what comes."""
    server = socket.create_server((FAR_ADDRESS, PORT), backlog=streams)
    print("ready", flush=True)
    connections = [server.accept()[0] for _ in range(streams)]

    def take(connection):
        memory = touched(size)
        connection.sendall(b"g")
        done = 0
        while done < total:
            at = done % size
            done += connection.recv_into(memory[at : min(size, at + PIECE)])
        connection.sendall(b"d")

    in_children(connections, take)
    for _ in connections:
        os.wait()


def send(streams, size, total):
    """Prints the seconds from when both ends have their memory until all has arrived."""
    connections = [socket.create_connection((FAR_ADDRESS, PORT)) for _ in range(streams)]
    ready, is_ready = os.pipe()
    go, say_go = os.pipe()

    def give(connection):
        memory = touched(size)
        connection.recv(1)
        os.write(is_ready, b"r")
        os.read(go, 1)
        for done in range(0, total, min(size, PIECE)):
            at = done % size
            connection.sendall(memory[at : at + min(PIECE, size - at, total - done)])
        connection.recv(1)

    in_children(connections, give)
    for _ in connections:
        os.read(ready, 1)
    start = time.monotonic()
    os.write(say_go, b"g" * streams)
    for _ in connections:
        os.wait()
    print(time.monotonic() - start)


def speed(streams, size, total):
    """GB/s of all connections, between the namespaces."""
    this = [sys.executable, __file__, "--streams", str(streams), "--size", str(size), "--total", str(total)]
    receiver = ["ip", "netns", "exec", FAR, *this, "--role", "receive"]
    with subprocess.Popen(receiver, stdout=subprocess.PIPE, text=True) as far:
        far.stdout.readline()
        near = ["ip", "netns", "exec", NEAR, *this, "--role", "send"]
        done = subprocess.run(near, stdout=subprocess.PIPE, text=True, check=True)
    return streams * total / float(done.stdout) * 1e-9


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    for ours in ("--size", "--total"):
        parser.add_argument(ours, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--role", choices=("receive", "send"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        (receive if options.role == "receive" else send)(options.streams, options.size, options.total)
        return
    total = int(options.gib * 2**30 / options.streams) // PIECE * PIECE
    with two_namespaces():
        turns = [[speed(options.streams, size, total) for size in (SMALL, total)] for _ in range(options.rounds)]
    small, own = ([turn[i] for turn in turns] for i in (0, 1))
    ratio = statistics.median(b / a for a, b in zip(small, own))
    print(f"{options.streams} connections: one buffer {statistics.median(small):.2f} GB/s, "
          f"memory to memory {statistics.median(own):.2f} GB/s, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
