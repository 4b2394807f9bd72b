"""Timing that the benchmarks share: competitors take turns, and only CPU time counts."""

import os
import statistics
import time
from collections.abc import Callable

import jax


def pin_to_one_core() -> None:
    """Everything of this process on one core, as if it were the only one: to be called before XLA starts and counts the cores.

    No flag keeps XLA to one thread; with two cores it hands small jobs from one to the other, which costs more than it gains.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def interleaved(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call, round by round; the first round warms up and is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for lap in range(rounds + 1):
        for name, call in calls.items():
            start = time.process_time()
            jax.block_until_ready(call())
            if lap > 0:
                seconds[name].append(time.process_time() - start)
    return seconds


def row(name: str, seconds: list[float], ours: list[float], note: str = "") -> None:
    """One line: what, how long (minimum and median), how many times longer than ours, by the minima."""
    best, middle = 1e3 * min(seconds), 1e3 * statistics.median(seconds)
    print(f"  {name:<58} {best:>11,.3f} {middle:>11,.3f} {best / (1e3 * min(ours)):>10,.1f} x  {note}")
