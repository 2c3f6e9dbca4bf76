"""From an expression of a cascade back to the op of the source that makes it: the line that a refusal names.

    sin(s - m)  ->  aten.sin at model.py:5

Searched only when something is refused: then the elements of all ops of the region are written in the cascade's terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from aicf.scalar import Call, Expr, walk
from aicf.semantic import Node


@dataclass(frozen=True)
class Places:
    """`elements` gives the ops of a region in the order of the graph, each with its elements in the cascade's terms; `reductions`
    the op that each reduction of the cascade comes from."""

    elements: Callable[[], Iterable[tuple[Node, Expr]]]
    reductions: Mapping[str, Node]

    def maker(self, e: Expr) -> Node | None:
        """The op that makes `e`: the first one of whose element it is a part. Where a derivation has rewritten it, the only op
        that applies its function."""
        elements = [*self.elements()]
        for node, element in elements:
            if any(x is e for x in walk(element)):
                return node
        alike = {node for node, _ in elements if isinstance(e, Call) and node.op == e.fn}
        return alike.pop() if len(alike) == 1 else None


__all__ = ["Places"]
