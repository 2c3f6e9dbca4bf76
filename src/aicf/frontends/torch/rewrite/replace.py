"""Replaces each streamed region of the traced graph by one call.

    %scores = matmul(%q, %k_t)                        %region = aicf.region(4711, [%q, %k, %v], [])
    %p = softmax(%scores, -1)                  ->     %o = getitem(%region, 0)
    %o = matmul(%p, %v)

Everything else keeps its order. An input that is changed in place before the region can be called is copied before the change. A
region whose outputs are changed in place too early is refused with the reason.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from aicf.driver import RegionResult
from aicf.frontends.torch.fx.locations import location_of
from aicf.frontends.torch.read.reader import Anchor, Reading, storage_of, written_by
from aicf.frontends.torch.run.region_op import REGION, register, size_names
from aicf.frontends.torch.run.training import TRAINED, Training, enter
from aicf.runtime.device import DeviceExecutable
from aicf.semantic import Node

from .layouts import memory_order
from .original_ops import CannotCopy, OriginalOps, original_ops

# Checks of type and shape that hold since the trace; their uses would keep a replaced tensor alive.
_CHECKED = (torch.ops.aten._assert_tensor_metadata.default,)


class CannotPlace(Exception):
    """A region cannot be called from this graph; the message says why. `node`: the tensor that prevents it."""

    def __init__(self, message: str, node: Node) -> None:
        super().__init__(message)
        self.node = node


@dataclass(frozen=True)
class Place:
    """Where a region is called: after position `at`, reading `inputs`, making `outputs`. `copied`: which inputs are copied, and
    after which position, because they are changed before `at`."""

    at: int
    inputs: list[torch.fx.Node]
    outputs: list[torch.fx.Node]
    copied: dict[torch.fx.Node, int]
    original: OriginalOps | None = None


def uncallable_tensors(gm: torch.fx.GraphModule, reading: Reading, results: Sequence[RegionResult]) -> set[Node]:
    """Inputs and outputs of streamed regions that prevent the call and are not inputs of the graph: regions with other borders
    may be possible."""
    nodes = list(gm.graph.nodes)
    found: set[Node] = set()
    for result in results:
        if result.status == "streamed":
            try:
                _plan(reading, nodes, result, copies=False)
            except CannotPlace as no:
                if no.node.op != "input":
                    found.add(no.node)
    return found


def rewrite(
    gm: torch.fx.GraphModule, reading: Reading, results: Sequence[RegionResult], trainings: Mapping[int, Training] | None = None
) -> dict[int, RegionResult]:
    """Replaces every streamed region of `results` in `gm`, in place, and returns those that were replaced by the number that
    their call has. `trainings`: the gradients of regions, by id, where they are asked.

    A region that cannot be placed becomes `refused`, with its reason. `gm` computes the same as before in any case.
    """
    nodes = list(gm.graph.nodes)
    placed: dict[int, RegionResult] = {}
    new: dict[torch.fx.Node, torch.fx.Node] = {}
    for result in results:
        if result.status != "streamed":
            continue
        try:
            place = _plan(reading, nodes, result, copies=True)
            if not reading.possibly_empty.isdisjoint(size_names(result)):
                place = replace(place, original=original_ops(gm, place.inputs, place.outputs, new))
        except (CannotPlace, CannotCopy) as no:
            result.refuse(str(no))
        else:
            placed[_apply(gm, reading, nodes, result, place, new, (trainings or {}).get(id(result)))] = result
    if placed:
        for node in list(gm.graph.nodes):
            if node.op == "call_function" and node.target in _CHECKED and not node.users:
                gm.graph.erase_node(node)
        _erase_dead_writes(gm.graph)
        gm.graph.eliminate_dead_code()
        gm.graph.lint()
        gm.recompile()
    return placed


def _erase_dead_writes(graph: torch.fx.Graph) -> None:
    """Erases ops that change, in place, memory of the graph's own that nothing reads any more: scores that a region now keeps in
    registers. For FX such ops are effects, which it never takes for dead."""
    nodes = list(graph.nodes)
    given = {storage_of(n.meta.get("val")) for n in nodes if n.op in ("placeholder", "get_attr")}
    writers: dict[int, list[torch.fx.Node]] = {}
    for node in nodes:
        keys = {storage_of(x.meta.get("val")) for x in written_by(node)}
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if keys and None not in keys and not keys & given and not random:
            for key in keys:
                writers.setdefault(key, []).append(node)  # type: ignore[arg-type]
    local = {n for found in writers.values() for n in found}
    live: set[torch.fx.Node] = set()
    stack = [n for n in nodes if n.op == "output" or (n.is_impure() and n not in local)]
    while stack:
        node = stack.pop()
        if node in live:
            continue
        live.add(node)
        stack += node.all_input_nodes
        value = node.meta.get("val")
        for x in value if isinstance(value, list | tuple) else (value,):
            stack += writers.get(storage_of(x), ())  # type: ignore[arg-type]
    for node in reversed(nodes):
        if node not in live and node.op != "placeholder":
            graph.erase_node(node)


def _plan(reading: Reading, nodes: list[torch.fx.Node], result: RegionResult, copies: bool) -> Place:
    at = max((k for k, n in enumerate(nodes) if n.op == "placeholder"), default=0)
    starts = {node: min(_first_position(reading, a) for a in reading.anchors[node]) for node in result.inputs}
    last = max(starts, key=lambda n: starts[n])
    at = max(at, starts[last])
    for name in size_names(result):
        if name not in reading.sizes:
            raise CannotPlace(f"size {name} is in no tensor's shape", result.outputs[0])
        at = max(at, reading.positions[reading.sizes[name][0]])
    copied: dict[torch.fx.Node, int] = {}
    inputs = [_input_at(reading, node, at, last, copied if copies else None) for node in result.inputs]
    outputs = [_output_at(reading, nodes, node, at) for node in result.outputs]
    for node, fx in zip([*result.inputs, *result.outputs], [*inputs, *outputs], strict=True):
        _on_device(result, node, fx)
    return Place(at, inputs, outputs, copied)


def _apply(
    gm: torch.fx.GraphModule,
    reading: Reading,
    nodes: list[torch.fx.Node],
    result: RegionResult,
    place: Place,
    new: dict[torch.fx.Node, torch.fx.Node],
    training: Training | None,
) -> int:
    at, outputs = place.at, place.outputs
    inputs = [new.get(i, i) for i in place.inputs]
    for k, i in enumerate(place.inputs):
        if i in place.copied:
            inputs[k] = _copy(gm, new.get(i, nodes[place.copied[i]]), inputs[k])
    sizes: list[torch.fx.Node | int] = []
    last = nodes[at]
    for name in size_names(result):
        with gm.graph.inserting_after(last):
            size = _size(gm, reading, name)
        sizes.append(size)
        last = size if isinstance(size, torch.fx.Node) and size.op == "call_function" and size not in nodes else last
    for node in place.original.numbers if place.original is not None else ():
        sizes.append(node)
        last = max(last, node, key=lambda n: list(gm.graph.nodes).index(n))
    with gm.graph.inserting_after(last):
        # The kernel writes rows along the last dimension; another innermost one needs a copy.
        orders = [memory_order(old) for old in outputs]
        direct = [o if o[-1:] == (len(o) - 1,) else tuple(range(len(o))) for o in orders]
        if training is not None:
            number = enter(training, direct)
            call = gm.graph.call_function(TRAINED, (number, inputs))
            _recorded(gm, call)
        else:
            number = register(result, direct, place.original and place.original.module, reading.possibly_empty)
            call = gm.graph.call_function(REGION, (number, inputs, sizes))
    call.meta = {k: v for k, v in outputs[0].meta.items() if k in ("stack_trace", "seq_nr", "from_node")}
    last = call
    for k, old in enumerate(outputs):
        with gm.graph.inserting_after(last):
            made = gm.graph.call_function(operator.getitem, (call, k))
        made.meta = dict(call.meta)
        last = made
        if orders[k] != direct[k]:
            made = last = _reordered(gm, made, orders[k], old)
        made.meta["val"] = old.meta["val"]  # its views and changes in place are those of `old`
        new[old] = made
        old.replace_all_uses_with(made)
    return number


def _recorded(gm: torch.fx.GraphModule, call: torch.fx.Node) -> None:
    """Makes autograd record `call`, whose place may lie in a `no_grad` block that the ops it replaces are not in:

    with torch.no_grad():
        q, k, v = f(x)
        with torch.enable_grad():
            y = attention(q, k, v)
    """
    on = torch.is_grad_enabled()
    for node in gm.graph.nodes:
        if node is call:
            break
        if node.target is torch._C._set_grad_enabled:
            on = bool(node.args[0])
    if not on:
        with gm.graph.inserting_before(call):
            gm.graph.call_function(torch._C._set_grad_enabled, (True,))
        with gm.graph.inserting_after(call):
            gm.graph.call_function(torch._C._set_grad_enabled, (False,))


def _first_position(reading: Reading, a: Anchor) -> int:
    return max(a.since, reading.positions[a.fx])


def _input_at(reading: Reading, node: Node, at: int, last: Node, copied: dict[torch.fx.Node, int] | None) -> torch.fx.Node:
    """An FX node that holds the tensor of `node` right after position `at`, where `last` is there as well, or one that held it
    before, to be noted in `copied` if that is allowed."""
    for a in reading.anchors[node]:
        if _first_position(reading, a) <= at < a.until:
            return a.fx
    if copied is not None:
        for a in reading.anchors[node]:
            if _first_position(reading, a) < a.until and a.fx not in copied:
                copied[a.fx] = _first_position(reading, a)
                return a.fx
    raise CannotPlace(f"{node.name} is changed in place before {last.name}, which the region needs too, exists", last)


def _copy(gm: torch.fx.GraphModule, after: torch.fx.Node, source: torch.fx.Node) -> torch.fx.Node:
    """A copy of `source` as it is right after the node `after`."""
    with gm.graph.inserting_after(after):
        made = gm.graph.call_function(torch.ops.aten.clone.default, (source,))
    made.meta = dict(source.meta)
    return made


def _output_at(reading: Reading, nodes: list[torch.fx.Node], node: Node, at: int) -> torch.fx.Node:
    first = reading.anchors[node][0]
    old, own = first.fx, reading.positions[first.fx]
    key = storage_of(old.meta.get("val"))
    shared = [n for n in nodes if n is not old and key is not None and storage_of(n.meta.get("val")) == key]
    if first.since != own:
        raise CannotPlace(f"{node.name} is the result of an in-place op ({location_of(nodes[first.since])})", node)
    if key in reading.mutated and any(reading.positions[n] < own for n in shared):
        raise CannotPlace(f"{node.name} shares memory with {shared[0].name}, which is changed in place", node)
    if any(n.target is torch.ops.aten.as_strided.default for n in shared):
        raise CannotPlace(f"{node.name} is read through as_strided, which depends on its memory layout", node)
    if any(reading.positions.get(u, at + 1) <= at for u in old.users):
        raise CannotPlace(f"{node.name} is needed before all inputs of the region exist", node)
    returned = {n for n in nodes[-1].all_input_nodes if n in shared}
    stray = [n for n in returned if not _derived(n, old)]
    if stray:
        raise CannotPlace(f"{node.name} shares memory with {stray[0].name}, which is returned too", node)
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


def _on_device(result: RegionResult, node: Node, fx: torch.fx.Node) -> None:
    """CPU kernels take CPU tensors; GPU kernels take CUDA tensors (and CPU tensors where Triton interprets them)."""
    value = fx.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return
    kind = value.device.type
    on_gpu = isinstance(result.executable, DeviceExecutable)
    if kind != ("cuda" if on_gpu else "cpu") and not (on_gpu and kind == "cpu"):
        raise CannotPlace(f"{node.name} is on {value.device}, the kernel is for a {'GPU' if on_gpu else 'CPU'}", node)


def _size(gm: torch.fx.GraphModule, reading: Reading, name: str) -> torch.fx.Node | int:
    source, axis = reading.sizes[name]
    return source if axis is None else gm.graph.call_function(torch.ops.aten.sym_size.int, (source, axis))


def _reordered(gm: torch.fx.GraphModule, made: torch.fx.Node, order: Sequence[int], old: torch.fx.Node) -> torch.fx.Node:
    """A copy of `made` whose dimensions lie in memory in `order`."""
    back = [order.index(k) for k in range(len(order))]
    aten = torch.ops.aten
    steps: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (aten.permute.default, (list(order),), {}),
        (aten.clone.default, (), {"memory_format": torch.contiguous_format}),
        (aten.permute.default, (back,), {}),
    ]
    for target, args, kwargs in steps:
        with gm.graph.inserting_after(made):
            made = gm.graph.call_function(target, (made, *args), kwargs)
            made.meta = {k: v for k, v in old.meta.items() if k in ("stack_trace", "seq_nr", "from_node")}
    return made
