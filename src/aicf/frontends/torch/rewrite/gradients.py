"""Which tensors of a graph need a gradient: those that autograd records and that a returned tensor depends on.

    with torch.no_grad(): y = attention(q, k, v)      no: nothing is recorded
    y = attention(frozen(x))                          no: neither x nor the weights require a gradient
    y = attention(q, k, v).detach()                   no: the record ends at detach
    y = attention(proj(x))                            yes, through the weights of proj

Dynamo runs every node of its graph on fake tensors in the program's modes, so the `requires_grad` of these tensors is known. Each
node of the traced graph refers to the node of Dynamo's graph that it comes from.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from aicf.frontends.torch.capture.flex_mods import FLEX
from aicf.frontends.torch.run.region_op import REGION

_DETACH = torch.ops.aten.detach.default
_IN_PLACE = ("setitem", "__setitem__")
_ENTER_INFERENCE = torch.autograd.grad_mode._enter_inference_mode
_EXIT_INFERENCE = torch.autograd.grad_mode._exit_inference_mode
_HOOKS = ("register_hook", "register_post_accumulate_grad_hook", "retain_grad", "requires_grad_")


class Gradients:
    """What autograd records of a graph of Dynamo's, `gm`, called with `inputs`."""

    def __init__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> None:
        # What is written into a tensor under no_grad is not recorded, although the tensor requires a gradient.
        hidden = _changed_unrecorded(gm)
        made = (n for n in gm.graph.nodes if n.op not in ("placeholder", "output"))
        self.recorded = {n.name for n in made if n not in hidden and _requires(n, gm)}
        self.given = [isinstance(x, torch.Tensor) and x.requires_grad for x in inputs]
        # Bodies of higher-order ops (checkpoints, custom functions) are inlined in the traced graph under other names. Their
        # effect on gradients, and that of hooks, is not in it: where a gradient passes one, no region may be replaced.
        self.bodies = any(_has_body(n) for n in gm.graph.nodes)
        self.has_hooks_or_bodies = any((_has_body(n) and n.name in self.recorded) or n.target in _HOOKS for n in gm.graph.nodes)
        self.required = _required(gm, self.recorded)

    def is_required(self, node: torch.fx.Node) -> bool:
        """Whether the result of `node`, a node of the graph traced from `gm`, needs a gradient."""
        return bool(self.required) and (self.has_hooks_or_bodies or _origin(node) in (self.required | {None}))

    def detach_regions(self, traced: torch.fx.GraphModule) -> None:
        """Makes every region of `traced` read detached tensors where they require a gradient. No gradient of a region is needed,
        but its call may lie outside of the program's `no_grad` block."""
        if not (self.recorded or any(self.given) or any(p.requires_grad for p in traced.parameters())):
            return
        order = {n: k for k, n in enumerate(traced.graph.find_nodes(op="placeholder"))}
        for call in traced.graph.find_nodes(op="call_function", target=REGION):
            read: Any = call.args[1]
            with traced.graph.inserting_before(call):
                made = [_detached(traced, x) if self._may_require(traced, x, order) else x for x in read]
            call.args = (call.args[0], made, call.args[2])
        traced.recompile()

    def may_require(self, traced: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
        """Whether a gradient may be recorded for what `node` of `traced` holds."""
        return self._may_require(traced, node, {n: k for k, n in enumerate(traced.graph.find_nodes(op="placeholder"))})

    def all_recorded(
        self, traced: torch.fx.GraphModule, inputs: Sequence[torch.fx.Node], outputs: Sequence[torch.fx.Node],
        created: Collection[torch.fx.Node] = (),
    ) -> bool:  # fmt: skip
        """Whether autograd would record every op between `inputs` and `outputs` on the way of a gradient, so that none of them is
        detached or stands under a `no_grad`. `created`: nodes that depend on no tensor's elements (`new_zeros`), which are never
        recorded."""
        if self.bodies:
            return False
        order = {n: k for k, n in enumerate(traced.graph.find_nodes(op="placeholder"))}
        seen: set[torch.fx.Node] = {*inputs, *created}
        stack = [n for n in outputs if n not in seen]
        while stack:
            node = stack.pop()
            if node in seen or node.op in ("placeholder", "get_attr"):
                continue
            seen.add(node)
            stack += node.all_input_nodes
            value = node.meta.get("val")
            floating = not isinstance(value, torch.Tensor) or value.is_floating_point()
            counts = floating and node.target is not operator.getitem and not self._is_recorded(node)
            if counts and any(self._may_carry(traced, x, order) for x in node.all_input_nodes):
                return False
        return True

    def _is_recorded(self, node: torch.fx.Node) -> bool:
        return node.target is not _DETACH and _origin(node) in self.recorded

    def _may_carry(self, traced: torch.fx.GraphModule, node: torch.fx.Node, order: dict[torch.fx.Node, int]) -> bool:
        if node.target is operator.getitem or node.op in ("placeholder", "get_attr"):
            return node.op not in ("placeholder", "get_attr") or self._may_require(traced, node, order)
        value = node.meta.get("val")
        floating = not isinstance(value, torch.Tensor) or value.is_floating_point()
        return floating and (_origin(node) is None or node.target is _DETACH or self._is_recorded(node))

    def _may_require(self, traced: torch.fx.GraphModule, node: torch.fx.Node, order: dict[torch.fx.Node, int]) -> bool:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex()):
            return False
        if node.op == "placeholder":
            return self.given[order[node]]
        if node.op == "get_attr":
            return bool(getattr(getattr(traced, str(node.target), None), "requires_grad", True))
        return self.bodies or _origin(node) in (self.recorded | {None})


