#!/usr/bin/env python3
"""Writes src/model/unicode_additions.cpp: the characters that the `tokenizers` package knows and PCRE2
does not, with their general categories.

PCRE2 10.42 knows Unicode 14, as does the unicodedata of Python 3.11 that this script must run under;
the package brings tables of its own. Run it with the packages of tests/fixtures/requirements.txt:

    tools/make_unicode_additions.py
"""
# SPDX-License-Identifier: Apache-2.0
import pathlib
import unicodedata

import tokenizers
from tokenizers import Regex, pre_tokenizers

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "src" / "model" / "unicode_additions.cpp"
BASE_VERSION = "14.0.0"
# Those of marks are left out: characters moved between Mn and Mc since.
CATEGORIES = "Lu Ll Lt Lm Lo M Nd Nl No P S Z".split()
ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]

HEAD = """\
// Characters newer than PCRE2's tables, by general category.
// Written by tools/make_unicode_additions.py (tokenizers {tokenizers} over Unicode {base}).
// SPDX-License-Identifier: Apache-2.0
#include "model/unicode_additions.h"

#include <array>

namespace kvlane {{
namespace {{

// clang-format off
constexpr std::array<UnicodeAddition, {count}> kAdditions = {{{{
"""
TAIL = """\
}};
// clang-format on

}  // namespace

std::span<const UnicodeAddition> unicode_additions() { return kAdditions; }

}  // namespace kvlane
"""


def members(category):
    """All characters that \\p{category} of the package matches."""
    rest = pre_tokenizers.Split(Regex(rf"\p{{{category}}}+"), "removed").pre_tokenize_str("".join(map(chr, ALL)))
    others = set()
    for _, (start, end) in rest:
        others.update(ALL[start:end])
    return set(ALL) - others


def additions():
    """[(first, last, category)], ascending."""
    found = {}
    for category in CATEGORIES:
        inside = members(category)
        known = {c for c in ALL if unicodedata.category(chr(c)).startswith(category)}
        assert not known - inside, f"{category} lost characters: the additions cannot express that"
        for c in inside - known:
            assert unicodedata.category(chr(c)) == "Cn", f"U+{c:04X} changed its category"
            found[c] = category
    ranges = []
    for c in sorted(found):
        if ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == found[c]:
            ranges[-1][1] = c
        else:
            ranges.append([c, c, found[c]])
    return ranges


def main():
    assert unicodedata.unidata_version == BASE_VERSION, f"needs Unicode {BASE_VERSION} (Python 3.11)"
    ranges = additions()
    items = [f'{{0x{first:04X}, 0x{last:04X}, "{kind}"}},' for first, last, kind in ranges]
    lines = []
    for item in items:
        if lines and len(lines[-1]) + 1 + len(item) <= 100:
            lines[-1] += " " + item
        else:
            lines.append("    " + item)
    head = HEAD.format(tokenizers=tokenizers.__version__, base=BASE_VERSION, count=len(ranges))
    OUTPUT.write_text(head + "\n".join(lines) + "\n" + TAIL)


if __name__ == "__main__":
    main()
