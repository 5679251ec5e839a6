"""How many channels of K and of V a page has: `head_dim` of both, but for pages behind `zack` (spec/slab_zack.md).

SPDX-License-Identifier: Apache-2.0
"""


def pair_of(d):
    """(of K, of V) from such a pair, or from a number that is both."""
    return d if isinstance(d, tuple) else (d, d)
