"""Building graphs: one method per kind of op; types are inferred, names kept unique, the current source location attached."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from aicf.scalar import DType, Expr, cast, const, is_float, size
from aicf.semantic.graph import Graph, Node
from aicf.semantic.normalise import Key, folded, key_of
from aicf.semantic.ops import OPS, TypeRuleError, axis_of
from aicf.semantic.types import Location, tensor_type

Value: TypeAlias = "Node | bool | int | float"


class GraphError(ValueError):
    """An op applied to operands that it does not take; the message names the op, the operands and the place."""


class GraphBuilder:
    """Builds a `Graph` node by node.

        b = GraphBuilder()
        q, k = b.input("Q", "f32", (n, 64)), b.input("K", "f32", (m, 64))
        b.output(b.op("softmax", b.op("matmul", q, b.permute(k, (1, 0))), axis=-1))

    Every method raises `GraphError` for operands that the op does not take. With `share`, equal nodes are one node and chains
    of views are folded (`normalise.py`); a node then keeps the location of its first use.
    """

    def __init__(self, *, share: bool = False) -> None:
        self.share = share
        self._made: dict[Key, Node] = {}
        self.graph = Graph()
        self.location: Location | None = None
        self._names: dict[str, int] = {}

    def _unique(self, name: str) -> str:
        n = self._names.get(name)
        self._names[name] = 0 if n is None else n + 1
        if n is None:
            return name
        return self._unique(f"{name}_{n + 1}")

    def _add(self, op: str, inputs: tuple[Node, ...], attrs: dict[str, Any], name: str | None) -> Node:
        key: Key | None = None
        if self.share:
            simpler = folded(op, inputs, attrs)
            if isinstance(simpler, Node):
                return simpler
            inputs, attrs = simpler[0], dict(simpler[1])
            key = key_of(op, inputs, attrs)
            if key is not None and key in self._made:
                return self._made[key]
        try:
            kind = OPS[op].infer(tuple(n.type for n in inputs), attrs)
        except (TypeRuleError, ValueError) as e:
            operands = ", ".join(f"{n.name}: {n.type}" for n in inputs)
            place = f" (from {self.location})" if self.location else ""
            raise GraphError(f"{op}({operands}): {e}{place}") from e
        node = Node(self._unique(name or op), op, inputs, attrs, kind, self.location)
        self.graph.nodes.append(node)
        if key is not None:
            self._made[key] = node
        return node

    def input(self, name: str, dtype: DType, shape: Iterable[int | Expr]) -> Node:
        """A tensor that the caller gives."""
        node = self._add("input", (), {"type": tensor_type(dtype, shape)}, name)
        self.graph.inputs.append(node)
        return node

    def constant(self, value: Any, dtype: DType, name: str | None = None) -> Node:
        """An array (or number) known at compile time."""
        return self._add("constant", (), {"value": np.asarray(value), "dtype": dtype}, name)

    def scalar(self, value: Expr, name: str | None = None) -> Node:
        """A number computed from sizes, as a tensor of rank 0."""
        return self._add("scalar", (), {"value": value}, name)

    def iota(self, length: int | Expr, dtype: DType = "i64", name: str | None = None) -> Node:
        """0, 1, … length-1."""
        return self._add("iota", (), {"length": size(length), "dtype": dtype}, name)

    def op(self, op: str, *operands: Value, name: str | None = None, **attrs: Any) -> Node:
        """`op` of operands (Python numbers become constants of the other operand's type) and attributes."""
        return self._add(op, self._lifted(operands), attrs, name)

    def _lifted(self, operands: tuple[Value, ...]) -> tuple[Node, ...]:
        numeric: list[DType] = [x.type.dtype for x in operands if isinstance(x, Node) and x.type.dtype != "bool"]
        first = numeric[0] if numeric else None
        out: list[Node] = []
        for x in operands:
            if isinstance(x, Node):
                out.append(x)
                continue
            dtype: DType = "bool" if isinstance(x, bool) else "i64" if isinstance(x, int) else "f32"
            if dtype != "bool" and first is not None and (is_float(first) or dtype == "i64"):
                dtype = first
            out.append(self.scalar(cast(const(x, dtype), dtype)))
        return tuple(out)

    def cast(self, x: Node, dtype: DType, name: str | None = None) -> Node:
        """`x` converted to `dtype`; `x` itself when it has that type."""
        return x if x.type.dtype == dtype else self._add("cast", (x,), {"dtype": dtype}, name)

    def reshape(self, x: Node, shape: Iterable[int | Expr], name: str | None = None) -> Node:
        """`x` with the same elements in row-major order and another shape."""
        dims = tuple(size(d) for d in shape)
        return x if dims == x.type.shape else self._add("reshape", (x,), {"shape": dims}, name)

    def permute(self, x: Node, perm: Iterable[int], name: str | None = None) -> Node:
        """`x` with its axes in the order `perm`."""
        order = tuple(axis_of(p, x.type.rank) for p in perm)
        return x if order == tuple(range(x.type.rank)) else self._add("permute", (x,), {"perm": order}, name)

    def expand(self, x: Node, shape: Iterable[int | Expr], name: str | None = None) -> Node:
        """`x` broadcast to `shape`."""
        dims = tuple(size(d) for d in shape)
        return x if dims == x.type.shape else self._add("expand", (x,), {"shape": dims}, name)

    def slice(
        self, x: Node, start: Iterable[int | Expr], length: Iterable[int | Expr], step: Iterable[int] | None = None
    ) -> Node:
        """start, start+step, … (`length` of them) along each axis; a negative step walks backwards."""
        begin, count = tuple(size(s) for s in start), tuple(size(n) for n in length)
        by = tuple(step) if step is not None else (1,) * len(begin)
        return self._add("slice", (x,), {"start": begin, "length": count, "step": by}, None)

    def reduce(self, op: str, x: Node, axes: Iterable[int], keepdims: bool = False, name: str | None = None) -> Node:
        """sum, max, min, prod, any or all over `axes`."""
        return self._add("reduce", (x,), {"op": op, "axes": tuple(axes), "keepdims": keepdims}, name)

    def einsum(self, inputs: Iterable[str], output: str, *operands: Node, name: str | None = None) -> Node:
        """An einsum given as one label per axis, e.g. ["bid", "bjd"] -> "bij"."""
        return self._add("einsum", operands, {"inputs": tuple(inputs), "output": output}, name)

    def output(self, *nodes: Node) -> Graph:
        """Marks `nodes` as returned, in this order, and gives the graph."""
        self.graph.outputs += nodes
        return self.graph
