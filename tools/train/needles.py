#!/usr/bin/env python3
"""Evaluation texts: facts never trained at chosen depths of held-out text, asked for at its end.

Run as a program it writes one JSON object a line: template, length (tokens of the prompt, about), depth
(0: the fact begins the text, 1: it ends it), distance (tokens from fact to answer), prompt, answer. A
greedy continuation of the prompt that begins with the answer, after a blank, is right.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import dataclasses
import json
import pathlib

import bpe
import numpy as np
from recall import TEMPLATES, Recall

QUESTION_TOKENS = 40  # room for a statement and a question


@dataclasses.dataclass
class Asked:
    template: str
    depth: float
    at: int  # of the answer's first id in the text
    answer: np.ndarray  # ids
    distance: int  # from the end of the fact to the answer


def needle_text(recall, source, length, templates, depths):
    """Ids of a text of about `length` tokens with a fact of each template at its depth, depths rising, and
    all the questions at the end in another order; and what is asked."""
    facts = recall.facts(templates)
    room, stretch = max(0, length - QUESTION_TOKENS * len(facts)), recall.filler(source)
    pieces, told, used = [np.array([bpe.END_OF_TEXT_ID])], [], 1
    for fact, share in zip(facts, np.diff(depths, prepend=0)):
        for ids in (stretch(int(share * room)), recall.piece("\n" + fact.statement, 0)[0]):
            pieces.append(ids)
            used += len(ids)
        told.append(used)
    pieces.append(stretch(int((1 - depths[-1]) * room)))
    used, asked = used + len(pieces[-1]), []
    for which in recall.draw.permutation(len(facts)):
        ids, weights = recall.question(facts[which], "\n")
        answer = np.flatnonzero(weights > 1)
        at = used + int(answer[0])
        asked.append(Asked(facts[which].template, depths[which], at, ids[answer], at - told[which]))
        pieces.append(ids)
        used += len(ids)
    return np.concatenate(pieces), asked


def mixed_text(recall, source, length):
    """A fact of each template, at random depths."""
    return needle_text(recall, source, length, list(TEMPLATES), np.sort(recall.draw.random(len(TEMPLATES))))


def evaluation_recall(tokenizer, seed):
    return Recall(tokenizer, np.random.default_rng(seed), for_evaluation=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("tokenizer", type=pathlib.Path, help="tokenizer.json")
    add("filler", type=pathlib.Path, help="held-out text, as texts.py writes it")
    add("out", type=pathlib.Path, help="the file of JSON lines")
    add("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048, 4000], help="default: %(default)s")
    add("--depths", type=float, nargs="+", default=[0, 0.25, 0.5, 0.75, 1], help="default: %(default)s")
    add("--templates", nargs="+", choices=TEMPLATES, default=list(TEMPLATES), help="default: all")
    add("--repeats", type=int, default=4, help="of each template, length and depth; default: %(default)s")
    add("--seed", type=int, default=1, help="default: %(default)s")
    arguments = parser.parse_args()

    tokenizer = bpe.Tokenizer(arguments.tokenizer)
    recall = evaluation_recall(tokenizer, arguments.seed)
    source = np.array(tokenizer.encode(arguments.filler.read_text(encoding="utf-8")), dtype=np.uint16)
    with open(arguments.out, "w", encoding="utf-8") as file:
        for length in arguments.lengths:
            for template in arguments.templates:
                for depth in np.repeat(arguments.depths, arguments.repeats):
                    ids, (asked,) = needle_text(recall, source, length, [template], [float(depth)])
                    line = {
                        "template": template,
                        "length": length,
                        "depth": asked.depth,
                        "distance": asked.distance,
                        "prompt": tokenizer.decode(ids[1 : asked.at]),
                        "answer": tokenizer.decode(asked.answer).strip(),
                    }
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
