"""Shared by the tests: capture what Dynamo hands to a backend, read it, and compare the reading with what PyTorch computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from aicf.frontends.torch.capture.retrace import retrace, trace
from aicf.frontends.torch.read.reader import Reading, read
from aicf.scalar import numpy_dtype
from aicf.semantic import Graph, Node, run_graph


@dataclass
class Captured:
    """One graph of Dynamo's: traced again, read, and the arguments that it was called with."""

    traced: torch.fx.GraphModule
    reading: Reading
    arguments: tuple[Any, ...] = ()


def capture(fn: Callable[..., Any], *args: Any, dynamic: bool | None = False, **kwargs: Any) -> list[Captured]:
    """Every graph that `torch.compile(fn)` makes, read; the call runs in eager."""
    found: list[Captured] = []

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        traced = retrace(gm, inputs)
        one = Captured(traced, read(traced))
        found.append(one)

        def call(*arguments: Any) -> Any:
            one.arguments = tuple(a.detach().clone() if isinstance(a, torch.Tensor) else a for a in arguments)
            return gm(*arguments)

        return call

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(fn, backend=backend, dynamic=dynamic)(*args, **kwargs)
    return found


def capture_directly(fn: Callable[..., Any], *args: torch.Tensor, dynamic: bool = False) -> Captured:
    """`fn` traced without Dynamo, which is much quicker; `dynamic` makes every size a symbol."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    fakes = [_dynamic(mode, x, f"x{k}") if dynamic else mode.from_tensor(x, static_shapes=True) for k, x in enumerate(args)]
    with torch.no_grad():
        traced = trace(fn, mode, fakes)
    return Captured(traced, read(traced), args)


def _dynamic(mode: FakeTensorMode, x: torch.Tensor, name: str) -> torch.Tensor:
    sizes = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * x.dim())
    return mode.from_tensor(x, source=ConstantSource(name), symbolic_context=sizes)


def to_numpy(x: torch.Tensor) -> Any:
    x = x.detach().cpu()
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy()


class _Recorder(torch.fx.Interpreter):
    def __init__(self, gm: torch.fx.GraphModule) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.values: dict[torch.fx.Node, Any] = {}
        # What every node's tensor holds after an op that writes in place.
        self.after: dict[torch.fx.Node, dict[torch.fx.Node, torch.Tensor]] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        self.values[n] = result.clone() if isinstance(result, torch.Tensor) else result
        self.after[n] = {k: v.clone() for k, v in self.env.items() if isinstance(v, torch.Tensor)} if self.watch(n) else {}
        return result

    def watch(self, n: torch.fx.Node) -> bool:
        return isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable


def evaluate(one: Captured) -> list[tuple[Node, Any, Any]]:
    """(node, its value by the Semantic evaluator, its value in PyTorch) for every Semantic node that FX computes."""
    recorder = _Recorder(one.traced)
    recorder.run(*one.arguments)
    order = list(one.traced.graph.nodes)

    def real(node: Node) -> Any:
        anchor = one.reading.anchors[node][0]
        own = one.reading.positions[anchor.fx]
        if anchor.since > own:  # the value that an in-place op left there
            return recorder.after[order[anchor.since]][anchor.fx]
        return recorder.values[anchor.fx]

    graph = one.reading.graph
    checked = [n for n in graph.nodes if n in one.reading.anchors and n.op != "input"]
    sizes = {}
    for name, (fx, axis) in one.reading.sizes.items():
        value = recorder.values[fx]
        sizes[name] = int(value if axis is None else value.shape[axis])
    values = run_graph(Graph(graph.nodes, graph.inputs, checked), [to_numpy(real(n)) for n in graph.inputs], sizes)
    return [(n, ours, to_numpy(real(n))) for n, ours in zip(checked, values, strict=True)]


def check(one: Captured, *, ulps: float = 4) -> int:
    """Asserts that every Semantic node has PyTorch's value, within `ulps` units in the last place of the largest element that
    either computed; bitwise for integers and booleans. Returns the number of nodes compared."""
    compared = evaluate(one)
    for node, ours, theirs in compared:
        assert ours.shape == theirs.shape, f"{node}: {ours.shape} != {theirs.shape}"
        assert ours.dtype == numpy_dtype(node.type.dtype), f"{node}: {ours.dtype}"
        if theirs.dtype.kind != "f":
            assert np.array_equal(ours, theirs), f"{node!r}: {ours} != {theirs}"
            continue
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        assert np.array_equal(np.isnan(a), np.isnan(b)), f"{node!r}: NaN in other places"
        assert np.array_equal(a[np.isinf(a)], b[np.isinf(a)]), f"{node!r}: infinities in other places"
        finite = np.isfinite(a) & np.isfinite(b)
        if finite.any():
            unit = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}[node.type.dtype]
            scale = max(np.abs(b[finite]).max(), np.abs(a[finite]).max(), unit)
            error = np.abs(a[finite] - b[finite]).max()
            depth = 1 + np.log2(max(a.size, 2))
            assert error <= ulps * depth * unit * scale, f"{node!r}: off by {error} at scale {scale}"
    return len(compared)
