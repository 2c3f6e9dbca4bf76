"""What the tiles of a summary hold: the extremes of its value, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from aicf.kernel.ir import Kernel, Summary
from aicf.scalar import Load, evaluate, integer, tile_extremes


def summary_values(
    kernel: Kernel,
    summary: Summary,
    env: Mapping[str, Any],
    tensors: Mapping[str, Any],
    *,
    double: bool = False,
    read: Callable[[Load, tuple[Any, ...]], Any] | None = None,
) -> Any:
    """The array that a kernel keeps of `summary`: all outer positions at once, then a reduction for each tile. `env`: sizes and
    scalars by name; `tensors`: arrays by kernel name; `double` and `read` as in `aicf.scalar.evaluate`."""
    axes = [kernel.axis(a) for a in summary.axes]
    return tile_extremes(
        summary.op,
        {v.var.name: np.arange(0, integer(v.extent, env), v.step) for v in summary.outer},
        {a.name: (integer(a.extent, env), a.tile) for a in axes},
        lambda grid: evaluate(summary.value, {**env, **grid}, tensors, double=double, read=read),
    )
