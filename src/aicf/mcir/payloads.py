"""What a node does, as typed data: the payload of each op. Kernel IR is lowered from these and from the values' axes.

Expressions name values of the module: `score_frag` is the element of that value at the row and position at hand, `softmax_max`
the state of the row. An extremum has two more names: its `reference`, to which the sums are relative, and `old`, the reference
before the tile at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from aicf.scalar import MONOIDS, Const, Expr, Var, call, const


@dataclass(frozen=True)
class TileLoad:
    """load_tile: the output's element at its axes' positions.

    `index`: the element of tensor `source` (a node attribute) to take, converted to the value's type. `element`: instead of an
    index, an expression over elements of several tensors, or one that computes.
    """

    index: tuple[Expr, ...] | None = None
    element: Expr | None = None


@dataclass(frozen=True)
class ScoreProduct:
    """compute_score: output[row, stream] = sum over axis `over` (a variable's name) of input 0 times input 1."""

    over: str


@dataclass(frozen=True)
class RunningExtremum:
    """A carried extremum: state = op(state, op over the streamed tile of body), from `init` (None: the identity of op).

    `reference` names what sums are relative to: the new state, or 0 while it is still the identity. `old` names the reference
    before this tile.
    """

    state: str
    op: Literal["max", "min"]
    body: Expr
    init: Expr | None
    reference: Var
    old: Var


@dataclass(frozen=True)
class Shift:
    """How a sum of terms `g * (u - reference)` moves with the reference: by `distance` times the sum `partner`, that of `g`."""

    partner: str
    distance: Expr


@dataclass(frozen=True)
class RunningSum:
    """A carried sum: state = state * rescale + sum over the streamed tile of weight (times a streamed value).

    `rescale`: the factor that takes the old sum to the new references; None where the sum is relative to none. `shift`: what is
    added besides when the reference moves.
    """

    state: str
    weight: Expr
    rescale: Expr | None
    shift: Shift | None = None


@dataclass(frozen=True)
class StateUpdate:
    """update_softmax and update_state: the extrema in order, each of which later ones may refer to, then the sums per row."""

    extrema: tuple[RunningExtremum, ...]
    sums: tuple[RunningSum, ...]


@dataclass(frozen=True)
class Accumulation:
    """accumulate_output: a carried sum of weights times the streamed values that are the node's last input."""

    sum: RunningSum


@dataclass(frozen=True)
class TileStore:
    """store_tile: target[index] = program over the states of a row, once the stream is over."""

    index: tuple[Expr, ...]
    program: Expr


Payload: TypeAlias = TileLoad | ScoreProduct | StateUpdate | Accumulation | TileStore


def identity_of(op: str) -> Const:
    """The extremum of nothing."""
    return MONOIDS[op].nothing("f32")


def reference_of(op: str, extremum: Expr) -> Expr:
    """The reference that goes with an extremum: 0 while nothing was seen (docs/theory.md, 5)."""
    return call("where", call("eq", extremum, identity_of(op)), const(0.0, "f32"), extremum)
