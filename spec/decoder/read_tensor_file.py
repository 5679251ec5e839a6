"""Reads a tensor file: prints what it says of the original as JSON and, if asked, writes the original.

    python3 spec/decoder/read_tensor_file.py FILE.kvl [--out FILE]

Every check of spec/tensor_file.md is made. A file that fails one gives one sentence on standard error, exit status 1
and no output. Standard library only; slow on purpose.
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import pathlib
import sys

import tensor_file
from refusal import Refusal


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help="write the original here")
    arguments = parser.parse_args()
    try:
        head, original = tensor_file.read(arguments.file.read_bytes())
        if arguments.out:
            arguments.out.write_bytes(original)
    except (Refusal, OSError) as error:
        print(f"{arguments.file}: {error}", file=sys.stderr)
        return 1
    json.dump(head, sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
