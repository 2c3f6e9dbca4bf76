"""Pulling: what one element of a tensor is, as a scalar expression over elements of the tensors it is computed from.

    O[b, h, i, e]  ->  sum(O.k < M: exp(Scores[b, h, i, O.k] ...) / sum(...) * V[b, h, O.k, e])

Views, expands, permutes, einsum, merged heads and decomposed softmaxes disappear here: they only change indices. A `cut` decides
at which nodes to stop; what is cut becomes a `Load` of that node's tensor at the index reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aicf.scalar import Expr, Var, extents, index, integer_const, load
from aicf.semantic import OPS, Node
from aicf.semantic.ops import At, NotUniform
from aicf.semantic.refusal import Refused
from aicf.semantic.types import is_one

Cut = Callable[[Node, At], bool]
LIMIT = 20_000  # elements of nodes gone through; real attention needs some hundred
DEPTH = 100  # nodes above each other; real attention needs some dozen, a recurrence written out as many as it has steps


@dataclass
class Puller:
    """Pulls elements of nodes through their scalar meanings until `cut` holds.

    `extents` collects the ranges of all index variables (0 <= var < extent), `loads` the nodes that were cut, by name, and
    `visits` every node gone through with the indices it was asked for.
    """

    cut: Cut
    extents: dict[Var, Expr] = field(default_factory=dict[Var, Expr])
    loads: dict[str, Node] = field(default_factory=dict[str, Node])
    visits: dict[Node, list[At]] = field(default_factory=dict[Node, list[At]])
    binders: dict[Var, Node] = field(default_factory=dict[Var, Node])
    _memo: dict[tuple[Node, At], Expr] = field(default_factory=dict[tuple[Node, At], Expr])
    _depth: int = 0

    def pull(self, node: Node, at: At) -> Expr:
        """The element of `node` at `at`."""
        key = (node, at)
        element = self._memo.get(key)
        if element is None:
            if len(self._memo) >= LIMIT or self._depth >= DEPTH:
                raise Refused("what lies between the scores and the values is too large a computation for one tile", guilty=node)
            self._depth += 1
            element = self._memo[key] = self._pull(node, at)
            self._depth -= 1
        return element

    def _pull(self, node: Node, at: At) -> Expr:
        meaning = OPS[node.op].meaning
        if meaning is not None and not self.cut(node, at):
            try:
                with extents(self.known(node, at)):
                    value = meaning(tuple(i.type for i in node.inputs), node.attrs, node.type, at, _Reader(self, node))
            except NotUniform:
                return self._load(node, at)
            self.visits.setdefault(node, []).append(at)
            return value
        return self._load(node, at)

    def known(self, node: Node, at: At) -> Mapping[Var, Expr]:
        """The ranges of index variables where `node` has an element: along a concatenation, positions go on behind its parts."""
        shorter = {
            x: dim
            for x, dim in zip(at, node.type.shape, strict=True)
            if isinstance(x, Var) and x in self.extents and self.extents[x] is not dim and not is_one(dim)
        }
        return {**self.extents, **shorter} if shorter else self.extents

    def _load(self, node: Node, at: At) -> Expr:
        self.loads[node.name] = node
        return load(node.name, at, node.type.dtype)


@dataclass
class _Reader:
    """The inputs of one node, read through the puller."""

    puller: Puller
    node: Node

    def read(self, k: int, at: At) -> Expr:
        return self.puller.pull(self.node.inputs[k], at)

    def fresh(self, label: str, extent: Expr) -> Var:
        bound = index(f"{self.node.name}.{label}")
        self.puller.extents[bound] = extent
        self.puller.binders[bound] = self.node
        return bound


@dataclass
class _OneStep:
    """Records what a node reads, without going further."""

    node: Node
    accesses: list[tuple[int, At]] = field(default_factory=list[tuple[int, At]])
    bound: dict[Var, Expr] = field(default_factory=dict[Var, Expr])

    def read(self, k: int, at: At) -> Expr:
        self.accesses.append((k, at))
        source = self.node.inputs[k]
        return load(source.name, at, source.type.dtype)

    def fresh(self, label: str, extent: Expr) -> Var:
        made = index(f"{self.node.name}.{label}")
        self.bound[made] = extent
        return made


@dataclass(frozen=True)
class Step:
    """One node's own meaning at an index: the expression over its direct inputs, which elements of them it reads, and the
    variables that its reductions bind (with their extents)."""

    expr: Expr
    accesses: tuple[tuple[int, At], ...]
    bound: dict[Var, Expr]


def step(node: Node, at: At, known: Mapping[Var, Expr]) -> Step | None:
    """The meaning of `node` at `at` over its direct inputs; None for inputs and non-uniform constants. `known`: extents of the
    variables in `at`."""
    meaning = OPS[node.op].meaning
    if meaning is None:
        return None
    reader = _OneStep(node)
    try:
        with extents(known):
            expr = meaning(tuple(i.type for i in node.inputs), node.attrs, node.type, at, reader)
    except NotUniform:
        return None
    return Step(expr, tuple(dict.fromkeys(reader.accesses)), reader.bound)


def output_index(node: Node, prefix: str = "x") -> tuple[At, dict[Var, Expr]]:
    """Fresh index variables for a node's dims (0 where the dim is 1), with their extents."""
    at: list[Expr] = []
    known: dict[Var, Expr] = {}
    for k, dim in enumerate(node.type.shape):
        if is_one(dim):
            at.append(integer_const(0))
            continue
        x = index(f"{prefix}.{k}")  # no size has such a name
        at.append(x)
        known[x] = dim
    return tuple(at), known