def _detached(traced: torch.fx.GraphModule, node: torch.fx.Node) -> torch.fx.Node:
    made = traced.graph.call_function(_DETACH, (node,))
    made.meta = dict(node.meta)
    return made


def _origin(node: torch.fx.Node) -> str | None:
    sources: Any = node.meta.get("from_node")
    return str(sources[-1].name) if sources else None


def _requires(node: torch.fx.Node, gm: torch.fx.GraphModule) -> bool:
    value = getattr(gm, str(node.target), None) if node.op == "get_attr" else node.meta.get("example_value")
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in _flatten(value))


def _flatten(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for x in value:  # type: ignore[reportUnknownVariableType]
            yield from _flatten(x)
    else:
        yield value


def _required(gm: torch.fx.GraphModule, recorded: set[str]) -> set[str]:
    """Of the `recorded` nodes those that a result depends on through recorded nodes; all of them where tensors are changed in
    place, since what reads them then need not be a user of what was written."""
    if any(_changes(n) for n in gm.graph.nodes):
        return set(recorded)
    required: set[str] = set()
    for node in reversed(gm.graph.nodes):
        if node.name in recorded and any(u.op == "output" or u.name in required for u in node.users):
            required.add(node.name)
    return required


def _changed_unrecorded(gm: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """The nodes that write into a tensor while gradients are switched off."""
    enabled = torch.is_grad_enabled()
    inference: list[torch.fx.Node] = []
    hidden: set[torch.fx.Node] = set()
    for n in gm.graph.nodes:
        if n.target is torch._C._set_grad_enabled:
            enabled = bool(n.args[0])
        elif n.target is _ENTER_INFERENCE:
            inference.append(n)
        elif n.target is _EXIT_INFERENCE and inference:
            inference.pop()
        elif _changes(n) and (not enabled or inference):
            hidden.add(n)
    return hidden


def _has_body(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.HigherOrderOperator) and node.target is not FLEX


def _changes(node: torch.fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    own = name.rpartition(".")[2]
    in_place = (own.endswith("_") and not own.endswith("__")) or own in _IN_PLACE or own.startswith("__i")
    return node.op in ("call_function", "call_method") and (in_place or "out" in node.kwargs)
