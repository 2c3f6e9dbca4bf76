"""Sizes may have any name: those that the derivation gives to axes, scores, extrema and sums are chosen around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aicf.backends.llvm.build import build
from aicf.driver import Options, compile_graph
from aicf.kernel import allocate, run_kernel
from aicf.scalar import DType, cast, index, integer
from aicf.semantic import Graph, GraphBuilder, bind_sizes
from aicf.semantic.evaluate import run_graph
from tests.contract import assert_contract

LENGTHS = (2, 5, 7)
OTHERS = ("n1", "n2", "n3")
WIDTH = 4
NAMES = (
    "s", "s2", "m", "m2", "l", "o", "o2", "B_m", "ref_m", "old_m", "G_o", "i", "j", "d", "d2", "e", "b", "h", "x0", "N", "M", "D",
    "n_b", "n_h", "out", "row", "q", "Q_0", "O_0",
)  # fmt: skip
"""Names that recognition, a derivation, a region or a kernel gives to something of its own."""


def _attention(names: tuple[str, ...], dtype: DType) -> Graph:
    """A softmax of the sum of two products, and a mean over the keys, so that a result reads a size."""
    g = GraphBuilder()
    batch, rows, keys = map(index, names)
    q, q2 = (g.input(x, dtype, (batch, rows, WIDTH)) for x in ("q", "q2"))
    k, k2, v = (g.input(x, dtype, (batch, keys, WIDTH)) for x in ("k", "k2", "v"))
    s = g.op("add", g.op("matmul", q, g.permute(k, (0, 2, 1))), g.op("matmul", q2, g.permute(k2, (0, 2, 1))))
    mean = g.op("div", g.op("max", s, 0.0), g.scalar(cast(keys, dtype)))
    g.output(g.op("matmul", g.op("softmax", s, axis=-1), v), g.op("matmul", mean, v))
    return g.graph


PLACES = [*((name, 2) for name in NAMES), *((name, k) for name in ("b", "i", "N") for k in (0, 1))]


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_any_name(name: str, place: int) -> None:
    names = (*OTHERS[:place], name, *OTHERS[place + 1 :])
    graph = _attention(names, "f32")
    made = compile_graph(graph, Options(fuse="always", threads=1))
    assert [r.status for r in made.regions] == ["streamed"] * len(made.regions)
    assert {n for r in made.regions for n in r.outputs} == {*graph.outputs}

    rng = np.random.default_rng(0)
    sizes = dict(zip(names, LENGTHS, strict=True))
    inputs = [rng.standard_normal([integer(d, sizes) for d in n.type.shape]).astype(np.float32) for n in graph.inputs]
    assert bind_sizes(graph.inputs, inputs) == sizes
    unfused = run_graph(graph, inputs, sizes)
    exact = run_graph(_attention(names, "f64"), [x.astype(np.float64) for x in inputs], sizes)
    values = dict(zip(graph.inputs, inputs, strict=True))
    for region in made.regions:
        executable = region.executable
        assert executable is not None
        bound = executable.sizes(sizes)
        read = dict(zip(executable.input_names, [values[n] for n in region.inputs], strict=True))
        interpreted: dict[str, Any] = read | allocate(executable.kernel, bound, ("out",))
        run_kernel(executable.kernel, interpreted, bound)
        ran: dict[str, Any] = read | allocate(executable.kernel, bound, ("out", "scratch"))
        tensors = {n: (a.ctypes.data, tuple(s // a.itemsize for s in a.strides)) for n, a in ran.items()}
        build(executable.kernel).run(tensors, bound, {}, 1)
        for level, result in (("kernel", interpreted), ("cpu", ran)):
            for out, node in zip(executable.output_names, region.outputs, strict=True):
                k = graph.outputs.index(node)
                assert_contract(result[out], unfused[k], exact[k], "f32", f"output {k} at level {level}")
