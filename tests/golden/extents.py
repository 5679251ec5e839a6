"""Golden extents: written by spec/decoder/extent.py, which knows the page and not our code.

SPDX-License-Identifier: Apache-2.0
"""

import struct

import extent


def make(write):
    """Two layers of hidden states with 2 channels, and a second layer that a codec made shorter."""
    rows = struct.pack("<128H", *(0x3F80 + 37 * i % 251 for i in range(128)))
    name, model = bytes(range(32)), bytes(range(32, 64))
    data = extent.build(name, [rows, rows[:100]], layer=3, position=128, model=model, codec="splitzip", width=2)
    write("extent/hidden.extent", data)
