"""What the tiles of a summary hold: the extremes of its value, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from aicf.kernel.ir import Kernel, Summary
from aicf.scalar import Load, evaluate, integer

_EXTREME: dict[str, Any] = {"min": np.minimum, "max": np.maximum}


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
    walked = [(v.var.name, np.arange(0, integer(v.extent, env), v.step)) for v in summary.outer]
    walked += [(a.name, np.arange(integer(a.extent, env))) for a in axes]
    names, positions = [name for name, _ in walked], [at for _, at in walked]
    shape = tuple(len(at) for at in positions)
    grid = np.meshgrid(*positions, indexing="ij", sparse=True)
    known = {**env, **dict(zip(names, grid, strict=True))}
    values: Any = np.broadcast_to(evaluate(summary.value, known, tensors, double=double, read=read), shape)
    for d, axis in enumerate(axes, len(summary.outer)):
        starts = np.arange(0, shape[d], axis.tile)
        if values.size:
            values = _EXTREME[summary.op].reduceat(values, starts, axis=d)
        else:
            values = np.empty((*values.shape[:d], len(starts), *values.shape[d + 1 :]), values.dtype)
    return values
