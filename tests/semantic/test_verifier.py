"""The graph's verifier: graphs that are built pass, and each kind of fault is found where it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType

import pytest

from aicf.scalar import const, integer_const, load
from aicf.semantic import (
    Graph,
    GraphBuilder,
    GraphFault,
    Location,
    Node,
    TensorType,
    build_attention_semantic_graph,
    check_graph,
    tensor_type,
    verify_graph,
)

Change = Callable[[Graph], None]


def attention() -> Graph:
    return build_attention_semantic_graph(dtype="f32", batch=1, heads=2, queries=8, keys=6, head_dim=4)


def every_op() -> Graph:
    b = GraphBuilder()
    x, y = b.input("x", "f32", (2, 4, 3)), b.input("y", "f32", (2, 3, 5))
    k = b.input("k", "i64", (2, 4, 3))
    parts = [
        b.op("matmul", x, y),
        b.einsum(["bij", "bjk"], "bik", x, y),
        b.op("concat", x, x, axis=1),
        b.op("gather", x, b.op("mod", k, 4), axis=1),
        b.op("take", x, b.op("mod", k, 2), axes=(0,), position=0),
        b.op("pad", x, low=(integer_const(0),) * 3, high=(integer_const(1),) * 3, value=0.0),
        b.slice(x, (0, 1, 0), (2, 2, 3)),
        b.expand(b.reshape(x, (2, 4, 1, 3)), (2, 4, 7, 3)),
        b.permute(x, (2, 0, 1)),
        b.cast(b.constant([1.0, 2.0], "f32"), "f16"),
        b.op("logsumexp", x, axis=-1, keepdims=False),
        b.op("log_softmax", x, axis=0),
        b.reduce("max", x, [0, 2], keepdims=True),
        b.op("add", b.iota(4), b.scalar(integer_const(3))),
    ]
    return b.output(*parts)


def test_graphs_that_are_built_are_well_formed() -> None:
    assert verify_graph(attention()) == [] and verify_graph(every_op()) == []


def node(g: Graph, name: str) -> Node:
    return next(n for n in g.nodes if n.name == name)


def with_attrs(name: str, **attrs: object) -> Change:
    def change(g: Graph) -> None:
        n = node(g, name)
        n.attrs = MappingProxyType({k: v for k, v in {**n.attrs, **attrs}.items() if v is not None})

    return change


def with_type(name: str, kind: TensorType) -> Change:
    def change(g: Graph) -> None:
        node(g, name).type = kind

    return change


def with_inputs(name: str, *inputs: str) -> Change:
    def change(g: Graph) -> None:
        node(g, name).inputs = tuple(node(g, i) for i in inputs)

    return change


def with_op(name: str, op: str) -> Change:
    def change(g: Graph) -> None:
        node(g, name).op = op

    return change


def reordered(g: Graph) -> None:
    g.nodes.remove(n := node(g, "Scores"))
    g.nodes.append(n)


def renamed(g: Graph) -> None:
    node(g, "Scaled").name = "Scores"


def foreign_output(g: Graph) -> None:
    g.outputs.append(replace(node(g, "O"), name="elsewhere"))


def lost_input(g: Graph) -> None:
    g.inputs.remove(node(g, "V"))


def not_an_input(g: Graph) -> None:
    g.inputs.append(node(g, "O"))


FAULTS: dict[str, tuple[Change, str]] = {
    "order": (reordered, "it reads %Scores, which comes later"),
    "name": (renamed, "name %Scores: 2 nodes have it"),
    "output": (foreign_output, "output %elsewhere: it is no node of the graph"),
    "input": (lost_input, "input %V: it is not in the list of inputs"),
    "input's op": (not_an_input, "input %O: it is made by matmul"),
    "op": (with_op("Softmax", "softmin"), "there is no op softmin"),
    "too few": (with_inputs("O", "Softmax"), "matmul takes 2 operands, and it has 1"),
    "too many": (with_inputs("Softmax", "Masked", "Q"), "softmax takes 1 operands, and it has 2"),
    "attribute": (with_attrs("Softmax", axis=None), "it does not say its axis"),
    "axis": (with_attrs("Softmax", axis=4), "axis 4 is out of range for rank 4"),
    "type": (with_type("O", tensor_type("f16", (1, 2, 8, 4))), "its type is f32[1, 2, 8, 4]"),
    "shape": (with_type("O", tensor_type("f32", (1, 2, 4, 8))), "its type is f32[1, 2, 8, 4]"),
    "operands": (with_inputs("O", "Softmax", "K_T"), "matmul cannot contract"),
    "float dim": (with_type("Q", TensorType("f32", (const(1.0, "f32"),))), "which is no size"),
    "negative dim": (with_type("Q", tensor_type("f32", (-1,))), "which is no size"),
    "dim of data": (with_type("Q", TensorType("f32", (load("n", (), "i64"),))), "which is no size"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found(fault: str) -> None:
    change, said = FAULTS[fault]
    g = attention()
    change(g)
    problems = verify_graph(g)
    assert any(said in p for p in problems), problems
    with pytest.raises(GraphFault, match="not well formed"):
        check_graph(g)


def test_a_fault_names_the_source_line() -> None:
    g = attention()
    node(g, "O").location = Location("model.py", 7, "forward", "aten.matmul")
    with_inputs("O", "Softmax")(g)
    (problem,) = verify_graph(g)
    assert problem == (
        "`%O = matmul(%Softmax) : f32[1, 2, 8, 4]    # model.py:7 in forward aten.matmul`: matmul takes 2 operands, and it has 1"
    )
