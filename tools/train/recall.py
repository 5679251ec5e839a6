"""Synthetic recall: facts stated early and asked for late, with real or repeated text between.

An episode is a list of pieces of token ids, each with a weight for the loss. Facts (key and value) are
split by a checksum: one in eight is for evaluation alone and never trained.

SPDX-License-Identifier: Apache-2.0
"""
import dataclasses
import re
import zlib

import numpy as np

TEXT_WEIGHT = 1.0
FACT_WEIGHT = 0.2  # what is stated is mostly random: little can be learned from it
ANSWER_WEIGHT = 3.0
EVALUATION_EVERY = 8
REPEATED = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
INTRODUCTION = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information there."
)
SEPARATORS = ("\n", " ", "\n\n")
COPY_SHARE = 0.2  # of episodes
REPEATED_SHARE = 0.2  # of fillers; others are text
INTRODUCTION_SHARE = 0.2
SENTENCE_TOKENS_MAX = 48  # how far a stretch of filler is drawn out to the end of its sentence


def words(text):
    return text.split()


NAMES = words(
    "Anna Ben Clara David Emma Frank Grace Henry Ivy Jack Kate Leo Mary Ned Olive Peter Quinn Rose Sam Tom "
    "Alice Arthur Charles Edward Ellen George Harry Helen James Jane John Joseph Lucy Margaret Martha "
    "Paul Philip Richard Robert Ruth Sarah Susan Thomas Walter William"
)
THINGS = words(
    "key lamp book coin ring map box knife cup rope bell drum hat boat horse sword mirror letter basket "
    "clock chair candle stone bottle shoe coat glass paper pen bag wheel gun table spoon blanket picture"
)
PLACES = words(
    "barn cellar garden tower kitchen attic river bridge forest church market stable cave mill harbour "
    "castle well school inn field house wood village city mountain lake street valley island hall "
    "prison palace library shop tent ship wagon cottage chapel road"
)
CITIES = words(
    "London Paris Rome Berlin Madrid Vienna Moscow Athens Cairo Boston Chicago Dublin Lisbon Oslo Prague "
    "Tokyo Delhi Sydney Geneva Venice Naples Milan Munich Hamburg Warsaw Budapest Lima Havana Quebec "
    "Toronto Denver Dallas Seattle Portland Oxford Cambridge York Bristol Glasgow Edinburgh"
)


def is_for_evaluation(key, value):
    return zlib.crc32(f"{key}|{value}".encode()) % EVALUATION_EVERY == 0


def number(draw, digits):
    return str(draw.integers(10 ** (digits - 1), 10**digits))


class Vocabulary:
    """Words that are one token each, so that keys and values are as varied as the tokenizer."""

    def __init__(self, tokenizer):
        self.words = [t[1:] for t in tokenizer.ids if re.fullmatch("Ġ[a-z]{4,}", t)]
        self.names = [t[1:] for t in tokenizer.ids if re.fullmatch("Ġ[A-Z][a-z]{3,}", t)]


def pick(draw, words):
    return words[draw.integers(len(words))]


# Each template draws a key and a value and returns (key, value, ways to state it, ways to ask for it).
def pass_key(draw, vocabulary):
    value = number(draw, 5)
    stated = (
        f"The pass key is {value}. Remember it. {value} is the pass key.",
        f"There is a pass key. The pass key is {value}. Remember it.",
    )
    return "", value, stated, ("What is the pass key? The pass key is",)


def magic_number(draw, vocabulary):
    key = pick(draw, CITIES if draw.random() < 0.5 else vocabulary.names)
    value = number(draw, draw.integers(4, 8))
    stated = (
        f"The special magic number for {key} is {value}.",
        f"One of the special magic numbers for {key} is: {value}.",
    )
    asked = (
        f"What is the special magic number for {key}? The special magic number for {key} is",
        f"The special magic number for {key} mentioned in the text is",
    )
    return key, value, stated, asked


def register(draw, vocabulary):
    key, value = f"{pick(draw, vocabulary.words)}-{pick(draw, vocabulary.words)}", number(draw, 5)
    stated = (
        f"line {key}: REGISTER_CONTENT is {value}.",
        f"The content of line {key} is {value}.",
    )
    asked = (
        f"What is the REGISTER_CONTENT in line {key}? The REGISTER_CONTENT in line {key} is",
        f"What is the content of line {key}? The content of line {key} is",
    )
    return key, value, stated, asked


def whereabouts(draw, vocabulary):
    who, what, value = pick(draw, NAMES), pick(draw, THINGS), pick(draw, PLACES)
    asked = (f"Where did {who} put the {what}? {who} put the {what} in the", f"Where did {who} put the {what}? In the")
    return f"{who} {what}", value, (f"{who} put the {what} in the {value}.",), asked


def secret_word(draw, vocabulary):
    key, value = pick(draw, vocabulary.names), pick(draw, vocabulary.words)
    asked = (f"What is the secret word of {key}? The secret word of {key} is", f"The secret word of {key} was")
    return key, value, (f"The secret word of {key} is {value}.",), asked


def table_row(draw, vocabulary):
    key, sign = pick(draw, vocabulary.words), pick(draw, (":", " ="))
    value = number(draw, draw.integers(2, 5)) if draw.random() < 0.5 else pick(draw, vocabulary.words)
    return key, value, (f"{key}{sign} {value}",), (f"{key}{sign}",)


TEMPLATES = {
    "pass key": pass_key,
    "magic number": magic_number,
    "register": register,
    "whereabouts": whereabouts,
    "secret word": secret_word,
    "table row": table_row,
}


@dataclasses.dataclass
class Fact:
    template: str
    key: str
    value: str
    statement: str
    question: str  # the value follows it after a blank


