"""Weights that are used in parts, as contractions over all of them: a rewrite of a whole graph.

    %p = softmax(concat(%s1, %s2))                           %p = softmax(concat(%s1, %s2))
    %o1 = matmul(slice(%p, :m), %v1)                   ->    %v = pad(%v1, high=n) + pad(%v2, low=m)
    %o2 = matmul(slice(%p, m:), %v2) ; %o = %o1 + %o2        %o = matmul(%p, %v)

Keys that come as two sets (global and local ones, a cache and what is new) share one softmax; so spelt, one sum over all keys
is what is left. Values of 0 stand for the keys that a part leaves out: weights are finite, or the whole row is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aicf.scalar import Const, Expr, call, integer_const
from aicf.semantic.graph import Graph, Node
from aicf.semantic.ops import OPS

FEW = 8  # parts that leave out no more than this are told from single elements, which leave a softmax by themselves
_ELEMENTWISE = ("cast", "mul", "div", "where")


def merge_split_contractions(graph: Graph) -> list[Node]:
    """Rewrites `graph` in place, and gives the nodes that nothing needs any longer."""
    users = graph.users()
    made: list[tuple[Node, Node]] = []
    parts: list[Node] = []
    for node in graph.nodes:
        for k, axis, other in _contracted(node):
            found = _part(node.inputs[k], axis)
            if found is None:
                continue
            source, before, after = found
            values = node.inputs[1 - k]
            low = tuple(before if n == other else integer_const(0) for n in range(values.type.rank))
            high = tuple(after if n == other else integer_const(0) for n in range(values.type.rank))
            padded = _node("pad", (values,), {"low": low, "high": high, "value": 0}, node)
            made.append((padded, node))
            parts.append(node.inputs[k])
            node.inputs = (source, padded) if k == 0 else (padded, source)
            break
    dead: list[Node] = []
    changed = {node for _, node in made}
    for node in graph.nodes:
        if node.op == "add" and len(node.inputs) == 2 and all(i in changed and users[i] == [node] for i in node.inputs):
            a, b = node.inputs
            k = next((k for k in (0, 1) if a.inputs[k] is b.inputs[k]), None)
            if k is None or (a.op, a.attrs, a.type) != (b.op, b.attrs, b.type) or a.inputs[1 - k].type != b.inputs[1 - k].type:
                continue
            values = _node("add", (a.inputs[1 - k], b.inputs[1 - k]), {}, node)
            made.append((values, node))
            node.op, node.attrs = a.op, a.attrs
            node.inputs = (a.inputs[k], values) if k == 0 else (values, a.inputs[k])
            dead += [a, b]
    for extra, before in made:
        graph.nodes.insert(graph.nodes.index(before), extra)
    kept = {i for n in graph.nodes if n not in dead for i in n.inputs} | {*graph.outputs, *graph.readers}
    gone = {n for n in (*dead, *parts) if n not in kept}
    graph.nodes[:] = [n for n in graph.nodes if n not in gone]
    return list(gone)


def _node(op: str, inputs: tuple[Node, ...], attrs: Mapping[str, Any], at: Node) -> Node:
    return Node(f"{at.name}_{op}", op, inputs, attrs, OPS[op].infer(tuple(n.type for n in inputs), attrs), at.location)


def _contracted(node: Node) -> Sequence[tuple[int, int, int]]:
    """(operand, its axis, the other operand's axis) for every axis that two operands are summed over."""
    if len(node.inputs) != 2:
        return []
    if node.op == "matmul":
        first, second = node.inputs[0].type.rank - 1, node.inputs[1].type.rank - 2
        return [(0, first, second), (1, second, first)]
    if node.op == "einsum":
        a, b = node.attrs["inputs"]
        shared = [x for x in a if x in b and x not in node.attrs["output"]]
        return [t for x in shared for t in ((0, a.index(x), b.index(x)), (1, b.index(x), a.index(x)))]
    return []


def _part(node: Node, axis: int) -> tuple[Node, Expr, Expr] | None:
    """(whole, how many before, how many after) if `node` is a part along `axis` alone of a tensor that a softmax normalised."""
    if node.op != "slice":
        return None
    (source,) = node.inputs
    shape = source.type.shape
    start, step = node.attrs["start"], node.attrs["step"]
    others = [n for n in range(len(shape)) if n != axis]
    if step[axis] != 1 or any(node.type.shape[n] is not shape[n] or step[n] != 1 for n in others):
        return None
    after = call("sub", call("sub", shape[axis], node.type.shape[axis]), start[axis])
    left_out = call("sub", shape[axis], node.type.shape[axis])
    if (isinstance(left_out, Const) and left_out.value <= FEW) or not _normalised(source, axis):
        return None
    return source, start[axis], after


def _normalised(node: Node, axis: int) -> bool:
    """Whether `node` is a softmax along `axis`, or made of one element by element."""
    while node.op in _ELEMENTWISE:
        same = [i for i in node.inputs if i.type.shape == node.type.shape]
        if not same:
            return False
        node = same[-1]
    return node.op == "softmax" and node.attrs["axis"] == axis


__all__ = ["merge_split_contractions"]
