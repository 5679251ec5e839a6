"""Batches of the training text with recall sequences among them.

SPDX-License-Identifier: Apache-2.0
"""
import bpe
import numpy as np
import torch
from recall import Recall

FICTION_SHARE = 0.65
KINDS = ("fiction", "wikipedia")


def token_files(folder, part):
    return [np.memmap(folder / f"{kind}_{part}.bin", dtype=np.uint16, mode="r") for kind in KINDS]


class Batches:
    """Random windows of the training text, and recall sequences among them."""

    def __init__(self, folder, tokens, seed):
        """`tokens`: of a batch; it holds as many sequences as fit."""
        self.fiction, self.wikipedia = token_files(folder, "train")
        self.draw = np.random.default_rng(seed)
        self.recall = Recall(bpe.Tokenizer(folder / "tokenizer.json"), self.draw)
        self.tokens = tokens

    def sequence(self, length, recall_share):
        """Ids and the weight of each in the loss."""
        source = self.fiction if self.draw.random() < FICTION_SHARE else self.wikipedia
        if self.draw.random() < recall_share:
            return self.recall.packed(source, length, bpe.END_OF_TEXT_ID)
        at = int(self.draw.integers(0, len(source) - length))
        return source[at : at + length].astype(np.int64), np.ones(length, dtype=np.float32)

    def next(self, context, recall_share):
        """Inputs, targets and weights of the targets, each [batch, context]."""
        sequences = [self.sequence(context + 1, recall_share) for _ in range(self.tokens // context)]
        ids, weights = (torch.from_numpy(np.stack(arrays)) for arrays in zip(*sequences))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), weights[:, 1:].contiguous()
