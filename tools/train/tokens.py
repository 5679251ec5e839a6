#!/usr/bin/env python3
"""Trains the tokenizer on a sample of the texts and turns all of them into token files.

Writes OUT/tokenizer.json and OUT/{fiction,wikipedia}_{train,held_out}.bin: token ids as uint16, each
document after an <|endoftext|>. Every 60th document is held out.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import collections
import json
import lzma
import pathlib
import random
import re

import bpe
import numpy as np

VOCABULARY_SIZE = 4096
SAMPLE_CHARACTERS = 50_000  # the tokenizer is trained on pieces of this length ...
SAMPLE_SHARE = 0.12  # ... this share of them
ARTICLE_CHARACTERS_MIN = 800  # shorter ones are stubs made by robots
HELD_OUT_EVERY = 60


def read_text(path):
    open_file = lzma.open if path.suffix == ".xz" else open
    with open_file(path, "rt", encoding="utf-8", errors="ignore") as file:
        return file.read()


def clean(text):
    """Joins hard-broken lines into paragraphs and squeezes blanks."""
    text = text.replace("\r", "")
    text = re.sub(r"[ \t]+", " ", text)
    text = re.sub(r"\n{3,}", "\n\n", text)
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", text)
    text = re.sub(r"\n{2,}", "\n\n", text)
    text = re.sub(r"  +", " ", text)
    return text.strip()


def fiction_documents(path):
    for book in read_text(path).split("<|endoftext|>"):
        if book.strip():
            yield clean(book)


def wikipedia_documents(path):
    for article in read_text(path).split("</doc>"):
        article = re.sub(r"<doc [^>]*>", "", article)
        article = re.sub(r"<[^>]+>", "", article).strip()
        if len(article) > ARTICLE_CHARACTERS_MIN:
            yield clean(article)


def documents(arguments):
    for text in fiction_documents(arguments.fiction):
        yield "fiction", text
    for text in wikipedia_documents(arguments.wikipedia):
        yield "wikipedia", text


def count_words(arguments):
    draw, counts = random.Random(1), collections.Counter()
    for _, text in documents(arguments):
        for at in range(0, len(text), SAMPLE_CHARACTERS):
            if draw.random() < SAMPLE_SHARE:
                counts.update(bpe.SPLIT.findall(text[at : at + SAMPLE_CHARACTERS]))
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fiction", type=pathlib.Path, required=True, help="books, text or .xz")
    parser.add_argument("--wikipedia", type=pathlib.Path, required=True, help="articles, text or .xz")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the results")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)

    vocabulary, merges = bpe.train(count_words(arguments), VOCABULARY_SIZE)
    tokenizer_path = arguments.out / "tokenizer.json"
    with open(tokenizer_path, "w", encoding="utf-8") as file:
        json.dump(bpe.tokenizer_json(vocabulary, merges), file, ensure_ascii=False, indent=0)
    print(f"{tokenizer_path}: {len(vocabulary)} tokens")

    tokenizer = bpe.Tokenizer(tokenizer_path)
    encoded = collections.defaultdict(list)
    for kind, text in documents(arguments):
        ids = [bpe.END_OF_TEXT_ID, *tokenizer.encode(text)]
        encoded[kind].append(np.array(ids, dtype=np.uint16))
    for kind, texts in encoded.items():
        train = [ids for i, ids in enumerate(texts) if i % HELD_OUT_EVERY]
        for part, arrays in (("train", train), ("held_out", texts[::HELD_OUT_EVERY])):
            path = arguments.out / f"{kind}_{part}.bin"
            np.concatenate(arrays).tofile(path)
            print(f"{path}: {len(arrays)} documents, {sum(map(len, arrays))} tokens")


if __name__ == "__main__":
    main()
