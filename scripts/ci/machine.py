"""How fast this machine is now, beside the one that the budgets of stages were set on."""
# SPDX-License-Identifier: Apache-2.0
import concurrent.futures
import os
import time

ROUNDS = 6_000_000
# Seconds that one ROUNDS took on each of two cores at once: an EPYC with AVX-512 (Zen 4), nothing else running.
REFERENCE_SECONDS = 0.26
# Above this a stage that takes too long is told, and fails nothing.
CROWDED = 1.25


def work(rounds):
    """Arithmetic of the interpreter: no memory to speak of, no vector instructions."""
    started = time.perf_counter()
    number = 1
    for _ in range(rounds):
        number = number * 5 & 0xFFFF
    return time.perf_counter() - started


def slowdown():
    """How many times longer than on the reference the same work takes on all cores at once; best of two."""
    cores = os.cpu_count() or 1
    with concurrent.futures.ProcessPoolExecutor(cores) as pool:
        rounds = [max(pool.map(work, [ROUNDS] * cores)) for _ in range(2)]
    return min(rounds) / REFERENCE_SECONDS


def is_crowded(slowdowns):
    return max(slowdowns) > CROWDED
