"""The functional graph: nodes in topological order, each one op of the closed table applied to earlier nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aicf.semantic.types import Location, TensorType


@dataclass(eq=False)
class Node:
    """`name = op(inputs, attrs) : type`, and the place in the user's program that it comes from. Compared by identity."""

    name: str
    op: str
    inputs: tuple[Node, ...]
    attrs: Mapping[str, Any]
    type: TensorType
    location: Location | None = None

    def __repr__(self) -> str:
        return f"Node({self.name} = {self.op}({', '.join(n.name for n in self.inputs)}) : {self.type})"


@dataclass
class Graph:
    """Nodes in topological order, the inputs among them in call order, and what is returned. `readers`: nodes whose tensors are
    read outside of the graph as well, with a word on what reads them; `unknown`: inputs that the program computes in ways that
    are not followed, with the reasons; `sources`: what such inputs are computed from."""

    nodes: list[Node] = field(default_factory=list[Node])
    inputs: list[Node] = field(default_factory=list[Node])
    outputs: list[Node] = field(default_factory=list[Node])
    readers: dict[Node, str] = field(default_factory=dict[Node, str])
    unknown: dict[Node, str] = field(default_factory=dict[Node, str])
    sources: dict[Node, tuple[Node, ...]] = field(default_factory=dict[Node, "tuple[Node, ...]"])

    def users(self) -> dict[Node, list[Node]]:
        """For each node the nodes that read it, in order."""
        return users_of(self.nodes)


def users_of(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """For each of `nodes` those of them that read it, in order."""
    nodes = list(nodes)
    users: dict[Node, list[Node]] = {n: [] for n in nodes}
    for n in nodes:
        for i in dict.fromkeys(n.inputs):
            users.setdefault(i, []).append(n)
    return users


def ancestors(roots: Sequence[Node]) -> list[Node]:
    """All nodes that the roots depend on, themselves included, in topological order."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((i, False) for i in reversed(node.inputs) if i not in seen)
    return order
