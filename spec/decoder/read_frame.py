"""Reads a file of kvlane frames: prints the headers as JSON and, if asked, writes the decoded planes.

    python3 spec/decoder/read_frame.py FILE [--planes DIR]

Every check of spec/frame.md is made, planes and sealed slabs included; slabs with tables are refused. A file that
fails one gives one sentence on standard error and exit status 1. Standard library only; slow on purpose.
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import pathlib
import sys

import frame
from refusal import Refusal


def read_file(path):
    """Headers in JSON form, decoded planes (K, V) and their element type, of all frames of a file."""
    return [(header, *frame.planes_of(header, k, v)) for header, k, v in frame.read_frames(path.read_bytes())]


def write_planes(directory, frames):
    """Writes FRAME.k and FRAME.v, little-endian values, with the frame's number from 0."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, (_, planes, element_type) in enumerate(frames):
        for suffix, values in zip(("k", "v"), planes):
            path = directory / f"{number}.{suffix}"
            path.write_bytes(frame.values_to_bytes(element_type, values))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--planes", type=pathlib.Path, metavar="DIR", help="write the decoded planes here")
    arguments = parser.parse_args()
    try:
        frames = read_file(arguments.file)
        if arguments.planes:
            write_planes(arguments.planes, frames)
    except (Refusal, OSError) as error:
        print(f"{arguments.file}: {error}", file=sys.stderr)
        return 1
    json.dump([header for header, *_ in frames], sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
