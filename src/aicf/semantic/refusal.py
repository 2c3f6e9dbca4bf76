"""Why something is not streamed: one value from the derivation up to the report.

A pass that cannot keep a meaning gives a `Refusal` and leaves its input as it was. Where the reason is found deep inside of a
recursion, `Refused` carries it out, and the function that started the recursion turns it into the value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from aicf.scalar import BYTES, Const, DType, Expr, call, integer_const, show
from aicf.semantic.graph import Node
from aicf.semantic.types import Location, product

NO_BYTES = integer_const(0)


@dataclass(frozen=True)
class Refusal:
    """What would be streamed (`name`: an op, or a reduction of a cascade) and why it is not.

    `guilty`: the place of the op that breaks a property; `source`: the user's line of what would be streamed; `unfused_bytes`: of
    the tensors of rows x keys that the unfused form needs; `where`: the guilty subexpression; `node`: the op that would be
    streamed.
    """

    name: str
    reason: str
    guilty: Location | None = None
    source: Location | None = None
    unfused_bytes: Expr = NO_BYTES
    where: Expr | None = None
    node: Node | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        if self.where is None:
            return self.reason
        return f"reduction '{self.name}' can't be streamed: {self.reason}, in {show(self.where)}"


class Refused(ValueError):
    """Carries a reason out of a recursion. `where`: the guilty subexpression; `unknown`: a size that must be a number; `guilty`:
    the op that is in the way, where it is known."""

    def __init__(
        self, reason: str, where: Expr | None = None, *, unknown: Expr | None = None, guilty: Node | None = None
    ) -> None:
        super().__init__(reason)
        self.reason, self.where, self.unknown, self.guilty = reason, where, unknown, guilty


def refused(node: Node, reason: str, guilty: Node | None = None) -> Refusal:
    """The refusal of `node`, because of `guilty` (or of itself)."""
    return Refusal(node.name, reason, (guilty or node).location, node.location, unfused_bytes(node), node=node)


def score_bytes(dims: Iterable[Expr], dtype: DType) -> Expr:
    """Bytes of what the unfused form has alive at once for scores of these dims: the scores, and what is made of them."""
    return call("mul", integer_const(2 * BYTES[dtype]), product(dims))


def unfused_bytes(node: Node) -> Expr:
    """The same for a contraction with values of which nothing more is known: its larger operand is as large as the scores."""
    sizes = [score_bytes(i.type.shape, i.type.dtype) for i in node.inputs]
    known = [s for s in sizes if isinstance(s, Const)]
    return max(known, key=lambda s: int(s.value)) if len(known) == len(sizes) and known else (sizes or [NO_BYTES])[0]
