"""The input and the output of the derivation, as data.

A *cascade* is an ordered list of reductions over one streamed axis, whose bodies may use the final values of earlier ones:

    m = max over j of s          l = sum over j of exp(s - m)          o = sum over j of exp(s - m) / l * V[b, h, j, e]

A `StreamProgram` computes it in one pass over the axis: running extrema (`Base`), sums kept relative to a reference
(`Sum`), and expressions that turn them into the cascade's results once the axis is over (`finalize`):

    base B_m = max s                  sum G_l = exp(s - ref_m)                 sum G_o[e] = exp(s - ref_m) * V[b, h, j, e]
    m = B_m     l = G_l     o = G_o / l
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from aicf.scalar import DType, Expr, ReduceOp, Var, show, var


@dataclass(frozen=True)
class Reduction:
    """`name = op over the stream of body`; the body names earlier reductions as `Var(name, dtype)`."""

    name: str
    op: ReduceOp
    body: Expr


@dataclass(frozen=True)
class Base:
    """A running extremum `name = op(init, op over the stream of body)`; no init means the operation's identity.

    Sums are kept relative to the reference `ref`: the extremum itself, 0 while it is still the identity. `shift_invariant`: the
    outputs are the same for any other reference (docs/theory.md, T4), so that it may lag behind or be fixed. `finalize` then
    takes the reference in the extremum's place, save in comparisons with the identity, which are about the extremum.
    """

    name: str
    op: Literal["max", "min"]
    body: Expr
    init: Expr | None
    ref: Var
    old: Var
    shift_invariant: bool = False

    @property
    def dtype(self) -> DType:
        return self.ref.dtype

    @property
    def state(self) -> Var:
        return var(self.name, self.dtype)


@dataclass(frozen=True)
class Shift:
    """How a sum of `g * (u - ref)` moves with the reference `ref` of `base`: by `distance` (old minus new reference) times the
    sum `partner`, that of `g`. It keeps an entropy relative to the spread of the scores instead of to their size."""

    partner: str
    base: str
    distance: Expr


@dataclass(frozen=True)
class Sum:
    """A carried sum of `body` over the stream, `body == weight * value`.

    `weight` is free of payload variables (the tile of probabilities), `value` holds them (None when there are none).
    `stabilisers` lists `(base name, p)`: the sum is relative to the factor `exp(-p * ref)`, and when references move from
    `old` to `ref` it is multiplied by `scale`, an expression of those two. No stabiliser: `scale` is None.

    A body with a factor `u - ref` moves by a partner's old value as well, see `Shift`: the sum becomes
    `scale * sum + shift.distance * scale * partner`.
    """

    name: str
    body: Expr
    weight: Expr
    value: Expr | None
    stabilisers: tuple[tuple[str, Expr], ...]
    scale: Expr | None
    payload: tuple[Var, ...]
    dtype: DType
    shift: Shift | None = None

    @property
    def state(self) -> Var:
        return var(self.name, self.dtype)


@dataclass(frozen=True)
class StreamProgram:
    """One pass over `stream`. `finalize` maps, in order, every reduction and output to an expression of states, inputs
    that don't depend on the stream, and names earlier in the map. `outputs` names those that are asked for."""

    stream: Var
    scores: tuple[Var, ...]
    bases: tuple[Base, ...]
    sums: tuple[Sum, ...]
    finalize: Mapping[str, Expr]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        return program_text(self)


def program_text(p: StreamProgram) -> str:
    """The program as people read it, the same for the same program."""
    scores = f" (scores {', '.join(a.name for a in p.scores)})" if p.scores else ""
    lines = [f"stream {p.stream.name}{scores}"]
    for b in p.bases:
        init = "" if b.init is None else f", from {show(b.init, among=b.dtype)}"
        free = ", shift invariant" if b.shift_invariant else ""
        lines.append(f"  base {b.name} : {b.dtype} = {b.op} of {show(b.body)}{init}{free}")
    for s in p.sums:
        axes = f"[{', '.join(v.name for v in s.payload)}]" if s.payload else ""
        scale = "" if s.scale is None else f", rescale {show(s.scale)}"
        if s.shift is not None:
            scale += f", after adding {show(s.shift.distance)} times {s.shift.partner}"
        lines.append(f"  sum {s.name}{axes} : {s.dtype} = sum of {show(s.body)}{scale}")
    for name, e in p.finalize.items():
        word = "out" if name in p.outputs else "let"
        lines.append(f"  {word} {name} = {show(e)}")
    return "\n".join(lines) + "\n"
