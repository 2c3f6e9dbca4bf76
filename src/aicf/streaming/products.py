"""Tensors of rows x stream positions below a region: what a tile can compute of them, and what has to be stored.

    (P * (Q2 @ K2.T)) @ V      Q2 K2.T is one more product of the tile
    (P + mlp(x_i - x_j)) @ V   sums over a few hidden numbers for each pair: written out in the tile
    (P + S @ W) @ V            a sum over the stream for each pair: stored
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from aicf.scalar import Const, Expr, Var, call, show
from aicf.semantic import Node
from aicf.semantic.ops import At
from aicf.semantic.types import product
from aicf.streaming.candidates import SOFTMAXES, Candidate, contraction, free, two_axis
from aicf.streaming.pull import step

UNROLLED = 16  # terms of a sum that a tile writes out for every pair of a row and a stream position
WIDEST = 2048  # the contracted axis of a product in a tile


@dataclass
class Making:
    """What it takes to compute a tensor of pairs in a tile: `products` of rows and stream positions, `sums` that are written out
    term by term; `problem`: why it cannot be, empty when it can."""

    products: dict[Node, tuple[Node, ...]] = field(default_factory=dict[Node, "tuple[Node, ...]"])
    sums: set[Node] = field(default_factory=set[Node])
    problem: str = ""


def of_pairs(node: Node, at: At, rows: Collection[Var], stream: Var, extents: Mapping[Var, Expr]) -> bool:
    """Whether `node`, read at `at`, has at least one element for each row and stream position (and is no table that is looked
    up by their distance)."""
    here = free(at)
    mine = [v for v in rows if v in here]
    if stream not in here or not mine:
        return False
    longest = max((extents[v] for v in mine), key=_length)
    elements, pairs = product(node.type.shape), call("mul", longest, extents[stream])
    if isinstance(elements, Const) and isinstance(pairs, Const):
        return bool(elements.value >= pairs.value)
    if call("mul", call("floordiv", elements, pairs), pairs) is elements:
        return True
    return any(v in at for v in mine) and stream in at


def _length(e: Expr) -> int:
    return int(e.value) if isinstance(e, Const) else 1 << 40


def making(node: Node, at: At, c: Candidate, extents: Mapping[Var, Expr]) -> Making:
    """How a tile of the candidate's rows and stream positions computes the elements of `node` at `at`."""
    made = Making()
    few: set[Var] = set()
    seen: set[tuple[Node, At]] = set()
    stack, top = [(node, at)], node
    while stack and not made.problem:
        node, at = stack.pop()
        if (node, at) in seen:
            continue
        seen.add((node, at))
        here = step(node, at, extents)
        if node.type.dtype == "f64" and node.type.rank:
            made.problem = f"{_called(node)} is computed in float64"
        if here is None:
            if free(at) & few:
                given = of_pairs(node, at, c.rows, c.stream, extents)
                made.problem = f"it sums over what {node.name} holds for each pair" if given else _shifted(top)
            continue
        summed = contraction(node, at, dict(extents))
        if summed is not None and _is_product(summed.operands, c):
            made.problem = _no_product(node, at, here.bound.values(), few)
            made.products[node] = summed.products
            continue
        if here.bound and node.op in SOFTMAXES:
            if at[node.attrs["axis"]] is not c.stream:
                made.problem = f"{node.name} normalises along another axis"
        elif here.bound:
            made.sums.add(node)
            few.update(here.bound)
            terms = product(here.bound.values())
            if not (isinstance(terms, Const) and int(terms.value) <= UNROLLED):
                made.problem = _long_sum(node, terms, [own for _, own in here.accesses], c)
        stack += [(node.inputs[k], own) for k, own in here.accesses if two_axis(own, (c.stream,), c.rows)]
    return made


def _called(node: Node) -> str:
    return node.name if node.name.startswith(node.op) else f"{node.op} {node.name}"


def _shifted(node: Node) -> str:
    return f"{_called(node)} is read at places that shift from row to row, so that it is no product of a row and a position"


def _long_sum(node: Node, terms: Expr, read: list[At], c: Candidate) -> str:
    if len(read) > 1 and all(two_axis(own, (c.stream,), c.rows) for own in read):
        return _shifted(node)
    return f"{_called(node)} sums over {show(terms)} positions for each pair"


def _is_product(operands: Collection[tuple[Node, At]], c: Candidate) -> bool:
    """A contraction of operands that have the rows or the stream, and each only one of the two."""
    along = [c.stream in free(own) for _, own in operands]
    return any(along) and not all(along) and not any(two_axis(own, (c.stream,), c.rows) for _, own in operands)


def _no_product(node: Node, at: At, widths: Collection[Expr], few: set[Var]) -> str:
    """Why a product cannot be one of the tile's, empty when it can."""
    if free(at) & few:
        return f"it mixes products, each of the size of the scores, that {_called(node)} makes"
    if len(widths) != 1 or not all(isinstance(w, Const) and w.value <= WIDEST for w in widths):
        wide = ", ".join(map(show, widths))
        return f"{_called(node)} contracts {wide} positions; a tile's products take one axis of at most {WIDEST}"
    return ""


__all__ = ["Making", "making", "of_pairs"]
