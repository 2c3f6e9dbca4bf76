"""Which checks of a kernel a call needs: those that the sizes prove need none, those of positions alone one for all calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aicf.kernel import Check, Kernel
from aicf.kernel.indices import of_a_tensor
from aicf.scalar import integer
from aicf.scalar.ranges import span


def needed(kernel: Kernel, sizes: Mapping[str, int]) -> tuple[Sequence[int], Sequence[int]]:
    """(numbers of the checks that are decided by `sizes`, numbers of those that depend on what tensors hold)."""
    open_ = [k for k, c in enumerate(kernel.checks) if not _proved(c, sizes)]
    held = {k for k in open_ if of_a_tensor(kernel.checks[k].value)}
    return [k for k in open_ if k not in held], [k for k in open_ if k in held]


def _proved(c: Check, sizes: Mapping[str, int]) -> bool:
    extent = integer(c.extent, sizes)
    turns = {v.var.name: integer(v.extent, sizes) for v in c.loops}
    if any(n <= 0 for n in turns.values()):
        return True  # no index at all
    known = {name: (n, n) for name, n in sizes.items()} | {name: (0, n - 1) for name, n in turns.items()}
    low, high = span(c.value, known)
    return (-extent if c.wraps else 0) <= low and high < extent
