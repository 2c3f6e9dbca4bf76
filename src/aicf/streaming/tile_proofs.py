"""What can be proved of the tiles of a stream from the expressions that it carries: when a tile may be skipped, when it needs no
mask, and where the stream ends. The proofs themselves are rules over boxes of positions (`tiles`).

    running max of where(j <= i, s, -inf), tiles of 128 x 64
      ->  empty when j0 - min(i0 + 128, N) + 1 > 0;  full when j0 + 64 <= M & min(j0 + 64, M) - i0 - 1 <= 0
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from aicf.scalar import ABSORBED, Call, Const, Expr, Load, Var, call, const, index, integer_const, is_float, variables, walk
from aicf.scalar.functions import FILL
from aicf.streaming import tiles


@dataclass(frozen=True)
class Extent:
    """A position variable and the number of its positions."""

    variable: Var
    extent: Expr


@dataclass(frozen=True)
class ExtremumBody:
    """A running extremum: its operation and what it is taken of."""

    op: Literal["max", "min"]
    body: Expr


@dataclass(frozen=True)
class SumBody:
    """A running sum: all that is summed, the part of it that is the same for all columns, and whether it is relative to a
    reference."""

    body: Expr
    weight: Expr
    relative: bool


@dataclass(frozen=True)
class Stream:
    """A stream as the proofs see it: rows, the streamed axis, batch variables, what is carried along it, and
    the names of the references that sums are relative to."""

    row: Extent
    stream: Extent
    batch: tuple[Var, ...]
    extrema: tuple[ExtremumBody, ...]
    sums: tuple[SumBody, ...]
    references: frozenset[Var] = frozenset()


@dataclass(frozen=True)
class TileProof:
    """What is proved for tiles of `tile_m` x `tile_n`.

    `empty`: nothing of the tile counts; `full`: the conditions of `decided` have their values everywhere in it; `low`, `high`:
    bounds of the stream; `end`: where the streamed positions of a block of rows end inside of a tile, the rows' origin being
    the block's; `fill`: the finite number that skipped scores hold, None when there is nothing to check at the end;
    `summaries`: per-tile extremes that the conditions read. `undecided`: something that may be a mask is never proved to hold,
    so that no tile is known to be without.
    """

    empty: Expr
    full: Expr
    decided: tuple[tuple[Expr, bool], ...]
    low: tuple[Expr, ...]
    high: tuple[Expr, ...]
    fill: float | None
    summaries: tuple[tiles.TileSummary, ...]
    undecided: bool = False
    end: Expr | None = None


def prove_tiles(s: Stream, tile_m: int, tile_n: int, *, strict: bool = False, rows: int = 0) -> TileProof:
    """What can be proved of tiles of `tile_m` rows by `tile_n` streamed positions, of which `rows` rows at a time are worked on
    (0: where a block of rows ends is not asked for).

    A tile that the mask hides is empty if what it hides is finite: 0 times infinity is NaN. `strict` assumes nothing, so that no
    tile is empty, and all that the source computes is computed.
    """
    row, stream = s.row.variable, s.stream.variable
    box = tiles.tile_box({row: (s.row.extent, tile_m), stream: (s.stream.extent, tile_n)}, s.batch, s.references)
    fills = tiles.Fills()
    empty = const(False, "bool") if strict else _empty(s, box, fills)
    never = isinstance(empty, Const) and not empty.value
    block_end: Expr | None = None
    if 0 < rows < tile_m and not never:
        cut = index(f"{stream.name}_cut")
        rest = tiles.rest_of(box, row, s.row.extent, rows, stream, cut)
        block_end = tiles.end_of_rows(_empty(s, rest, fills), cut)
    low, high = tiles.stream_bounds(empty, index(stream.name + "0"), tile_n)
    end = call("add", index(stream.name + "0"), integer_const(tile_n))
    full: Expr = call("le", end, s.stream.extent)
    decided: list[tuple[Expr, bool]] = []
    undecided = False
    bounded: Sequence[Expr] = []  # a tile that only some conditions leave whole may be cut by the stream's end
    for body in (*(b.body for b in s.extrema), *(x.weight for x in s.sums)):
        for c, polarity in _mask_conditions(body, frozenset({row, stream})):
            holds = tiles.must(box, c if polarity else call("not", c))
            if isinstance(holds, Const) and not holds.value:
                bounded, undecided = high, True
            elif (c, polarity) not in decided:
                decided.append((c, polarity))
                full = call("and", full, holds)
    for h in bounded:
        full = call("and", full, call("le", end, h))
    used = _tensors((empty, full))
    # Masks that are added: numbers with -inf among them, or what is multiplied with a large negative one.
    undecided |= any(is_float(r.value.dtype) or _lowest(r.value) for r in box.summaries.values() if r.param in used)
    undecided |= not decided and any(_lowest(b.body) for b in s.extrema)
    if block_end is not None:
        used |= _tensors((block_end,))
    summaries = tuple(r for r in box.summaries.values() if r.param in used)
    fill = None if never else fills.largest
    return TileProof(empty, full, tuple(decided), tuple(low), tuple(high), fill, summaries, undecided, block_end)


def _tensors(expressions: Iterable[Expr]) -> set[str]:
    return {x.tensor for e in expressions for x in walk(e) if isinstance(x, Load)}


def _empty(s: Stream, box: tiles.Box, fills: tiles.Fills) -> Expr:
    """When nothing in a box counts."""
    if not s.extrema and not s.sums:
        return const(False, "bool")
    empty: Expr = const(True, "bool")
    for b in s.extrema:
        empty = call("and", empty, tiles.masked(box, b.body, fills) if b.op == "max" else const(False, "bool"))
    for x in s.sums:
        loose = tiles.Fills()
        empty = call("and", empty, tiles.vanishes(box, x.body, loose))
        if loose.largest is not None:
            if x.relative:
                fills.add(loose.largest)
            elif loose.largest > -ABSORBED:  # a larger fill counts
                empty = const(False, "bool")
    return empty


def _lowest(e: Expr) -> bool:
    """Whether a mask's fill is part of `e`."""
    return any(isinstance(x, Const) and is_float(x.dtype) and x.value <= FILL for x in walk(e))


def _mask_conditions(body: Expr, positions: frozenset[Var]) -> list[tuple[Expr, bool]]:
    """Conditions that select a mask's fill (or zero), with the value that they have where the score counts."""
    conditions: list[tuple[Expr, bool]] = []
    for x in walk(body):
        if isinstance(x, Call) and x.fn == "cast" and x.args[0].dtype == "bool" and is_float(x.dtype):
            c, yes, no = x.args[0], const(1.0, "f32"), const(0.0, "f32")
        elif isinstance(x, Call) and x.fn == "where" and is_float(x.dtype):
            c, yes, no = x.args
        else:
            continue
        if variables(c) & positions and _blank(yes) != _blank(no):
            conditions.append((c, _blank(no) > _blank(yes)))
    return conditions


def _blank(e: Expr) -> int:
    """2 for a fill, 1 for zero, 0 for anything else: of two branches, the blanker one is the mask's."""
    return 0 if not isinstance(e, Const) else 2 if e.value <= FILL else int(e.value == 0)
