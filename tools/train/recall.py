"""Synthetic recall: facts stated early and asked for late, with real text between.

SPDX-License-Identifier: Apache-2.0
"""
import numpy as np

NAMES = (
    "Anna Ben Clara David Emma Frank Grace Henry Ivy Jack "
    "Kate Leo Mary Ned Olive Peter Quinn Rose Sam Tom"
).split()
THINGS = (
    "key lamp book coin ring map box knife cup rope bell drum hat boat horse sword mirror letter basket clock"
).split()
PLACES = (
    "barn cellar garden tower kitchen attic river bridge forest church "
    "market stable cave mill harbour castle well school inn field"
).split()


def recall_sequence(tokenizer, draw, filler, length_max):
    """Three to eight facts, a random stretch of `filler` (token ids), and a question for each fact in
    another order; about `length_max` tokens at most."""
    count, facts, used = draw.integers(3, 9), [], set()
    while len(facts) < count:
        who_what = (NAMES[draw.integers(len(NAMES))], THINGS[draw.integers(len(THINGS))])
        if who_what not in used:
            used.add(who_what)
            facts.append((*who_what, PLACES[draw.integers(len(PLACES))]))
    told = " ".join(f"{who} put the {what} in the {where}." for who, what, where in facts)
    asked = " ".join(
        f"Where did {who} put the {what}? In the {where}."
        for who, what, where in (facts[i] for i in draw.permutation(count))
    )
    head, tail = tokenizer.encode(told + " "), tokenizer.encode(" " + asked)
    room = length_max - len(head) - len(tail)
    middle = int(draw.integers(0, room)) if room > 0 else 0
    return head + filler[:middle].tolist() + tail


def packed_recall(tokenizer, draw, source, length, end_of_text):
    """`length` ids of recall sequences, one after another; fillers come from `source`."""
    ids = []
    while len(ids) < length:
        at = draw.integers(0, len(source) - length)
        ids += [end_of_text, *recall_sequence(tokenizer, draw, source[at : at + length - 1], length - 1)]
    return np.array(ids[:length], dtype=np.int64)
