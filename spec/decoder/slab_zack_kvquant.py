"""Reader of sealed slabs of `zack` in codes of `kvquant`: section 7 of spec/slab_zack.md, and what it refers to.

SPDX-License-Identifier: Apache-2.0
"""

import re

import kv_tables
import slab_kvquant
import slab_zack
from refusal import unsupported

CODES = re.compile(r"kvquant:bits=(?P<bits>[234])(?:(?P<none>,outliers=0)|(?P<token>,room=token))?")
WINDOW = re.compile(r",(?:sink|recent)=[1-9][0-9]*")


def is_name(name):
    return name.startswith("zack:") and "+kvquant" in name


def parted(name):
    """What stands before the "+", and the parameters of `kvquant`, the usual ones included."""
    before, _, codes = name.partition("+")
    match = CODES.fullmatch(codes)
    if not match or slab_zack.format_of(before).bits:
        raise unsupported(f"no such format: {name}")
    return before, {"bits": match["bits"], "outliers": "0" if match["none"] else "1",
                    "room": "token" if match["token"] else "slab"}  # fmt: skip


def tables_name(name):
    """What the names of its tables begin with, up to a dot."""
    return WINDOW.sub("", name.partition("+")[0]) + "+kvquant"


def tables_id(name, tables):
    return kv_tables.tables_id(tables, "zack", tables_name(name))


def widths(name, tables, shape):
    """(of K, of V) as [layer][head]. shape: (kv_heads, head_dim, layers)."""
    found = slab_zack.widths(parted(name)[0], tables, shape)
    for layer, of_layer in enumerate(found):
        for part, of_heads in zip("kv", zip(*of_layer)):
            if tables[f"{tables_name(name)}.layers.{layer}.{part}.widths"] != of_heads:
                raise unsupported(f"tables of {name} are for other widths")
    return found


def unpack(name, pages, packed):
    """The slab of a frame's body, without padding. pages: the widths of the layer's heads."""
    return slab_kvquant.unpack_planes(packed, parted(name)[1], pages)


def used_bytes(name, pages, slab):
    return slab_kvquant.used_bytes_of(slab, parted(name)[1], pages)


def open_slab(name, pages, d, layer, slab, tables):
    """The bf16 bits of K and V of each head in the rotated basis: a list of pairs of lists [64 * d]."""
    opened = slab_kvquant.read_planes(slab, parted(name)[1], pages, f"{tables_name(name)}.layers.{layer}", tables)
    return [[[x for row in plane for x in [*row, *[0] * (d - len(row))]] for plane in head] for head in opened]
