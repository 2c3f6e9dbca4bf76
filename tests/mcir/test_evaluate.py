"""MCIR runs: tile by tile as scheduled it gives the graph's result, within the numeric contract, and so does its kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from aicf.kernel import allocate, bound_kernel, run_kernel
from aicf.mcir import evaluate_module
from aicf.scalar import integer
from aicf.semantic import Graph
from aicf.semantic.evaluate import run_graph
from tests.contract import assert_contract
from tests.mcir.handmade import attention_module
from tests.mcir.modules import CASES


def named(graph: Graph, values: Sequence[Any]) -> dict[str, Any]:
    return {n.name: x for n, x in zip(graph.inputs, values, strict=True)}


def every_node(graph: Graph, values: Sequence[Any]) -> dict[str, Any]:
    """The value of each node by its name."""
    graph.outputs = list(graph.nodes)
    return {n.name: x for n, x in zip(graph.nodes, run_graph(graph, values), strict=True)}


def wide(x: Any) -> Any:
    return x.astype(np.float64) if x.dtype == np.float32 else x


SCHEDULED = [name for name, case in CASES.items() if case.target is not None]


@pytest.mark.parametrize("name", SCHEDULED)
def test_the_module_computes_the_graph(name: str):
    case = CASES[name]
    values, graph = case.inputs(), case.graph
    got = evaluate_module(case.module(), named(graph, values))
    exact, unfused = every_node(case.exact, list(map(wide, values))), every_node(graph, values)
    assert got
    for output, x in got.items():
        assert_contract(x, unfused[output], exact[output], "f32")


@pytest.mark.parametrize("name", SCHEDULED)
def test_the_kernel_computes_the_module(name: str):
    case = CASES[name]
    values = named(case.graph, case.inputs())
    module = case.module()
    kernel, binding = bound_kernel(module.regions[0])
    sizes = {n: integer(e, {}) for n, e in binding.sizes.items()}
    tensors = {n: values[x] for n, x in binding.inputs.items()} | allocate(kernel, sizes, ("out",))
    run_kernel(kernel, tensors, sizes)
    exact = every_node(case.exact, list(map(wide, case.inputs())))
    want = evaluate_module(module, values)
    for name_in_kernel, output in binding.outputs.items():
        assert_contract(tensors[name_in_kernel], want[output], exact[output], "f32")


def test_the_module_of_section_11_computes_an_online_softmax():
    module = attention_module()
    module.regions[0].attrs["has_mask"] = False
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((n, 64)).astype(np.float16) for n in (150, 200, 200))
    got = evaluate_module(module, {"Q": q, "K": k, "V": v})["O"]

    def softmax(kind: type) -> np.ndarray:
        s = q.astype(kind) @ k.astype(kind).T
        p = np.exp(s - s.max(1, keepdims=True))
        return (p / p.sum(1, keepdims=True)) @ v.astype(kind)

    assert_contract(got, softmax(np.float32).astype(np.float16), softmax(np.float64), "f16")


def test_a_tensor_that_does_not_fit_is_named():
    case = CASES["causal"]
    values = named(case.graph, case.inputs())
    with pytest.raises(ValueError, match=r"k has shape \[1, 2, 44, 8\]"):
        evaluate_module(case.module(), values | {"k": values["k"][:, :, :44]})
    with pytest.raises(ValueError, match="no array is given for v"):
        evaluate_module(case.module(), {n: x for n, x in values.items() if n != "v"})
