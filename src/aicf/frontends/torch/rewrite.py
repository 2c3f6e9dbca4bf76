"""The traced graph with each streamed region replaced by one call.

    %scores = matmul(%q, %k_t)                        %region = aicf.region(4711, [%q, %k, %v], [])
    %p = softmax(%scores, -1)                  ->     %o = getitem(%region, 0)
    %o = matmul(%p, %v)

Everything else keeps its order. A region whose inputs or outputs are changed in place at the wrong time is left alone, with a
reason.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from aicf.driver import RegionResult
from aicf.semantic import Node

from .locations import location_of
from .reader import Anchor, Reading, storage_of
from .region_op import REGION, register, size_names

# Checks of element type and shape that were already made while tracing; they would keep a replaced tensor alive.
_SETTLED = (torch.ops.aten._assert_tensor_metadata.default,)


class CannotPlace(Exception):
    """A region that cannot be called from this graph; the message says why, for people."""


def rewrite(gm: torch.fx.GraphModule, reading: Reading, results: Sequence[RegionResult]) -> list[RegionResult]:
    """Replaces every streamed region of `results` in `gm`, in place, and returns those that were replaced.

    A region that cannot be placed becomes `refused`, with its reason. `gm` computes the same as before in any case.
    """
    nodes = list(gm.graph.nodes)
    placed: list[RegionResult] = []
    new: dict[torch.fx.Node, torch.fx.Node] = {}
    for result in results:
        if result.status != "streamed":
            continue
        try:
            _place(gm, reading, nodes, result, new)
        except CannotPlace as no:
            result.status, result.reason, result.executable = "refused", str(no), None
        else:
            placed.append(result)
    if placed:
        for node in list(gm.graph.nodes):
            if node.op == "call_function" and node.target in _SETTLED and not node.users:
                gm.graph.erase_node(node)
        gm.graph.eliminate_dead_code()
        gm.graph.lint()
        gm.recompile()
    return placed


def _place(
    gm: torch.fx.GraphModule,
    reading: Reading,
    nodes: list[torch.fx.Node],
    result: RegionResult,
    new: dict[torch.fx.Node, torch.fx.Node],
) -> None:
    at = max((k for k, n in enumerate(nodes) if n.op == "placeholder"), default=0)
    for node in result.inputs:
        at = max(at, min(_start(reading, a) for a in reading.anchors[node]))
    inputs = [_held(reading, node, at) for node in result.inputs]
    outputs = [_replaceable(reading, nodes, node, at) for node in result.outputs]
    _on_cpu([*inputs, *outputs])
    # Nothing is changed above this line.
    with gm.graph.inserting_after(nodes[at]):
        sizes = [_size(gm, reading, name) for name in size_names(result)]
        last = next((s for s in reversed(sizes) if isinstance(s, torch.fx.Node) and s not in nodes), nodes[at])
    with gm.graph.inserting_after(last):
        call = gm.graph.call_function(REGION, (register(result), [new.get(i, i) for i in inputs], sizes))
    call.meta = {k: v for k, v in outputs[0].meta.items() if k in ("stack_trace", "seq_nr", "from_node")}
    last = call
    for k, old in enumerate(outputs):
        with gm.graph.inserting_after(last):
            made = gm.graph.call_function(operator.getitem, (call, k))
        made.meta = dict(call.meta)
        last = made
        if _returned(reading, nodes, old):
            made = last = _with_strides(gm, made, old)
        new[old] = made
        old.replace_all_uses_with(made)


def _start(reading: Reading, a: Anchor) -> int:
    return max(a.since, reading.positions[a.fx])


def _held(reading: Reading, node: Node, at: int) -> torch.fx.Node:
    """An FX node that holds the tensor of `node` right after position `at`."""
    for a in reading.anchors[node]:
        if _start(reading, a) <= at < a.until:
            return a.fx
    raise CannotPlace(f"{node.name} is changed in place before all inputs of the region exist")


def _replaceable(reading: Reading, nodes: list[torch.fx.Node], node: Node, at: int) -> torch.fx.Node:
    first = reading.anchors[node][0]
    old, own = first.fx, reading.positions[first.fx]
    key = storage_of(old.meta.get("val"))
    shared = [n for n in nodes if n is not old and key is not None and storage_of(n.meta.get("val")) == key]
    if first.since != own:
        raise CannotPlace(f"{node.name} is the result of an in-place op ({location_of(nodes[first.since])})")
    if key in reading.mutated and any(reading.positions[n] < own for n in shared):
        raise CannotPlace(f"{node.name} shares memory with {shared[0].name}, which is changed in place")
    if any(n.target is torch.ops.aten.as_strided.default for n in shared):
        raise CannotPlace(f"{node.name} is read through as_strided, which depends on its memory layout")
    if any(reading.positions.get(u, at + 1) <= at for u in old.users):
        raise CannotPlace(f"{node.name} is needed before all inputs of the region exist")
    returned = {n for n in nodes[-1].all_input_nodes if n in shared}
    stray = [n for n in returned if not _derived(n, old)]
    if stray:
        raise CannotPlace(f"{node.name} shares memory with {stray[0].name}, which is returned too")
    return old


def _derived(node: torch.fx.Node, source: torch.fx.Node) -> bool:
    """Whether `node` is a chain of views of `source`."""
    key = storage_of(source.meta.get("val"))
    while node is not source:
        views = [n for n in node.all_input_nodes if storage_of(n.meta.get("val")) == key]
        if len(views) != 1:
            return False
        node = views[0]
    return True


def _on_cpu(found: Sequence[torch.fx.Node]) -> None:
    for n in found:
        value = n.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            raise CannotPlace(f"{n.name} is on {value.device}: only CPU tensors are taken for now")


def _size(gm: torch.fx.GraphModule, reading: Reading, name: str) -> torch.fx.Node | int:
    if name not in reading.sizes:
        raise AssertionError(f"size {name} is in no input's shape")
    source, axis = reading.sizes[name]
    return source if axis is None else gm.graph.call_function(torch.ops.aten.sym_size.int, (source, axis))


def _returned(reading: Reading, nodes: list[torch.fx.Node], old: torch.fx.Node) -> bool:
    """Whether the caller sees the memory layout of `old`: it, or a view of it, is returned, and it is not contiguous."""
    value: Any = old.meta["val"]
    if value.is_contiguous():
        return False
    key = storage_of(value)
    return any(storage_of(n.meta.get("val")) == key for n in nodes[-1].all_input_nodes)


def _with_strides(gm: torch.fx.GraphModule, made: torch.fx.Node, old: torch.fx.Node) -> torch.fx.Node:
    """`made` in the memory layout of `old`, a permutation of a contiguous one."""
    value: Any = old.meta["val"]
    order = sorted(range(value.dim()), key=lambda k: (-_hint(value.stride(k)), k))
    back = [order.index(k) for k in range(len(order))]
    aten = torch.ops.aten
    steps: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (aten.permute.default, (order,), {}),
        (aten.clone.default, (), {"memory_format": torch.contiguous_format}),
        (aten.permute.default, (back,), {}),
    ]
    for target, args, kwargs in steps:
        with gm.graph.inserting_after(made):
            made = gm.graph.call_function(target, (made, *args), kwargs)
            made.meta = {k: v for k, v in old.meta.items() if k in ("stack_trace", "seq_nr", "from_node")}
    return made


def _hint(stride: Any) -> int:
    return stride.node.hint if isinstance(stride, torch.SymInt) else int(stride)
