"""Why a frame is refused: the two kinds of spec/frame.md, section 1.

SPDX-License-Identifier: Apache-2.0
"""


class Refusal(Exception):
    """`kind` is "corrupt" (nobody can read these bytes) or "unsupported" (a later reader might)."""

    def __init__(self, kind, reason):
        super().__init__(f"{kind}: {reason}")
        self.kind = kind


def corrupt(reason):
    return Refusal("corrupt", reason)


def unsupported(reason):
    return Refusal("unsupported", reason)
