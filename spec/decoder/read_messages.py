"""Reads a file of messages, one direction of a link between workers, and prints them as a JSON array.

    python3 spec/decoder/read_messages.py FILE

Every check of spec/transfer.md, section 2, is made. A file that fails one gives one sentence on standard error and
exit status 1. Standard library only; slow on purpose.
SPDX-License-Identifier: Apache-2.0
"""

import argparse
import json
import pathlib
import sys

import message
from refusal import Refusal


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=pathlib.Path)
    arguments = parser.parse_args()
    try:
        messages = list(message.read_messages(arguments.file.read_bytes()))
    except (Refusal, OSError) as error:
        print(f"{arguments.file}: {error}", file=sys.stderr)
        return 1
    json.dump(messages, sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
