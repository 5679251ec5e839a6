#!/usr/bin/env python3
"""Trains the tokenizer on a sample of the texts and turns all of them into token files.

Writes OUT/tokenizer.json and OUT/{fiction,wikipedia}_{train,evaluation,calibration}.bin: token ids as
uint16, each document after an <|endoftext|>. Every 60th document is held out from training.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import collections
import json
import pathlib
import random
import shutil

import bpe
import numpy as np
from texts import add_text_arguments, documents

VOCABULARY_SIZE = 4096
SAMPLE_CHARACTERS = 50_000  # the tokenizer is trained on pieces of this length ...
SAMPLE_SHARE = 0.12  # ... this share of them


def count_words(arguments):
    draw, counts = random.Random(1), collections.Counter()
    for _, _, text in documents(arguments.fiction, arguments.wikipedia):
        for at in range(0, len(text), SAMPLE_CHARACTERS):
            if draw.random() < SAMPLE_SHARE:
                counts.update(bpe.SPLIT.findall(text[at : at + SAMPLE_CHARACTERS]))
    return counts


def train_tokenizer(arguments, path):
    vocabulary, merges = bpe.train(count_words(arguments), VOCABULARY_SIZE)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(bpe.tokenizer_json(vocabulary, merges), file, ensure_ascii=False, indent=0)
    print(f"{path}: {len(vocabulary)} tokens")


def write_token_files(arguments, tokenizer):
    encoded = collections.defaultdict(list)
    for kind, part, text in documents(arguments.fiction, arguments.wikipedia):
        ids = [bpe.END_OF_TEXT_ID, *tokenizer.encode(text)]
        encoded[kind, part].append(np.array(ids, dtype=np.uint16))
    for (kind, part), arrays in encoded.items():
        path = arguments.out / f"{kind}_{part}.bin"
        np.concatenate(arrays).tofile(path)
        print(f"{path}: {len(arrays)} documents, {sum(map(len, arrays))} tokens")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_text_arguments(parser)
    parser.add_argument("--tokenizer", type=pathlib.Path, help="use this tokenizer.json, train none")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)

    tokenizer_path = arguments.out / "tokenizer.json"
    if arguments.tokenizer:
        shutil.copy(arguments.tokenizer, tokenizer_path)
    else:
        train_tokenizer(arguments, tokenizer_path)
    write_token_files(arguments, bpe.Tokenizer(tokenizer_path))


if __name__ == "__main__":
    main()
