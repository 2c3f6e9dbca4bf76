"""The axes of a region: what a position along each of them means for the way data moves.

i < N   row          one result per element; tiles of rows are independent
j < M   stream       walked tile by tile; nothing of its extent is ever kept
d < 64  contracted   summed inside a score product
e < 64  column       of the streamed values, kept in the accumulators
b < B   batch        independent work items
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aicf.scalar import Expr, Var


class AxisRole(str, Enum):
    """What an axis is to its region."""

    BATCH = "batch"
    ROW = "row"
    STREAM = "stream"
    CONTRACTED = "contracted"
    COLUMN = "column"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class RegionAxis:
    """An axis called `name`, whose positions are the values of `variable` from 0 below `extent`.

    `extent` is a size symbol of the kernel or a number; what the symbol is in the sizes of the source graph, the region's
    attribute `sizes` says.
    """

    name: str
    role: AxisRole
    variable: Var
    extent: Expr
