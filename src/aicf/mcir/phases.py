"""What is proved of the tiles of a stream: which may be skipped, which need no mask, where the stream begins and ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aicf.scalar import Const, Expr, Var


@dataclass(frozen=True)
class TileSummary:
    """An extreme of a per-position value over each tile, computed once per call: name[outer…, tile of each axis] = op of
    value."""

    name: str
    op: Literal["min", "max"]
    axes: tuple[Var, ...]
    outer: tuple[Var, ...]
    value: Expr


@dataclass(frozen=True)
class Phases:
    """Proofs for tiles of `tile_m` rows by `tile_n` streamed positions; they hold for no other lengths.

    `empty`: when nothing of a tile counts, so that it is skipped. `full`: when every position exists and each condition of
    `decided` has the value beside it everywhere in the tile. `low`, `high`: no position before, from there on, counts. `end`:
    where the positions that count for a block of `rows` rows end inside of a tile, the row axis' origin being the block's.
    `fill`: skipped scores hold this number; a row whose maximum is not far above it is done again with nothing skipped.
    """

    tile_m: int
    tile_n: int
    rows: int
    empty: Expr
    full: Expr
    decided: tuple[tuple[Expr, bool], ...] = ()
    low: tuple[Expr, ...] = ()
    high: tuple[Expr, ...] = ()
    end: Expr | None = None
    fill: float | None = None
    summaries: tuple[TileSummary, ...] = ()

    @property
    def trivial(self) -> bool:
        """Whether nothing is proved but that a tile whose positions all exist is whole."""
        skips = not (isinstance(self.empty, Const) and not self.empty.value)
        return not (skips or self.decided or self.low or self.high or self.summaries) and self.end is None and self.fill is None
