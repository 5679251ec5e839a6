#!/usr/bin/env python3
"""Held-out perplexity, and the share of right answers to recall questions by template and distance."""
# SPDX-License-Identifier: Apache-2.0
import argparse
import collections
import math
import pathlib

import bpe
import numpy as np
import torch
import torch.nn.functional as F
from batches import KINDS, token_files
from needles import evaluation_recall, mixed_text
from network import Network
from recall import TEMPLATES
from weights import read_directory

DISTANCES = (256, 512, 1024, 2048, 4096)
SPARE_TOKENS = 96  # a text may come out somewhat longer than it should


@torch.no_grad()
def perplexity(network, ids, context, windows):
    """Over `windows` windows of `context` tokens at random places, the same for every network."""
    draw, losses = np.random.default_rng(7), []
    for _ in range(windows):
        at = int(draw.integers(0, len(ids) - context - 1))
        window = torch.from_numpy(ids[at : at + context + 1].astype(np.int64))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = network(window[None, :-1])[0]
        losses.append(F.cross_entropy(logits.float(), window[1:]).item())
    return math.exp(np.mean(losses))


@torch.no_grad()
def recall_accuracy(network, folder, lengths, texts, seed=11):
    """[template, distance bound] -> (right, asked): greedy answers from facts never trained, `texts` texts
    of each length."""
    right = collections.defaultdict(lambda: [0, 0])
    recall = evaluation_recall(bpe.Tokenizer(folder / "tokenizer.json"), seed)
    sources = token_files(folder, "evaluation")
    for length in lengths:
        for _ in range(texts):
            ids, asked = mixed_text(recall, sources[int(recall.draw.integers(2))], length - SPARE_TOKENS)
            ids = ids[: network.shape.context]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                best = network(torch.from_numpy(ids)[None])[0].argmax(-1).numpy()
            for one in asked:
                if one.at + len(one.answer) > len(ids):
                    continue
                predicted = best[one.at - 1 : one.at - 1 + len(one.answer)]
                count = right[one.template, next(bound for bound in DISTANCES if one.distance <= bound)]
                count[0] += int((predicted == one.answer).all())
                count[1] += 1
    return right


def recall_lines(right):
    yield "recall".ljust(14) + "".join(f"<= {bound}".rjust(10) for bound in DISTANCES)
    for template in TEMPLATES:
        counts = [right.get((template, bound), (0, 0)) for bound in DISTANCES]
        yield template.ljust(14) + "".join(f"{r}/{n}".rjust(10) for r, n in counts)
    r, n = np.sum(list(right.values()), axis=0)
    yield f"all: {100 * r / n:.1f} % of {n}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("folder", type=pathlib.Path, help="where tokens.py wrote its files")
    add("model", type=pathlib.Path, nargs="+", help="Hugging Face directories, BF16")
    add("--windows", type=int, default=40, help="of up to 1,024 tokens, fewer longer ones; default: %(default)s")
    add("--texts", type=int, default=20, help="recall texts of a length; default: %(default)s")
    add("--threads", type=int, default=2, help="default: %(default)s")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for directory in arguments.model:
        shape, weights = read_directory(directory)
        network = Network(shape)
        network.load_state_dict(weights)
        for context in (512, 1024, 4096):
            if context > shape.context:
                continue
            for kind, ids in zip(KINDS, token_files(arguments.folder, "evaluation")):
                windows = max(1, arguments.windows * min(context, 1024) // context)
                value = perplexity(network, ids, context, windows)
                print(f"{directory}: perplexity {kind}, {context} tokens: {value:.1f}", flush=True)
        lengths = [length for length in DISTANCES if length <= shape.context]
        for line in recall_lines(recall_accuracy(network, arguments.folder, lengths, arguments.texts)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
