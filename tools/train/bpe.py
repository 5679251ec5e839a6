"""Byte-level BPE as GPT-2 has it: split rule, training, encoding, tokenizer.json.

SPDX-License-Identifier: Apache-2.0
"""
import collections
import heapq
import itertools
import json

import regex

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0
SPLIT = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
CACHED_WORDS_MAX = 2_000_000


def byte_alphabet():
    """A printable character for each byte: itself where it has one, else the next from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in alphabet]
    return alphabet | {byte: chr(256 + i) for i, byte in enumerate(others)}


ALPHABET = byte_alphabet()
BYTE_OF = {character: byte for byte, character in ALPHABET.items()}


def letters(word):
    return [ALPHABET[byte] for byte in word.encode("utf-8")]


def merged(parts, pair):
    """`parts` with each occurrence of `pair`, from the left, joined."""
    result, at = [], 0
    while at < len(parts):
        if at + 1 < len(parts) and (parts[at], parts[at + 1]) == pair:
            result.append(parts[at] + parts[at + 1])
            at += 2
        else:
            result.append(parts[at])
            at += 1
    return result


def pairs_of(parts):
    return itertools.pairwise(parts)


def train(word_counts, vocabulary_size):
    """Returns vocabulary (a list) and merges. Words that occur once are noise and left out."""
    kept = [(letters(word), count) for word, count in word_counts.items() if count > 1]
    words, counts = [word for word, _ in kept], [count for _, count in kept]
    pair_counts, words_with = collections.Counter(), collections.defaultdict(set)
    for index, (word, count) in enumerate(zip(words, counts)):
        for pair in pairs_of(word):
            pair_counts[pair] += count
            words_with[pair].add(index)
    # Entries go stale as counts change; they are checked when they come up.
    heap = [(-count, pair) for pair, count in pair_counts.items()]
    heapq.heapify(heap)

    vocabulary, merges = [END_OF_TEXT, *(ALPHABET[byte] for byte in range(256))], []
    while len(vocabulary) < vocabulary_size:
        pair = pop_most_frequent(heap, pair_counts)
        merges.append(pair)
        vocabulary.append(pair[0] + pair[1])
        touched = set()
        for index in list(words_with[pair]):
            for other in pairs_of(words[index]):
                pair_counts[other] -= counts[index]
                touched.add(other)
            words[index] = merged(words[index], pair)
            for other in pairs_of(words[index]):
                pair_counts[other] += counts[index]
                words_with[other].add(index)
                touched.add(other)
        del pair_counts[pair]
        for other in touched:
            if pair_counts.get(other, 0) > 0:
                heapq.heappush(heap, (-pair_counts[other], other))
    assert len(set(vocabulary)) == len(vocabulary), "two merges gave the same token"
    return vocabulary, merges


def pop_most_frequent(heap, pair_counts):
    while True:
        negative_count, pair = heapq.heappop(heap)
        count = pair_counts.get(pair, 0)
        if count == -negative_count:
            return pair
        if count > 0:
            heapq.heappush(heap, (-count, pair))


def tokenizer_json(vocabulary, merges):
    """The document that the `tokenizers` package, and kvlane, read."""
    def byte_level(add_prefix_space):
        return {
            "type": "ByteLevel",
            "add_prefix_space": add_prefix_space,
            "trim_offsets": True,
            "use_regex": True,
        }

    end_of_text = {
        "id": END_OF_TEXT_ID,
        "content": END_OF_TEXT,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end_of_text],
        "normalizer": None,
        "pre_tokenizer": byte_level(add_prefix_space=False),
        "post_processor": None,
        "decoder": byte_level(add_prefix_space=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(vocabulary)},
            "merges": [f"{left} {right}" for left, right in merges],
        },
    }


class Tokenizer:
    """Encodes text with a tokenizer.json of ours; words are remembered."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            model = json.load(file)["model"]
        self.ids = model["vocab"]
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(model["merges"])}
        self.texts = {index: text for text, index in self.ids.items()}
        self.words = {}

    def encode(self, text):
        ids = []
        for word in SPLIT.findall(text):
            ids.extend(self.encode_word(word))
        return ids

    def encode_word(self, word):
        if word in self.words:
            return self.words[word]
        parts = letters(word)
        while len(parts) > 1:
            best = min(pairs_of(parts), key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            parts = merged(parts, best)
        ids = [self.ids[part] for part in parts]
        if len(self.words) < CACHED_WORDS_MAX:
            self.words[word] = ids
        return ids

    def decode(self, ids):
        text = "".join(self.texts[int(index)] for index in ids)
        return bytes(BYTE_OF[character] for character in text).decode("utf-8", errors="replace")
