"""Timing and memory of several ways to run the same call, side by side in one process.

Time: rounds in which every contender runs once, in alternating order, so that whatever else the machine does meets all
alike; the best round of each counts.

Memory: what one call needs on top of what the process held before it. Each contender has run before, so compiled code and the
libraries' buffers are there; the allocator gives back what is free; the kernel's high-water mark of resident memory (VmHWM) is
set back to the present. The mark after the call, less the resident memory before it, is the extra peak: every page that the
call touched, whoever asked for it (PyTorch, Inductor, AICF, the C library). Linux only; elsewhere there is no figure.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Call = Callable[[], Any]


@dataclass
class Measured:
    """Best seconds of a call, all rounds, and the extra peak memory in bytes (None where it cannot be measured)."""

    seconds: float
    rounds: list[float]
    peak: int | None


def measure(contenders: Mapping[str, Call], *, budget: float = 20.0, least: int = 4, most: int = 30) -> dict[str, Measured]:
    """Runs `contenders`, which are warm, for about `budget` seconds (`least` to `most` rounds), then twice each for memory."""
    names = list(contenders)
    rounds: dict[str, list[float]] = {n: [] for n in names}
    began = time.perf_counter()
    for k in range(most):
        if k >= least and time.perf_counter() - began > budget:
            break
        for name in names if k % 2 == 0 else reversed(names):
            start = time.perf_counter()
            contenders[name]()
            rounds[name].append(time.perf_counter() - start)
    return {n: Measured(min(rounds[n]), rounds[n], extra_peak(contenders[n])) for n in names}


def extra_peak(call: Call) -> int | None:
    """Bytes of resident memory that `call` needs at its peak on top of those before it; None without Linux's counters."""
    found: list[int] = []
    for _ in range(2):
        gc.collect()
        try:
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
            before = _status("VmRSS")
        except (OSError, AttributeError):
            return None
        call()
        found.append(_status("VmHWM") - before)
    return max(found)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {key} in /proc/self/status")
