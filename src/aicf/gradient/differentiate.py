"""The gradient of a region's ops, as the graph of a forward that saves what the backward needs, and the graph of that backward.

    s = q @ k^T                    forward    o, m = max(s), l = sum(exp(s - m))
    o = softmax(s) @ v             backward   p  = exp(s - m) / l              dv = p^T @ do
                                              ds = p * (do @ v^T - D)          dq = ds @ k,   dk = ds^T @ q
                                              D  = rowsum(do * o)

Nothing of this is written down for attention: each op has its own derivative (`rules.py`). What is saved are the results of sums
over what a product made: two numbers per row, and products of products. Outputs are saved as copies, in a wide type, since the
program may change its own in place. All else is computed again.

`D` is a mean of `do @ v^T`, by the weights of the row. Taken from `o`, it is off by the rounding of `o`, which is much where one
key has almost all of the weight: nothing would be left of `ds`. Only results in halves are rounded more than that. For others
what is left is centred once more: `D2 = sum(p * (do @ v^T - D))`, small itself, which a graph of its own computes first.

Both graphs compute in f32 where the source has halves, as kernels do; outputs and gradients have the source's types.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from aicf.gradient.elementwise import NoDerivative
from aicf.gradient.rules import Applied, vjp
from aicf.gradient.sums import Sums
from aicf.scalar import DType, Expr, cast, const, is_float, is_half
from aicf.semantic import Graph, GraphBuilder, GraphError, Node, ancestors
from aicf.semantic.types import ONE

_PRODUCTS = ("matmul", "einsum")
LOWEST = -3.0e38
Saved = tuple[Node, Literal["value", "max", "sum"], int]  # of which node, what, along which axis


class NotDifferentiable(Exception):
    """A region whose gradient is not derived; the message says why, and at which op."""


@dataclass(frozen=True)
class Gradient:
    """`forward` takes the region's inputs and gives its outputs, then what is saved. The graphs of `backward` are run in order:
    each takes the region's inputs, what is saved, a cotangent per floating output and what the graphs before it gave, in this
    order. The last one gives a gradient per input of `wanted`, those before it numbers per row. `differentiable`: the outputs
    that have a cotangent."""

    forward: Graph
    backward: tuple[Graph, ...]
    wanted: tuple[int, ...]
    differentiable: tuple[int, ...]
    saved: tuple[Node, ...]

    def __str__(self) -> str:
        rows = ", ".join(f"{n.name} : {n.type}" for n in self.saved)
        return f"saved: inputs{', ' + rows if rows else ''}"


def differentiate(
    inputs: Sequence[Node], outputs: Sequence[Node], wanted: Collection[int], references_are_free: bool = False
) -> Gradient:
    """The gradient of `outputs` for those of `inputs` numbered by `wanted`. `references_are_free`: no output depends on maxima
    and minima of scores, which only keep numbers in range. Raises NotDifferentiable."""
    return _Derivation(inputs, outputs, sorted(wanted), references_are_free).run()


class _Source:
    """The ops between inputs and outputs, copied into graphs of their own in wide types."""

    def __init__(self, inputs: Sequence[Node], b: GraphBuilder) -> None:
        self.b = b
        self.values: dict[Node, Node] = {}
        self.given: list[Node] = []
        for n in inputs:
            x = b.input(n.name, n.type.dtype, n.type.shape)
            self.given.append(x)
            self.values[n] = b.cast(x, wide(n.type.dtype))

    def copy(self, n: Node, read: Sequence[Node]) -> Node:
        """`n` once more, of `read`."""
        b = self.b
        b.location = n.location
        match n.op:
            case "constant":
                return b.constant(n.attrs["value"], wide(n.attrs["dtype"]))
            case "scalar":
                return b.scalar(cast(n.attrs["value"], wide(n.type.dtype)))
            case "cast":
                return b.cast(read[0], wide(n.attrs["dtype"]))
            case "reduce":
                return b.reduce(n.attrs["op"], read[0], n.attrs["axes"], n.attrs["keepdims"])
            case _:
                return b.op(n.op, *read, **n.attrs)


class _Derivation:
    def __init__(self, inputs: Sequence[Node], outputs: Sequence[Node], wanted: list[int], still: bool) -> None:
        self.inputs, self.outputs, self.wanted, self.still = list(inputs), list(outputs), wanted, still
        self.order = _between(self.outputs, set(self.inputs))
        self.b = GraphBuilder(share=True)
        self.source = _Source(inputs, self.b)
        self.saved: dict[Saved, Node] = {}
        self.sums = Sums(self.b)
        self.depth = _depths(self.order, set(self.inputs))
        self.rows: dict[Node, Node] = {}  # what stands for a row's number in the backward -> its value
        self.exact = any(is_float(n.type.dtype) and not is_half(n.type.dtype) for n in self.outputs)

    def run(self) -> Gradient:
        try:
            return self._run()
        except (NoDerivative, GraphError) as e:
            raise NotDifferentiable(str(e)) from e

    def _run(self) -> Gradient:
        active = self._active()
        # Saved tensors are found while the gradient is derived, and stand before the cotangents once the graph is put in order.
        floating = tuple(k for k, n in enumerate(self.outputs) if is_float(n.type.dtype))
        cotangents: list[Node] = []
        parts: dict[Node, list[Node]] = {}
        for k in floating:
            n = self.outputs[k]
            made = self.b.input(f"d_{n.name}", n.type.dtype, n.type.shape)
            cotangents.append(made)
            parts.setdefault(n, []).append(self.b.cast(made, wide(n.type.dtype)))
        self._note_products()
        for n in reversed(self.order):
            if n not in active or n not in parts or n in self.inputs:
                continue
            self.b.location = n.location
            g = self._total(parts.pop(n))
            applied = Applied(
                self.b, n, lambda k, n=n: self.value(n.inputs[k]), lambda n=n: self.value(n),
                lambda n=n: self._weights(n), self.sums, self.still and self.depth[n] == 1,
                lambda p, x, axis, n=n: self._without_mean(n, p, x, axis),
                lambda x, axis, n=n: self._sum_of(n, x, axis), self.depth[n] == 1,
            )  # fmt: skip
            for k, x in enumerate(n.inputs):
                if x not in active:
                    continue
                try:
                    share = vjp(applied, g, k)
                except NoDerivative as e:
                    raise NoDerivative(f"the derivative of {e} is not known ({n.name}, {n.location or 'unknown place'})") from e
                if share is not None:
                    parts.setdefault(x, []).append(share)
        gradients = [self._gradient(n, parts) for n in (self.inputs[k] for k in self.wanted)]
        kept = tuple(self.saved.values())
        given = (*self.source.given, *kept, *cotangents)
        return Gradient(self._forward(), self._stages(given, gradients), tuple(self.wanted), floating, kept)

    def _stages(self, given: Sequence[Node], gradients: Sequence[Node]) -> tuple[Graph, ...]:
        """The backward as graphs: numbers of rows in the order in which they need each other, then the gradients."""
        level: dict[Node, int] = {}
        for stand_in, value in self.rows.items():
            level[stand_in] = 1 + max((level[n] for n in ancestors([value]) if n in level), default=0)
        graphs: list[Graph] = []
        before: list[Node] = []
        for k in range(1, 1 + max(level.values(), default=0)):
            now = [n for n in self.rows if level[n] == k]
            graphs.append(_graph([*given, *before], [self.rows[n] for n in now]))
            before += now
        return (*graphs, _graph([*given, *before], gradients))

    def _without_mean(self, n: Node, p: Node, g: Node, axis: int) -> Node:
        """`g` without its mean along `axis` by the weights `p` that `n` made."""
        b, sums = self.b, self.sums
        before = sums.exchanged, sums.written_out
        mean = sums.of([p, g], [axis])
        known = sums.exchanged > before[0] and sums.written_out == before[1]
        if self.depth[n] == 0 or (known and not self.exact):
            return b.op("sub", g, mean)

        def total(x: Node) -> Node:
            return b.reduce("sum", x, [axis], keepdims=True)

        if known:
            g = b.op("sub", g, mean)
            # Beside a factor that may be -inf nothing could be left out where a mask hides.
            mean = total(b.op("mul", p, b.op("max", g, LOWEST)))
        else:  # the weights are computed again here, and may add up to a rounding more or less than 1
            mean = b.op("div", total(b.op("mul", p, g)), total(p))
        return b.op("sub", g, self._stand_in(n, mean))

    def _sum_of(self, n: Node, g: Node, axis: int) -> Node:
        """The sum of `g`, of the result of `n`, along `axis`."""
        before = self.sums.written_out
        total = self.sums.of([g], [axis])
        return total if self.depth[n] == 0 or self.sums.written_out == before else self._stand_in(n, total)

    def _stand_in(self, n: Node, number: Node) -> Node:
        """What stands in this graph for `number`, one per row, which one before it computes."""
        made = self.b.input(f"{n.name}_sum{len(self.rows) or ''}", number.type.dtype, number.type.shape)
        self.rows[made] = number
        return made

    def _gradient(self, n: Node, parts: dict[Node, list[Node]]) -> Node:
        if n not in parts:
            zero = self.b.scalar(const(0.0, n.type.dtype))
            return self.b.expand(self.b.reshape(zero, [1] * n.type.rank), n.type.shape)
        return self.b.cast(self._total(parts[n]), n.type.dtype)

    def _active(self) -> set[Node]:
        """The nodes through which a wanted input reaches an output."""
        active = {self.inputs[k] for k in self.wanted}
        for n in self.order:
            if n not in self.inputs and is_float(n.type.dtype) and any(x in active for x in n.inputs):
                active.add(n)
        return active

    def _total(self, shares: list[Node]) -> Node:
        total = shares[0]
        for x in shares[1:]:
            total = self.b.op("add", total, x)
        return total

    # ---------------------------------------------------------------- values of the forward

    def value(self, n: Node) -> Node:
        """The value of the source's node `n` in the backward: given, saved, or computed again."""
        known = self.source.values.get(n)
        if known is None:
            known = self.source.values[n] = self._value(n)
        return known

    def _value(self, n: Node) -> Node:
        b, deep = self.b, self.depth[n] > 0
        if n.op == "softmax":
            return self._weights(n)
        if n.op == "log_softmax":
            top, total = self._row(n)
            return b.op("sub", b.op("sub", self.value(n.inputs[0]), top), b.op("log", total))
        if n.op == "logsumexp":
            top, total = self._row(n)
            infinite = b.op("eq", b.op("abs", top), float("inf"))
            return b.reshape(b.op("where", infinite, top, b.op("add", top, b.op("log", total))), n.type.shape)
        if (n.op == "reduce" and deep) or (n.op in _PRODUCTS and self.depth[n] > 1):
            return self._saved((n, "value", 0), n.type.shape)
        return self.source.copy(n, [self.value(x) for x in n.inputs])

    def _weights(self, n: Node) -> Node:
        """The softmax of what `n` is a softmax (or the like) of, from the row's maximum and its sum of exponentials: their
        log-sum-exp alone would lose what the exponentials differ by where scores are large."""
        b, (top, total) = self.b, self._row(n)
        return b.op("div", b.op("exp", b.op("sub", self.value(n.inputs[0]), top)), total)

    def _row(self, n: Node) -> tuple[Node, Node]:
        """The maximum of what `n` is a softmax (or the like) of, and the sum of exponentials relative to it, the axis kept."""
        x = n.inputs[0]
        axis = n.attrs["axis"] % x.type.rank
        if self.depth[n] == 0:
            return _row_of(self.b, self.value(x), axis)
        shape = tuple(ONE if k == axis else d for k, d in enumerate(x.type.shape))
        return self._saved((x, "max", axis), shape), self._saved((x, "sum", axis), shape)

    def _saved(self, key: Saved, shape: tuple[Expr, ...]) -> Node:
        if key not in self.saved:
            n, what, _ = key
            self.saved[key] = self.b.input(f"{n.name}_{what}", wide(n.type.dtype), shape)
        return self.saved[key]

    def _note_products(self) -> None:
        for n in self.order:
            if n.op == "matmul" and self.depth.get(n, 0) > 1:
                left, right = (self.value(x) for x in n.inputs)
                self.sums.products.append((left, right, lambda n=n: self.value(n)))

    # ---------------------------------------------------------------- the forward that saves

    def _forward(self) -> Graph:
        b = GraphBuilder(share=True)
        source = _Source(self.inputs, b)
        values = source.values
        for n in self.order:
            if n not in values:
                values[n] = source.copy(n, [values[x] for x in n.inputs])
        b.location = self.outputs[0].location
        outputs = [b.cast(values[n], n.type.dtype) for n in self.outputs]
        for n, what, axis in self.saved:
            outputs.append(values[n] if what == "value" else _row_of(b, values[n], axis)[what == "sum"])
        return b.output(*outputs)