class Recall:
    """Makes episodes; `draw` decides everything random."""

    def __init__(self, tokenizer, draw, for_evaluation=False):
        self.tokenizer, self.draw, self.for_evaluation = tokenizer, draw, for_evaluation
        self.vocabulary = Vocabulary(tokenizer)
        self.full_stops = np.array([i for t, i in tokenizer.ids.items() if t.endswith((".", '."', ".'"))])
        self.repeated = {sign: np.array(tokenizer.encode(sign + REPEATED)) for sign in SEPARATORS}

    def fact(self, template):
        """A fact of this half of them."""
        while True:
            key, value, stated, asked = TEMPLATES[template](self.draw, self.vocabulary)
            if is_for_evaluation(key, value) == self.for_evaluation:
                return Fact(template, key, value, pick(self.draw, stated), pick(self.draw, asked))

    def facts(self, templates):
        """A fact for each template named, but none whose key is there already."""
        facts = {}
        for template in templates:
            fact = self.fact(template)
            facts.setdefault((template, fact.key), fact)
        return list(facts.values())

    def filler(self, source):
        """An endless source of filler, cut at ends of sentences: a function of the length wanted."""
        if self.draw.random() < REPEATED_SHARE:
            sentences = self.repeated[pick(self.draw, SEPARATORS)]
            return lambda length: np.tile(sentences, -(-length // len(sentences)))
        at = int(self.draw.integers(0, len(source) - 16384))

        def stretch(length):
            nonlocal at
            ids = source[at : at + length + SENTENCE_TOKENS_MAX].astype(np.int64)
            ends = np.flatnonzero(np.isin(ids[length:], self.full_stops))
            ids = ids[: length + ends[0] + 1] if length and len(ends) else ids[:length]
            at += len(ids)
            return ids

        return stretch

    def piece(self, text, weight):
        ids = np.array(self.tokenizer.encode(text), dtype=np.int64)
        return ids, np.full(len(ids), weight, dtype=np.float32)

    def question(self, fact, separator):
        """Ids and weights of question and answer."""
        parts = (
            self.piece(separator + fact.question, FACT_WEIGHT),
            self.piece(" " + fact.value, ANSWER_WEIGHT),
            self.piece("." if self.draw.random() < 0.8 else "\n", FACT_WEIGHT),
        )
        return tuple(np.concatenate(arrays) for arrays in zip(*parts))

    def templates(self, length):
        """Those of an episode, from a single one to so many that facts fill half of it. Most episodes are
        of one template: facts that look alike are told apart by the key alone."""
        count = int(np.exp(self.draw.uniform(0, np.log(max(2, length / 64)))))
        only = pick(self.draw, list(TEMPLATES))
        return [only if self.draw.random() < 0.6 else pick(self.draw, list(TEMPLATES)) for _ in range(count)]

    def facts_episode(self, source, length):
        """Facts and questions spread over filler, about `length` tokens."""
        draw, events = self.draw, []
        if draw.random() < INTRODUCTION_SHARE:
            events.append((0.0, *self.piece(INTRODUCTION, FACT_WEIGHT)))
        separator, ask_late = pick(draw, SEPARATORS), draw.random() < 0.6
        for fact in self.facts(self.templates(length)):
            told_at = draw.random() * 0.9
            events.append((told_at, *self.piece(separator + fact.statement, FACT_WEIGHT)))
            for _ in range(1 + (draw.random() < 0.3)):
                asked_at = 0.9 + 0.1 * draw.random() if ask_late else draw.uniform(told_at, 1)
                events.append((asked_at, *self.question(fact, separator)))
        events.sort(key=lambda event: event[0])
        room = max(0, length - sum(len(ids) for _, ids, _ in events))
        stretch, pieces, at = self.filler(source), [], 0.0
        for when, ids, weights in events:
            text = stretch(int((when - at) * room))
            pieces += [(text, np.full(len(text), TEXT_WEIGHT, dtype=np.float32)), (ids, weights)]
            at = when
        return pieces

    def copy_episode(self, source, length):
        """A span of random tokens or of text, something between, and the span again, once or more."""
        draw = self.draw
        size = int(draw.integers(8, max(9, min(256, length // 3))))
        if draw.random() < 0.5:
            span = draw.integers(1, len(self.tokenizer.ids), size)
        else:
            at = int(draw.integers(0, len(source) - size))
            span = source[at : at + size].astype(np.int64)
        stretch = self.filler(source)
        pieces, used = [(span, np.full(size, FACT_WEIGHT, dtype=np.float32))], size
        while used + size < length:
            text = stretch(int(draw.integers(0, max(1, length - used - size))) if draw.random() < 0.5 else 0)
            weights = np.full(size, TEXT_WEIGHT, dtype=np.float32)
            weights[:2] = 0  # where the copy begins nobody can know
            pieces += [(text, np.full(len(text), TEXT_WEIGHT, dtype=np.float32)), (span, weights)]
            used += len(text) + size
        return pieces

    def packed(self, source, length, end_of_text):
        """`length` ids and weights of episodes, one after another; fillers come from `source`."""
        ids, weights, used = [], [], 0
        while used < length:
            # Short episodes are dense, long ones stretch the distance.
            share = 1 if self.draw.random() < 0.4 else 2 ** -self.draw.uniform(0, np.log2(length / 128))
            make = self.copy_episode if self.draw.random() < COPY_SHARE else self.facts_episode
            pieces = make(source, int(min(length * share, length - used + 16)))
            ids += [np.array([end_of_text])] + [piece for piece, _ in pieces]
            weights += [np.array([0], dtype=np.float32)] + [weight for _, weight in pieces]
            used = sum(map(len, ids))
        return np.concatenate(ids)[:length], np.concatenate(weights)[:length]
