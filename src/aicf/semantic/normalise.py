"""Normalising rewrites, applied while a graph is built: what is written twice is one node, and chains of views are one view.

    %a = matmul(%q, %k) ; %b = matmul(%q, %k)              ->   one node
    %y = permute(%x, p) ; %z = permute(%y, q)              ->   %z = permute(%x, p after q)
    %y = reshape(%x, s) ; %z = reshape(%y, t)              ->   %z = reshape(%x, t)
    %y = expand(%x, s) ; %z = expand(%y, t)                ->   %z = expand(%x, t)
    a view that changes nothing                            ->   its input

Nothing else is normalised on the graph: detection compares what elements mean (`aicf.streaming.pull`), and there spellings
disappear by themselves. These rewrites only let two users of one value see that it is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aicf.scalar import exact
from aicf.semantic.graph import Node

Key = tuple[object, ...]
DISTINCT = ("input",)  # each input is itself, whatever its type


def key_of(op: str, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> Key | None:
    """What two nodes have in common when they compute the same; None for nodes that are never shared."""
    if op in DISTINCT:
        return None
    try:
        return (op, *inputs, *((name, exact(attrs[name])) for name in sorted(attrs)))
    except TypeError:
        return None


def folded(op: str, inputs: tuple[Node, ...], attrs: Mapping[str, Any]) -> tuple[tuple[Node, ...], Mapping[str, Any]] | Node:
    """(inputs, attributes) of the same op with chains of views folded, or the node that the result already is."""
    if op not in ("permute", "reshape", "expand"):
        return inputs, attrs
    (x,) = inputs
    if op == "permute":
        if x.op == "permute":
            inner = x.attrs["perm"]
            inputs, attrs = x.inputs, {"perm": tuple(inner[p] for p in attrs["perm"])}
        return inputs[0] if attrs["perm"] == tuple(range(inputs[0].type.rank)) else (inputs, attrs)
    if x.op == op:
        inputs = x.inputs
    return inputs[0] if tuple(attrs["shape"]) == inputs[0].type.shape else (inputs, attrs)