def _graph(inputs: Sequence[Node], outputs: Sequence[Node]) -> Graph:
    """The graph of `outputs`, which are made of `inputs`."""
    return Graph([*inputs, *(n for n in ancestors(outputs) if n.op != "input")], [*inputs], [*outputs])


def _row_of(b: GraphBuilder, x: Node, axis: int) -> tuple[Node, Node]:
    top = b.reduce("max", x, [axis], keepdims=True)
    return top, b.reduce("sum", b.op("exp", b.op("sub", x, top)), [axis], keepdims=True)


def wide(dtype: DType) -> DType:
    """The type in which values of `dtype` are computed."""
    return "f32" if is_half(dtype) else dtype


def _between(outputs: Sequence[Node], inputs: set[Node]) -> list[Node]:
    """The nodes that `outputs` are computed by from `inputs`, those included, in order."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(n, False) for n in reversed(outputs)]
    while stack:
        n, ready = stack.pop()
        if ready:
            order.append(n)
        elif n not in seen:
            seen.add(n)
            stack.append((n, True))
            if n not in inputs:  # what inputs are made of lies outside
                if n.op == "input":
                    raise NotDifferentiable(f"{n.name} is read, and is no input of the region")
                stack += [(x, False) for x in reversed(n.inputs) if x not in seen]
    return order


def _depths(order: Sequence[Node], inputs: set[Node]) -> dict[Node, int]:
    """How many products follow each other from `inputs` up to each node, itself included."""
    depths: dict[Node, int] = {}
    for n in order:
        own = n.op in _PRODUCTS and n not in inputs  # an input may be a product, made outside
        depths[n] = max((depths[x] for x in n.inputs if x in depths and n not in inputs), default=0) + own
    return depths
