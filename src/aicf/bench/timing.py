"""Interleaved timing: every contender in turn, so that whatever else the machine does meets all alike; the best time counts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

LEAST = 3  # rounds in which everybody runs, however slow
BURST = 2e-3  # seconds of calls in a row that a quick contender gets in a round: caches are then its own
MOST = 200  # calls in a burst


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """PyTorch, and so everybody who asks it, has `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


Clock = Callable[[], float]


def clock_for(threads: int) -> Clock:
    """How calls on so many threads are timed. On one: in processor time of the process, which does not grow when the machine is
    busy with something else. On several: by the wall clock, since who waits for another thread is not done."""
    return time.process_time if threads == 1 else time.perf_counter


def interleaved(
    calls: Mapping[str, Callable[[], Any]], budget: float, least: int = LEAST, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of single calls. `calls` are warm. Everybody gets `least` rounds, then an equal share of `budget` seconds; the
    order of a round alternates."""
    names = list(calls)
    seconds: dict[str, list[float]] = {n: [] for n in names}
    spent = dict.fromkeys(names, 0.0)
    share, turn, more = budget / max(1, len(names)), 0, True
    while more:
        more = False
        for name in names if turn % 2 == 0 else reversed(names):
            if turn >= least and spent[name] >= share:
                continue
            more = True
            call, own = calls[name], seconds[name]
            burst = max(1, min(MOST, int(BURST / max(1e-9, min(own))))) if own else 1
            for _ in range(burst):
                began = clock()
                call()
                took = clock() - began
                own.append(took)
                spent[name] += took
        turn += 1
    return seconds
