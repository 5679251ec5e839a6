# SPDX-License-Identifier: Apache-2.0
"""Names of blocks after spec/block_name.md, from its text alone."""

import hashlib
import struct

BLOCK_TOKENS = 64


def root(model, kv_format, salt=""):
    """The start of a chain: `model` is 32 bytes, `kv_format` and `salt` are text."""

    def counted(text):
        data = text.encode()
        return struct.pack("<I", len(data)) + data

    return hashlib.sha256(
        b"kvlane block name 1" + model + counted(kv_format) + counted(salt)
    ).digest()


def names(root_name, tokens):
    """The names of all complete blocks of `tokens`."""
    chain, last = [], root_name
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        block = struct.pack("<64I", *tokens[start : start + BLOCK_TOKENS])
        last = hashlib.sha256(last + block).digest()
        chain.append(last)
    return chain
