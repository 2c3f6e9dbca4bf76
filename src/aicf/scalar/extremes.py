"""The extremes of a value over tiles of positions: what summaries of tiles are, in every level that has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np


def tile_extremes(
    op: Literal["min", "max"],
    outer: Mapping[str, Any],
    axes: Mapping[str, tuple[int, int]],
    value: Callable[[Mapping[str, Any]], Any],
) -> Any:
    """An array of one element for each combination of `outer` positions (arrays by variable) and each tile of `axes` (length and
    tile length by variable): the least or greatest of `value` there, which gets all positions at once."""
    positions = [*outer.values(), *(np.arange(length) for length, _ in axes.values())]
    grid = np.meshgrid(*positions, indexing="ij", sparse=True)
    shape = tuple(len(at) for at in positions)
    values: Any = np.broadcast_to(value(dict(zip((*outer, *axes), grid, strict=True))), shape)
    for d, (length, tile) in enumerate(axes.values(), len(outer)):
        starts = np.arange(0, length, tile)
        if values.size:
            values = (np.minimum if op == "min" else np.maximum).reduceat(values, starts, axis=d)
        else:
            values = np.empty((*values.shape[:d], len(starts), *values.shape[d + 1 :]), values.dtype)
    return values
