"""Which rows there are: the issue's whole grid, or the part of it that was asked for."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from aicf.frontends.torch.fx.symbols import DTYPE_OF

from .cases import Case, Size

NS = (128, 512, 2048, 8192)
DS = (64, 128)
DTYPES = ("f32", "bf16", "f16")
DECODE_KEYS = 8192
DECODE_BATCHES = (1, 16)  # one sequence, whose keys the caches may hold, and more of them than fit there
TOKENS = 512  # of a batch, at least


@dataclass(frozen=True)
class Job:
    """A row to be measured."""

    case: Case
    size: Size
    dtype: torch.dtype
    threads: int

    @property
    def key(self) -> tuple[object, ...]:
        """The key of the row that this makes."""
        s = self.size
        return (self.case.name, s.batch, s.heads, s.n, s.d, DTYPE_OF[self.dtype], self.threads)

    def __str__(self) -> str:
        plural = "s" if self.threads != 1 else ""
        return f"{self.case.name} {self.size} {DTYPE_OF[self.dtype]}, {self.threads} thread{plural}"


def sizes(case: Case, n: int, d: int) -> list[Size]:
    """Batch and heads that make a row of `n` tokens take neither microseconds nor minutes."""
    if case.rows is not None:
        return [Size(batch, 8, DECODE_KEYS, d) for batch in DECODE_BATCHES]
    heads = 8 if n <= 4096 else max(2, case.share)
    return [Size(max(1, TOKENS // n), heads, n, d)]


def plan(
    cases: Sequence[Case], ns: Sequence[int], ds: Sequence[int], dtypes: Sequence[torch.dtype], threads: Sequence[int],
    given: Sequence[Size] = (),
) -> list[Job]:  # fmt: skip
    """The jobs of a selection, in an order that shows small ones first; each once. `given` sizes replace `ns` and `ds`."""
    if given:
        shapes = [(case, size) for size in given for case in cases]
    else:
        shapes = [(case, size) for n in ns for d in ds for case in cases for size in sizes(case, n, d)]
    jobs = [Job(case, size, dtype, count) for dtype in dtypes for case, size in shapes for count in threads]
    return list({job.key: job for job in jobs}.values())


def present_threads() -> int:
    """PyTorch's own number of threads."""
    return torch.get_num_threads()


def about() -> dict[str, Any]:
    """What the figures depend on, for the reader of a file of them."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor()
