#!/usr/bin/env python3
"""Trains the network on token files for a given time; a run may go on where another stopped.

Reads FOLDER/{fiction,wikipedia}_{train,evaluation}.bin and tokenizer.json, as tokens.py writes them. The
state (weights, optimizers, counters) is saved every few minutes and at the end.
"""
# SPDX-License-Identifier: Apache-2.0
import argparse
import dataclasses
import os
import pathlib
import signal
import time

import torch
from batches import KINDS, Batches, token_files
from evaluate import perplexity, recall_accuracy, recall_lines
from grow import grown
from network import Network, Shape
from weights import read_directory

WARM_UP_STEPS = 100
WEIGHT_DECAY = 0.1
GRADIENT_NORM_MAX = 1.0
SAVE_SECONDS = 240
PRINT_EVERY_STEPS = 20


def parse_mix(text):
    context, steps, recall = text.split(":")
    return int(context), float(steps), float(recall)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("folder", type=pathlib.Path, help="where tokens.py wrote its files")
    add("--out", type=pathlib.Path, required=True, help="the state")
    add("--seconds", type=float, required=True, help="how long to train")
    add("--resume", type=pathlib.Path, help="state to go on from")
    add("--start", type=pathlib.Path, help="Hugging Face directory whose weights are grown into the network")
    add(
        "--mix",
        type=parse_mix,
        nargs="+",
        default=[(512, 1.0, 0.15)],
        metavar="CONTEXT:STEPS:RECALL",
        help="sequences of CONTEXT tokens in this share of the STEPS, this share of them RECALL",
    )
    add("--tokens", type=int, default=8192, help="of a step; default: %(default)s")
    add("--learning-rate", type=float, default=3e-3, help="default: %(default)s")
    add("--anneal", action="store_true", help="the rate falls linearly to zero over the time")
    add("--evaluate-seconds", type=float, default=480, help="how often; default: %(default)s")
    add("--threads", type=int, default=2, help="default: %(default)s")
    return parser.parse_args()


def make_optimizers(network):
    """Muon for the matrices of the layers, AdamW for the rest."""
    matrices = [p for p in network.layers.parameters() if p.dim() == 2]
    vectors = [p for p in network.parameters() if p.dim() == 1]
    groups = [
        {"params": [network.embedding.weight], "weight_decay": WEIGHT_DECAY},
        {"params": vectors, "weight_decay": 0},
    ]
    return (
        torch.optim.Muon(matrices, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True),
    )


class Trainer:
    def __init__(self, arguments):
        self.arguments, self.step, self.tokens = arguments, 0, 0
        self.network = self.first_network()
        self.optimizers = make_optimizers(self.network)
        if arguments.resume:
            self.load(arguments.resume)
        self.batches = Batches(arguments.folder, arguments.tokens, seed=self.step)
        self.loss = torch.compile(self.network.loss, dynamic=False)
        self.stopped = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)

    def stop(self, *_):
        """Ends the run after this step; nothing is lost."""
        self.stopped = True

    def first_network(self):
        if self.arguments.resume:
            return Network(Shape(**torch.load(self.arguments.resume, map_location="cpu")["shape"]))
        if self.arguments.start:
            shape, weights = read_directory(self.arguments.start)
            return grown(weights, shape, Shape())
        return Network(Shape())

    def load(self, path):
        state = torch.load(path, map_location="cpu")
        self.network.load_state_dict(state["weights"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        self.step, self.tokens = state["step"], state["tokens"]

    def save(self):
        state = {
            "shape": dataclasses.asdict(self.network.shape),
            "weights": self.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "tokens": self.tokens,
        }
        unfinished = self.arguments.out.with_suffix(".part")
        torch.save(state, unfinished)
        os.replace(unfinished, self.arguments.out)

    def rate(self, time_share):
        rate = self.arguments.learning_rate * min(1, (self.step + 1) / WARM_UP_STEPS)
        return rate * (1 - time_share) if self.arguments.anneal else rate

    def train_step(self, rate):
        shares = [share for _, share, _ in self.arguments.mix]
        context, _, recall_share = self.arguments.mix[self.batches.draw.choice(len(shares), p=shares)]
        inputs, targets, weights = self.batches.next(context, recall_share)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = rate
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = self.loss(inputs, targets, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), GRADIENT_NORM_MAX)
        for optimizer in self.optimizers:
            optimizer.step()
        self.step += 1
        self.tokens += inputs.numel()
        return loss.item()

    def run(self):
        start, smooth, saved, evaluated = time.monotonic(), None, 0, 0
        while (elapsed := time.monotonic() - start) < self.arguments.seconds and not self.stopped:
            rate = self.rate(elapsed / self.arguments.seconds)
            loss = self.train_step(rate)
            smooth = loss if smooth is None else 0.97 * smooth + 0.03 * loss
            if self.step % PRINT_EVERY_STEPS == 0:
                print(
                    f"step {self.step}: loss {smooth:.3f}, rate {rate:.5f}, {self.tokens / 1e6:.2f} M tokens, "
                    f"{elapsed:.0f} s",
                    flush=True,
                )
            if elapsed - saved > SAVE_SECONDS:
                self.save()
                saved = elapsed
            if elapsed - evaluated > self.arguments.evaluate_seconds:
                self.evaluate()
                evaluated = elapsed
        self.save()
        if not self.stopped:
            self.evaluate()

    def evaluate(self):
        """Cheap figures to steer by; evaluate.py measures well."""
        context, folder = max(context for context, _, _ in self.arguments.mix), self.arguments.folder
        for kind, ids in zip(KINDS, token_files(folder, "evaluation")):
            value = perplexity(self.network, ids, min(context, 1024), windows=10)
            print(f"perplexity {kind}: {value:.1f}", flush=True)
        lengths = [length for length in (256, 512, 1024, 2048, 4096) if length <= 2 * context]
        for line in recall_lines(recall_accuracy(self.network, folder, lengths, texts=6)):
            print(line, flush=True)


def main():
    arguments = parse_arguments()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    trainer = Trainer(arguments)
    print(f"{sum(p.numel() for p in trainer.network.parameters())} parameters", flush=True)
    trainer.run()


if __name__ == "__main__":
    main()
