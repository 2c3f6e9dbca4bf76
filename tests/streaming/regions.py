"""Graphs run with their regions in Kernel IR's interpreter or compiled, and everything else with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aicf.backends.llvm.build import build
from aicf.driver import Compilation, Options, RegionResult, compile_graph
from aicf.kernel import allocate, run_kernel
from aicf.scalar import DType, integer, is_float, numpy_dtype
from aicf.semantic import OPS, Graph, GraphBuilder, Node
from aicf.semantic.evaluate import run_graph
from tests.contract import assert_contract

Build = Callable[[GraphBuilder, DType], Sequence[Node]]
LEVELS = ("kernel", "cpu")


@dataclass
class Run:
    """The values of a graph's nodes, regions computed as wholes: only what is needed, so that `values` shows what was stored."""

    compilation: Compilation
    level: str
    values: dict[Node, Any] = field(default_factory=dict[Node, Any])

    def of(self, node: Node) -> Any:
        if node not in self.values:
            region = next((r for r in self.compilation.regions if r.status == "streamed" and node in r.outputs), None)
            if region is None:
                read = [self.of(i) for i in node.inputs]
                self.values[node] = OPS[node.op].numpy(read, node.attrs, node.type, {})
            else:
                self.values.update(_outputs(region, [self.of(n) for n in region.inputs], self.level))
        return self.values[node]


def _outputs(result: RegionResult, inputs: Sequence[Any], level: str) -> Mapping[Node, Any]:
    executable = result.executable
    assert executable is not None
    kernel, bound = executable.kernel, executable.sizes({})
    arrays = {name: np.ascontiguousarray(x) for name, x in zip(executable.input_names, inputs, strict=True)}
    if level == "kernel":
        arrays |= allocate(kernel, bound, ("out",))
        trace = run_kernel(kernel, arrays, bound)
        assert set(trace.stores.values()) == {(1, 1)}
    else:
        arrays |= allocate(kernel, bound, ("out", "scratch"))
        tensors = {n: (a.ctypes.data, tuple(s // a.itemsize for s in a.strides)) for n, a in arrays.items()}
        build(kernel).run(tensors, bound, {}, 1)
    return {node: arrays[name] for name, node in zip(executable.output_names, result.outputs, strict=True)}


def graph_of(make: Build, dtype: DType = "f32") -> Graph:
    """The graph that `make` builds of inputs and results of `dtype`."""
    b = GraphBuilder()
    b.output(*make(b, dtype))
    return b.graph


def compiled(make: Build, **options: Any) -> Compilation:
    return compile_graph(graph_of(make), Options(**_options(options)))


def _options(given: dict[str, Any]) -> dict[str, Any]:
    return {"fuse": "always", "threads": 1, **given}


def random_inputs(graph: Graph, seed: int = 0) -> list[Any]:
    """Normal numbers, and for integers 0 to 3."""
    random = np.random.default_rng(seed)
    out: list[Any] = []
    for n in graph.inputs:
        shape = [integer(d, {}) for d in n.type.shape]
        if is_float(n.type.dtype):
            out.append(random.standard_normal(shape).astype(np.float32).astype(numpy_dtype(n.type.dtype)))
        else:
            out.append(random.integers(0, 2 if n.type.dtype == "bool" else 4, shape).astype(numpy_dtype(n.type.dtype)))
    return out


def check(make: Build, given: Sequence[Any] | None = None, **options: Any) -> tuple[Compilation, list[list[Node]]]:
    """Compiles what `make` builds, runs it at every level and holds each result against the contract. Returns the compilation
    and, per level, the nodes whose tensors existed."""
    made = compiled(make, **options)
    inputs = random_inputs(made.graph) if given is None else list(given)
    exact = graph_of(make, "f64")
    wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in inputs]
    with np.errstate(all="ignore"):
        reference = run_graph(exact, wide)
        unfused = _in_f32(made.graph, inputs)
        existed: list[list[Node]] = []
        for level in LEVELS:
            run = Run(made, level, dict(zip(made.graph.inputs, inputs, strict=True)))
            for node, one, best in zip(made.graph.outputs, unfused, reference, strict=True):
                got = run.of(node)
                assert got.dtype == one.dtype and got.shape == one.shape
                if is_float(node.type.dtype):
                    assert_contract(got, one, best, node.type.dtype, f"{node.name} at level {level}")
                else:
                    assert np.array_equal(got, one), f"{node.name} at level {level}"
            existed.append(list(run.values))
    return made, existed


def _in_f32(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """The graph as a library computes it: contractions and sums in f32, in an order of their own."""
    values = dict(zip(graph.inputs, inputs, strict=True))
    for n in graph.nodes:
        if n not in values:
            read = [values[i] for i in n.inputs]
            match n.op:
                case "matmul" if read[0].dtype == np.float32:
                    values[n] = np.matmul(*read)
                case "einsum" if read[0].dtype == np.float32:
                    values[n] = np.einsum(f"{','.join(n.attrs['inputs'])}->{n.attrs['output']}", *read, optimize=True)
                case "reduce" if n.attrs["op"] == "sum" and read[0].dtype == np.float32:
                    values[n] = np.sum(read[0], axis=tuple(n.attrs["axes"]), keepdims=n.attrs["keepdims"])
                case _:
                    values[n] = OPS[n.op].numpy(read, n.attrs, n.type, {})
    return [values[n] for n in graph.outputs]


def streamed(made: Compilation) -> list[list[str]]:
    """The outputs of each region that streams."""
    return [[o.name for o in r.outputs] for r in made.regions if r.status == "streamed"]
