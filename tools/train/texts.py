#!/usr/bin/env python3
"""The books and articles of the texts, cleaned, and which of them are for what.

Run as a program it writes OUT/{fiction,wikipedia}_{evaluation,calibration}.txt. Needs no package.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import collections
import hashlib
import lzma
import pathlib
import re

ARTICLE_CHARACTERS_MIN = 800  # shorter ones hold little more than a name and a place
HELD_OUT_EVERY = 60
PARTS = ("train", "evaluation", "calibration")
BETWEEN_DOCUMENTS = "<|endoftext|>"


def part_of(index):
    """What the document of this number is for. The held-out ones alternate: what is measured and what a
    method may tune itself with never share a book or an article."""
    held_out, rest = divmod(index, HELD_OUT_EVERY)
    return "train" if rest else PARTS[1 + held_out % 2]


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
    for book in read_text(path).split(BETWEEN_DOCUMENTS):
        if book.strip():
            yield clean(book)


def wikipedia_documents(path):
    for article in read_text(path).split("</doc>"):
        article = re.sub(r"<doc [^>]*>", "", article)
        article = re.sub(r"<[^>]+>", "", article).strip()
        if len(article) > ARTICLE_CHARACTERS_MIN:
            yield clean(article)


def documents(fiction, wikipedia):
    """(kind, part, text) of every document of the two files."""
    for kind, texts in (("fiction", fiction_documents(fiction)), ("wikipedia", wikipedia_documents(wikipedia))):
        for index, text in enumerate(texts):
            yield kind, part_of(index), text


def add_text_arguments(parser):
    add = parser.add_argument
    add("--fiction", type=pathlib.Path, required=True, help="books, text or .xz")
    add("--wikipedia", type=pathlib.Path, required=True, help="articles, text or .xz")
    add("--out", type=pathlib.Path, required=True, help="folder for the results")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_text_arguments(parser)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    held_out = collections.defaultdict(list)
    for kind, part, text in documents(arguments.fiction, arguments.wikipedia):
        if part != "train":
            held_out[kind, part].append(text)
    for (kind, part), texts in held_out.items():
        path, data = arguments.out / f"{kind}_{part}.txt", (BETWEEN_DOCUMENTS + "\n").join(texts).encode()
        path.write_bytes(data)
        print(f"{path}: {len(texts)} documents, sha256 {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    main()
