#!/usr/bin/env python3
"""Trains the network on token files for a given time and prints its held-out perplexity.

Reads FOLDER/{fiction,wikipedia}_{train,held_out}.bin and tokenizer.json, as tokens.py writes them. The
checkpoint is saved every 500 steps.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import dataclasses
import math
import pathlib
import time

import bpe
import numpy as np
import torch
import torch.nn.functional as F
from network import Network, Shape, grouped
from recall import packed_recall

FICTION_SHARE = 0.65
WARM_UP_STEPS = 150
FULL_RATE_SHARE = 0.6  # of the time; then the rate falls linearly to
RATE_SHARE_MIN = 0.02
WEIGHT_DECAY = 0.1
GRADIENT_NORM_MAX = 1.0
SAVE_EVERY_STEPS = 500
PRINT_EVERY_STEPS = 10
HELD_OUT_WINDOWS = 40


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("folder", type=pathlib.Path, help="where tokens.py wrote its files")
    add("--out", type=pathlib.Path, help="the checkpoint; default: FOLDER/checkpoint.pt")
    add("--seconds", type=float, required=True, help="how long to train")
    add("--start", type=pathlib.Path, help="checkpoint to start from; its KV heads are averaged as needed")
    add("--kv-heads", type=int, default=Shape.kv_heads, help="default: %(default)s")
    add("--context", type=int, default=Shape.context, help="tokens of a sequence; default: %(default)s")
    add("--learning-rate", type=float, default=3e-3, help="the peak; default: %(default)s")
    add("--recall", type=float, default=0.0, help="share of recall sequences; default: %(default)s")
    add("--batch", type=int, default=16, help="sequences of a step; default: %(default)s")
    add("--threads", type=int, default=2, help="default: %(default)s")
    arguments = parser.parse_args()
    arguments.out = arguments.out or arguments.folder / "checkpoint.pt"
    return arguments


def token_files(folder, part):
    kinds = ("fiction", "wikipedia")
    return [np.memmap(folder / f"{kind}_{part}.bin", dtype=np.uint16, mode="r") for kind in kinds]


class Batches:
    """Random windows of the training text, and recall sequences among them."""

    def __init__(self, arguments, context):
        self.fiction, self.wikipedia = token_files(arguments.folder, "train")
        self.tokenizer = bpe.Tokenizer(arguments.folder / "tokenizer.json")
        self.draw = np.random.default_rng(0)
        self.batch, self.recall, self.length = arguments.batch, arguments.recall, context + 1

    def sequence(self):
        source = self.fiction if self.draw.random() < FICTION_SHARE else self.wikipedia
        at = self.draw.integers(0, len(source) - self.length)
        if self.recall and self.draw.random() < self.recall:
            return packed_recall(self.tokenizer, self.draw, source, self.length, bpe.END_OF_TEXT_ID)
        return source[at : at + self.length].astype(np.int64)

    def next(self):
        """Inputs and targets, each [batch, context]."""
        ids = torch.stack([torch.from_numpy(self.sequence()) for _ in range(self.batch)])
        return ids[:, :-1], ids[:, 1:]


def learning_rate(peak, step, time_share):
    warm_up = min(1, (step + 1) / WARM_UP_STEPS)
    if time_share < FULL_RATE_SHARE:
        return peak * warm_up
    falling = 1 - (time_share - FULL_RATE_SHARE) / (1 - FULL_RATE_SHARE)
    return peak * warm_up * max(RATE_SHARE_MIN, falling)


def make_optimizer(network):
    matrices = [p for p in network.parameters() if p.dim() == 2]
    vectors = [p for p in network.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


def train_step(network, optimizer, inputs, targets, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = network(inputs)
    loss = F.cross_entropy(logits.float().flatten(0, 1), targets.reshape(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), GRADIENT_NORM_MAX)
    optimizer.step()
    return loss.item()


def train(network, batches, arguments, save):
    optimizer, start, step, smooth = make_optimizer(network), time.monotonic(), 0, None
    while (elapsed := time.monotonic() - start) < arguments.seconds:
        rate = learning_rate(arguments.learning_rate, step, elapsed / arguments.seconds)
        loss = train_step(network, optimizer, *batches.next(), rate)
        step += 1
        smooth = loss if smooth is None else 0.97 * smooth + 0.03 * loss
        if step % PRINT_EVERY_STEPS == 0:
            print(f"step {step}: loss {smooth:.3f}, rate {rate:.5f}, {elapsed:.0f} s", flush=True)
        if step % SAVE_EVERY_STEPS == 0:
            save(step)
    save(step)


def held_out_perplexity(network, folder, context):
    network.eval()
    draw = np.random.default_rng(7)
    for kind, ids in zip(("fiction", "wikipedia"), token_files(folder, "held_out")):
        losses = []
        for _ in range(HELD_OUT_WINDOWS):
            at = draw.integers(0, len(ids) - context - 1)
            window = torch.from_numpy(ids[at : at + context + 1].astype(np.int64))
            with torch.no_grad():
                logits = network(window[None, :-1])[0]
            losses.append(F.cross_entropy(logits, window[1:]).item())
        print(f"held-out {kind}: perplexity {math.exp(np.mean(losses)):.1f}", flush=True)


def main():
    arguments = parse_arguments()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    shape = Shape(kv_heads=arguments.kv_heads, context=arguments.context)
    network = Network(shape)
    print(f"{sum(p.numel() for p in network.parameters())} parameters")
    if arguments.start:
        checkpoint = torch.load(arguments.start, map_location="cpu")
        network.load_state_dict(grouped(checkpoint["weights"], Shape(**checkpoint["shape"]), shape))

    def save(step):
        state = {"weights": network.state_dict(), "shape": dataclasses.asdict(shape), "step": step}
        torch.save(state, arguments.out)

    train(network, Batches(arguments, shape.context), arguments, save)
    held_out_perplexity(network, arguments.folder, shape.context)


if __name__ == "__main__":
    main()
