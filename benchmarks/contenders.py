"""Timing and memory of several ways to run the same call, side by side in one process.

Time: every contender in turn (aicf.bench.timing); the best call of each counts.

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

from aicf.bench.timing import LEAST, interleaved

Call = Callable[[], Any]


@dataclass
class Measured:
    """Best seconds of a call, all rounds, and the extra peak memory in bytes (None where it cannot be measured)."""

    seconds: float
    rounds: list[float]
    peak: int | None


def measure(contenders: Mapping[str, Call], *, budget: float = 20.0, say: Callable[[str], None] = print) -> dict[str, Measured]:
    """Times `contenders`, which are warm, for about `budget` seconds, then runs each for memory. Where a round of all takes so
    long that the budget does not hold the usual rounds, there are fewer, down to one."""
    began = time.perf_counter()
    for call in contenders.values():
        call()
    round_takes = time.perf_counter() - began
    rounds_left = max(1, min(LEAST, int(budget / max(1e-9, round_takes))))
    if rounds_left < LEAST:
        say(f"a round of all takes {round_takes:.1f} s: timing {rounds_left} of them instead of {LEAST}")
    rounds = interleaved(contenders, budget, rounds_left)
    repeats = 2 if 2 * round_takes < budget else 1
    return {n: Measured(min(rounds[n]), rounds[n], extra_peak(contenders[n], repeats)) for n in contenders}


def extra_peak(call: Call, repeats: int = 2) -> int | None:
    """Bytes of resident memory that `call` needs at its peak on top of those before it; None without Linux's counters."""
    found: list[int] = []
    for _ in range(repeats):
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
